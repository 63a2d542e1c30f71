"""Makes every registered fairseq task decode with the plugin, by a subclass of it under the same name.

The entries of fairseq's task registries are replaced; no class or function of fairseq is changed. Unless the plugin is
enabled in this process (:func:`is_enabled`), an entry builds the original task, with its own options.
"""

import argparse
import functools
import logging
import os
import types
from collections.abc import Iterable
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any, ClassVar

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY, FairseqTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.utils import import_user_module
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import OmegaConf

from fairseq_aggdec.methods.config import DecodingConfig, add_decoding_options
from fairseq_aggdec.tasks.decoding_options import NAMES
from fairseq_aggdec.tasks.decoding_task import DecodingTask
from fairseq_aggdec.tasks.translation_aggdec import CheckpointPaths

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parents[1]
_enabled: list[bool] = []


def is_enabled() -> bool:
    """Tells whether this process decodes with the plugin: by ``--user-dir``, an ``aggdec`` command, or ``adopt()``."""
    folders = getattr(import_user_module, "memo", ())  # of the user-dirs so far
    return bool(_enabled) or any(os.path.realpath(folder) == str(PACKAGE) for folder in folders)


def enable() -> None:
    """Makes every task that is registered by now decode with the plugin, in this process."""
    take_over_tasks()
    _enabled[:] = [True]


