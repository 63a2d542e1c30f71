"""Registers the package together with fairseq: at once where fairseq is there, else right behind its first import.

So ``import fairseq_aggdec`` alone loads neither PyTorch nor fairseq, and whoever comes to use fairseq, in whatever
order, finds the tasks, models and criterions of the package. fairseq itself is not changed. Its import calls
``logging.basicConfig`` at level DEBUG; the root logger of a program keeps its level and handlers, except in the
commands of this package (:func:`set_up_log`).
"""

import functools
import gc
import importlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from fairseq_aggdec.startup.deferred import deferred_modules

FAIRSEQ = "fairseq"
Execute = Callable[[ModuleType], None]
PACKAGE = __name__.split(".", maxsplit=1)[0]
REGISTRATION = f"{PACKAGE}.pipelines.registration"
may_set_up_root_logger = False  # the commands set it


def register_with_fairseq() -> None:
    """Registers now, or when fairseq is imported."""
    if FAIRSEQ in sys.modules:
        importlib.import_module(REGISTRATION)
    elif not any(isinstance(finder, AfterFairseq) for finder in sys.meta_path):
        # One of its tasks tells everybody who imports it to install tensorboardX.
        logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
        sys.meta_path.insert(0, AfterFairseq())


class AfterFairseq(MetaPathFinder):
    """Finds modules where the other finders do, and registers the package once fairseq has been executed.

    A module of this package may be the first that imports fairseq. Registration would then find it half done, so it
    waits until that module is whole.
    """

    searching = False
    inside = 0  # modules of this package that are being executed

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self.searching or not (name == FAIRSEQ or name.startswith(f"{PACKAGE}.")):
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            execute = self._fairseq if name == FAIRSEQ else self._own
            whole = functools.partial(execute, spec.loader.exec_module)
            setattr(spec.loader, "exec_module", whole)  # noqa: B010  (of this loader, not of its class)
        return spec

    def _fairseq(self, execute: Execute, module: ModuleType) -> None:
        with root_logger_unchanged():
            with deferred_modules():
                execute(module)
            self._register()

    def _own(self, execute: Execute, module: ModuleType) -> None:
        with nothing_collected():
            self.inside += 1
            try:
                execute(module)
            finally:
                self.inside -= 1
            if FAIRSEQ in sys.modules:
                self._register()

    def _register(self) -> None:
        if self.inside == 0:
            importlib.import_module(REGISTRATION)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Keeps the garbage collector from looking at what imports make, which stays: that takes 0.2 seconds.

    At the end it is among the old objects, which the collector looks at last, unless the program has frozen some.
    """
    if not gc.isenabled():
        yield
        return
    # To count many takes milliseconds: once for all nested imports.
    frozen = gc.get_freeze_count()
    gc.disable()
    try:
        yield
    finally:
        if not frozen:
            gc.freeze()
            gc.unfreeze()
        gc.enable()


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


def quieten_hydra() -> None:
    """Hides the warnings that hydra and PyTorch's data loader give at every start of fairseq."""
    logging.getLogger("hydra").setLevel(logging.INFO)
    for message in (r"\s*'config' is validated against", "'pin_memory' argument is set as true"):
        warnings.filterwarnings("ignore", message, UserWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module="hydra")


def printable(text: str) -> str:
    """A text without characters that a terminal obeys or hides, as names of files may have them: they are escaped."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


class OneLine(logging.Formatter):
    """Messages of the log in one line each; a traceback behind one has its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def set_up_log(level: int | str = logging.WARNING) -> None:
    """The log of a tool: messages of this package from ``level`` on, and warnings of everything else."""
    quieten_hydra()
    # Before fairseq is imported, which would set up a handler for the level DEBUG.
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s | %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger(PACKAGE).setLevel(level)
