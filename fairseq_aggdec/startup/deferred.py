"""scikit-learn and SciPy are imported when fairseq calls their functions, not when fairseq is imported.

They take longer to import than the rest of fairseq, and 80 MB. Two of its files, for classification, ask for them.
"""

import functools
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = ("sklearn", "sklearn.metrics", "scipy.stats")


class Deferred(ModuleType):
    """Stands for a module of functions, each of which imports the module when it is called."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__spec__ = ModuleSpec(
            name, None
        )  # whoever only asks whether it is installed gets an answer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return functools.partial(_call, self.__name__, name)


def _call(module: str, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(importlib.import_module(module), name)(*args, **kwargs)


@contextmanager
def deferred_modules() -> Iterator[None]:
    """Whoever imports one of the modules meanwhile gets a stand-in; nothing is done if one is there already."""
    if not sys.modules.keys().isdisjoint(MODULES):
        yield
        return
    stand_ins = {name: Deferred(name) for name in MODULES}
    vars(stand_ins["sklearn"])["metrics"] = stand_ins["sklearn.metrics"]
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, one in stand_ins.items():
            if sys.modules.get(name) is one:
                del sys.modules[name]