class TakenOver(DecodingTask):
    """Mixin of the subclass that :func:`taken_over` makes of a task.

    Attributes:
        taken_over: the original task class.
    """

    taken_over: ClassVar[type[FairseqTask]]

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Serves pickle and copy, which would look for this class under the name of the task that it stands for."""
        return _empty, (self.taken_over, self.kind), self.__getstate__()

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """A task of this class, or of the original one if the plugin is not enabled or names collide."""
        if not is_enabled() or _has_own_names(cls.taken_over, cls.kind):
            return cls.taken_over.setup_task(cfg, **kwargs)
        return super().setup_task(cfg, **kwargs)

    @classmethod
    def _set_up(cls, cfg: Any, **kwargs: Any) -> Any:
        """The original task, which becomes one of this class unless names of its attributes collide."""
        task: Any = cls.taken_over.setup_task(cfg, **kwargs)
        if type(task) is cls.taken_over and not _has_own_names(type(task), cls.kind, vars(task)):
            task.__class__ = cls
            task.begin()
        return task

    @classmethod
    def add_args(cls, parser: Any) -> None:
        cls.taken_over.add_args(parser)
        if is_enabled():
            parser_of_ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
            add_decoding_options(parser_of_ours)
            for action in parser_of_ours._actions:
                if not set(action.option_strings) & parser._option_string_actions.keys():
                    parser._add_action(action)


def _empty(task: Any, name: str) -> TakenOver:
    """An empty object of the subclass that :func:`taken_over` makes, for pickle to fill in."""
    kind = taken_over(task, name)
    return kind.__new__(kind)


def adopt(thing: Any = None, **options: Any) -> Any:
    """Has something of fairseq decode with the plugin: what stock gives, faster.

    Args:
        thing: a model of fairseq's hub or a task, which is changed; a generator, in whose place another is given; None:
            every task that is registered by now, in this process.
        **options: of the plugin, with ``_`` for ``-``: ``decoding="iad"``, ``draft_from="none"``, ... A call of the hub
            takes them too, and these count.

    Returns:
        `thing`, or the generator. One that is not stock beam search comes back as it is; the log says why.

    Raises:
        TypeError: an option that there is not, or a thing that decodes nothing.
    """
    unknown = [name for name in options if name not in NAMES]
    if unknown or (thing is None and options):
        raise TypeError(f"there is no option {unknown[0]!r}" if unknown else "options of what?")
    if thing is None:
        enable()
    elif isinstance(thing, FairseqTask):
        _adopt_task(thing, options)
    elif isinstance(getattr(thing, "task", None), FairseqTask):
        _adopt_task(thing.task, options)
    elif hasattr(thing, "generate"):
        alone = GeneratorTask(thing, options)
        return alone.build_generator(
            alone.models, argparse.Namespace(beam=getattr(thing, "beam_size", 1))
        )
    else:
        raise TypeError(
            f"a {type(thing).__name__} decodes nothing: give a model of the hub, a task or a generator"
        )
    return thing


def _has_own_names(task: Any, name: str, more: Iterable[str] = ()) -> bool:
    """Tells whether a task, or one object of it (``more``), has attributes of the names of ours and has to stay as it
    is."""
    ours = names_of(TakenOver) - names_of(FairseqTask)
    if clashing := sorted(ours & {*names_of(task), *more}):
        logger.warning(
            "--task %s is left to stock fairseq: it has a %s of its own", name, clashing[0]
        )
    return bool(clashing)


@functools.cache
def names_of(cls: type) -> frozenset[str]:
    """Names of the attributes of a class, and of those that it declares for its objects."""
    names = {name for base in cls.__mro__ for name in vars(base)}
    names.update(*(vars(base).get("__annotations__", ()) for base in cls.__mro__))
    return frozenset(name for name in names if not name.startswith("__"))


def _adopt_task(task: Any, options: dict[str, Any]) -> None:
    if not isinstance(task, DecodingTask):
        kind: Any = type(task)
        names = [
            name for name, one in TASK_REGISTRY.items() if getattr(one, "taken_over", one) is kind
        ]
        name = names[0] if names else kind.__name__
        if _has_own_names(kind, name, vars(task)):
            return
        task.__class__ = taken_over(kind, name)
        task.begin()
    task.options_from_python = options


class GeneratorTask(DecodingTask):
    """The task of a generator that exists without one: models and dictionaries are those of the generator."""

    kind = "generator"

    def __init__(self, generator: Any, options: dict[str, Any]):
        self.stock, self.options_from_python = generator, options
        super().__init__(None)

    @property
    def models(self) -> list[Any]:
        return list(getattr(getattr(self.stock, "model", None), "models", ()))

    @property
    def source_dictionary(self) -> Any:
        return next((getattr(model.encoder, "dictionary", None) for model in self.models), None)

    @property
    def target_dictionary(self) -> Any:
        return self.stock.tgt_dict

    def _build_stock(self, models: Any, args: Any, call_options: Any) -> Any:
        return self.stock


class WithArgs(FairseqTask):
    """Gives ``args`` to a task that reads its options there, although fairseq sets ``cfg``."""

    @property
    def args(self) -> Any:
        return self.cfg


def take_over_tasks() -> None:
    """Replaces the entries of all tasks that are registered by now; again, those that came since."""
    for name, task in list(TASK_REGISTRY.items()):
        if not issubclass(task, DecodingTask):
            TASK_REGISTRY[name] = taken_over(task, name)
            _extend_config(name)


@functools.cache
def taken_over(task: type[FairseqTask], name: str) -> type[TakenOver]:
    """The subclass that stands for a task under its name."""
    repairs = [WithArgs] if issubclass(task, TranslationFromPretrainedBARTTask) else []
    config = getattr(task, "__dataclass", None)
    flags = _flags(task) if config is None else {field.name for field in fields(config)}
    body = {
        "kind": name,
        "taken_over": task,
        "hidden": frozenset(NAMES) & flags,
        "__module__": task.__module__,
        "__qualname__": task.__qualname__,
        "__doc__": task.__doc__,
        "__dataclass": config,
    }
    made: type[TakenOver] = types.new_class(
        task.__name__, (TakenOver, *repairs, task), exec_body=lambda space: space.update(body)
    )
    return made


def _flags(task: type[FairseqTask]) -> set[str]:
    """Names of the options that a task without a configuration class declares."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    task.add_args(parser)
    return {action.dest for action in parser._actions}


class LazyConfigNode(ConfigNode):
    """A task's configuration in hydra's store, built at its first use: those of all tasks take 0.2 seconds.

    Args:
        name: of the task.
        config: its class.
    """

    def __init__(self, name: str, config: type[FairseqDataclass]):
        self.name, self.group, self.package, self.provider = f"{name}.yaml", "task", None, "fairseq"
        self.config = config

    def __getattr__(self, name: str) -> Any:
        if name != "node":
            raise AttributeError(name)
        made: Any = self.config()
        made._name = self.name.removesuffix(".yaml")
        self.node = OmegaConf.structured(made)
        return self.node


def _extend_config(name: str) -> None:
    """Adds the plugin's options to a task's configuration, where it has one; those of its own stay what they are."""
    config = TASK_DATACLASS_REGISTRY.get(name)
    if config is None:
        return
    extended: type[FairseqDataclass] = make_dataclass(
        config.__name__,
        [],
        bases=(config, DecodingConfig, CheckpointPaths),
        namespace={"__module__": config.__module__, "__doc__": config.__doc__},
    )
    TASK_DATACLASS_REGISTRY[name] = extended
    ConfigStore.instance().repo["task"][f"{name}.yaml"] = LazyConfigNode(name, extended)
