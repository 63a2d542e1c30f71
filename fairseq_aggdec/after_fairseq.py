"""Registers the package together with fairseq: at once where fairseq is there, else right behind its first import.

So ``import fairseq_aggdec`` alone loads neither PyTorch nor fairseq, and whoever comes to use fairseq, in whatever
order, finds the tasks, models and criterions of the package. fairseq itself is not changed. Its import calls
``logging.basicConfig`` at level DEBUG; the root logger of a program keeps its level and handlers, except in the
commands of this package.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

FAIRSEQ = "fairseq"
PACKAGE = __name__.split(".", maxsplit=1)[0]
REGISTRATION = f"{PACKAGE}.registration"
may_set_up_root_logger = False  # the commands set it


def register_with_fairseq() -> None:
    """Registers now, or when fairseq is imported."""
    if FAIRSEQ in sys.modules:
        importlib.import_module(REGISTRATION)
    elif not any(isinstance(finder, AfterFairseq) for finder in sys.meta_path):
        # One of its tasks tells everybody who imports it to install tensorboardX.
        logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
        sys.meta_path.insert(0, AfterFairseq())


def imports_itself() -> bool:
    """Whether a module of this package is being imported: registration would find it half done.

    Only an entry point registers: a user's import of fairseq, ``--user-dir``, a command, the Python interface. A module
    of the package that imports fairseq for its own use is none of these.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{PACKAGE}.")]
    return any(getattr(module.__spec__, "_initializing", False) for module in modules)


class AfterFairseq(MetaPathFinder):
    """Finds fairseq where the other finders do, and registers the package once fairseq has been executed."""

    searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != FAIRSEQ or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with root_logger_unchanged():
                execute(module)
                if not imports_itself():
                    importlib.import_module(REGISTRATION)

        setattr(spec.loader, "exec_module", exec_module)  # noqa: B010  (of this loader, not of its class)
        return spec


@contextmanager
def root_logger_unchanged() -> Iterator[None]:
    """Undoes what imports do to the root logger: its level, and the handlers that they add."""
    if may_set_up_root_logger:
        yield
        return
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
