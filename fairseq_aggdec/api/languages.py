"""Models of many languages from Python: the task of their checkpoint, and the languages of one call."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from fairseq.tasks import TASK_REGISTRY
from torch import Tensor

from fairseq_aggdec.checkpoints import check_files
from fairseq_aggdec.pipelines.takeover import adopt
from fairseq_aggdec.stored_options import option
from fairseq_aggdec.tasks.asked import NAMES
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask

if TYPE_CHECKING:
    from fairseq_aggdec.api.calls import Call

MANY = "translation_multi_simple_epoch"  # M2M-100, NLLB, mBART-50


def make_task(cfg: Any, state: Mapping[str, Any], trained: Mapping[str, Any]) -> Any:
    """The task of a checkpoint, where it is one of many languages; else the plugin's translation task.

    Args:
        cfg: fairseq's configuration of the translation task.
        state: of the checkpoint.
        trained: the options of the task in it.
    """
    if option(state, "task._name", "task") != MANY:
        return TranslationAggdecTask.setup_task(cfg.task)
    own = {name: cfg.task[name] for name in (*NAMES, "data", "source_lang", "target_lang")}
    args = Namespace(**{**trained, **own, "bf16": cfg.common.bf16, "path": cfg.common_eval.path})
    check_files(args, MANY, chosen=True)
    kind = TASK_REGISTRY[MANY]
    return adopt(getattr(kind, "taken_over", kind).setup_task(args))


def first_pair(trained: Mapping[str, Any]) -> Sequence[str | None]:
    """Source and target of the first pair that a model of many languages was trained with; None twice for others."""
    pairs = trained.get("lang_pairs")
    if isinstance(pairs, str):
        pairs = pairs.split(",")
    return str(pairs[0]).split("-", 1) if pairs else (None, None)


class Languages:
    """What a task says and does in one language or another.

    Args:
        task: with the languages that it was loaded with.

    Attributes:
        own: source and target that the task was loaded with.
        all: those of the model; None: it has its own only.
        tags: the target tokens that begin an output and are no part of its text.
    """

    def __init__(self, task: Any):
        self.task, self.settings = task, task.settings
        self.own = str(self.settings.source_lang), str(self.settings.target_lang)
        self.all: list[str] | None = None
        self.tags: set[int] = set()
        self._generators: dict[tuple[str, bool], Any] = {}
        if task.kind == MANY:
            self.all = list(task.langs)
            # fairseq has read those of two languages; all languages of such a task share one.
            for language in self.all:
                task.data_manager.dicts.setdefault(language, task.target_dictionary)
            tags = [self._tag(language) for language in self.all]
            self.tags = {tag for tag in tags if tag is not None}

    def check(self, call: Call) -> None:
        """Raises ``ValueError`` for a language that the model does not have."""
        for name, own in zip(("source_lang", "target_lang"), self.own, strict=True):
            asked = getattr(call, name)
            if asked in (None, own) or asked in (self.all or ()):
                continue
            there = f"{own!r} only" if self.all is None else ", ".join(self.all)
            raise ValueError(f"{name}={asked!r}: this model has {there}")

    @contextmanager
    def of(self, call: Call) -> Iterator[None]:
        """Within it the task has the languages of a call; the caller keeps other threads out."""
        self._set(call.source_lang or self.own[0], call.target_lang or self.own[1])
        try:
            yield
        finally:
            self._set(*self.own)

    def generator(self, models: Any, generation: Any, beam: int) -> Any:
        """The one for the languages that the task has now; fairseq's options say the rest."""
        key = self.settings.target_lang, beam == 1
        if key not in self._generators:
            options = copy.deepcopy(generation)
            options.beam = beam
            self._generators[key] = self.task.build_generator(models, options)
        return self._generators[key]

    def prefix(self, given: Tensor) -> Tensor | None:
        """The forced tokens (B, P) of a batch behind the tag of the language; None where nothing is forced."""
        if not given.numel():
            return None  # the task itself puts the tag there
        if self.all is None or self.settings.lang_tok_replacing_bos_eos:
            return given
        tag = self._tag(self.settings.target_lang)
        if tag is None:
            return given
        return torch.cat([given.new_full((len(given), 1), tag), given], 1)

    def _set(self, source: str, target: str) -> None:
        if self.all is not None:
            self.settings.source_lang, self.settings.target_lang = source, target

    def _tag(self, language: str) -> int | None:
        _, spec = self.settings.langtoks["main"]
        found: int | None = self.task.data_manager.get_decoder_langtok(language, spec)
        return found
