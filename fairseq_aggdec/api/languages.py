"""Models of many languages from Python: the task of their checkpoint, and the languages of one call."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fairseq.models import FairseqMultiModel
from fairseq.tasks import TASK_REGISTRY
from fairseq.utils import resolve_max_positions, split_paths
from torch import Tensor

from fairseq_aggdec.pipelines.takeover import adopt
from fairseq_aggdec.stored.checkpoints import check_files
from fairseq_aggdec.stored.options import option
from fairseq_aggdec.tasks.decoding_options import NAMES
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask

if TYPE_CHECKING:
    from fairseq_aggdec.api.calls import Call

MANY = "translation_multi_simple_epoch"  # M2M-100, NLLB, mBART-50
APART = "multilingual_translation"  # an encoder, a decoder and a dictionary for each language


def make_task(cfg: Any, states: Mapping[str, Mapping[str, Any]], trained: Mapping[str, Any]) -> Any:
    """The task of a checkpoint, where it is one of many languages; else the plugin's translation task.

    Args:
        cfg: fairseq's configuration of the translation task.
        states: of the models, by their files.
        trained: the options of the task in the first of them.
    """
    name = option(next(iter(states.values())), "task._name", "task")
    if name not in (MANY, APART):
        return TranslationAggdecTask.setup_task(cfg.task, known=states)
    named = {name: cfg.task[name] for name in (*NAMES, "data", "source_lang", "target_lang")}
    args = Namespace(**{**trained, **named, "bf16": cfg.common.bf16, "path": cfg.common_eval.path})
    _find_moved(args)
    for side in ("left_pad_source", "left_pad_target"):
        if name == APART and hasattr(args, side):
            setattr(args, side, str(getattr(args, side)))  # which fairseq evaluates
    check_files(args, name, chosen=True, known=states)
    kind = TASK_REGISTRY[name]
    task = getattr(kind, "taken_over", kind).setup_task(args)
    if name == APART:
        task.model_lang_pairs = list(args.lang_pairs)  # of decoding fairseq would build one
        _direction(task.model_lang_pairs, args.source_lang, args.target_lang)
    return adopt(task)


def _find_moved(args: Namespace) -> None:
    """Names files that a checkpoint's options name, and that are gone, in the data folder if they are there."""
    for name in ("fixed_dictionary", "lang_dict"):
        path = getattr(args, name, None)
        if path and not Path(path).is_file():
            moved = Path(split_paths(args.data)[0], Path(path).name)
            setattr(args, name, str(moved if moved.is_file() else path))


def _direction(pairs: Sequence[str], source: str, target: str) -> str:
    """The name of a direction that a model was trained with; else ``ValueError``."""
    if f"{source}-{target}" not in pairs:
        raise ValueError(
            f"source_lang={source!r}, target_lang={target!r}: this model translates {', '.join(pairs)}"
        )
    return f"{source}-{target}"


def of_direction(model: Any, source: str, target: str) -> Any:
    """The encoder and decoder of a direction, of a model that has several; else the model."""
    return model.models[f"{source}-{target}"] if isinstance(model, FairseqMultiModel) else model


def first_pair(trained: Mapping[str, Any]) -> Sequence[str | None]:
    """Source and target of the first pair that a model of many languages was trained with; None twice for others."""
    pairs = trained.get("lang_pairs")
    if isinstance(pairs, str):
        pairs = pairs.split(",")
    return str(pairs[0]).split("-", 1) if pairs else (None, None)


class Languages:
    """Describes what a task says and does in one language or another.

    Args:
        task: with the languages that it was loaded with.
        models: of all directions.

    Attributes:
        trained_pair: source and target that the task was loaded with.
        all: those of the model; None: it has its own only.
        targets: what each language can be translated into.
        tags: the target tokens that begin an output and are no part of its text.
        generators: for calls with other languages, or with one hypothesis in place of several, or several of one.
    """

    def __init__(self, task: Any, models: Sequence[Any]):
        self.task, self.settings, self.whole = task, task.settings, models
        self.trained_pair = str(self.settings.source_lang), str(self.settings.target_lang)
        self.all: list[str] | None = None
        self.targets = {
            code: [self.trained_pair[1]] if code == self.trained_pair[0] else []
            for code in self.trained_pair
        }
        self.tags: set[int] = set()
        self.generators: dict[tuple[str, str, bool], Any] = {}
        if task.kind == APART:
            self.all = list(task.dicts)
            pairs = [pair.split("-") for pair in task.model_lang_pairs]
            self.targets = {one: [to for of, to in pairs if of == one] for one in self.all}
        if task.kind == MANY:
            self.all = list(task.langs)
            self.targets = {
                code: [other for other in self.all if other != code] for code in self.all
            }
            # fairseq has read those of two languages; all languages of such a task share one.
            for language in self.all:
                task.data_manager.dicts.setdefault(language, task.target_dictionary)
            tags = [self._tag(language) for language in self.all]
            self.tags = {tag for tag in tags if tag is not None}

    def check(self, call: Call) -> None:
        """Raises ``ValueError`` for a language that the model does not have."""
        for name, trained in zip(("source_lang", "target_lang"), self.trained_pair, strict=True):
            code = getattr(call, name)
            if code in (None, trained) or code in (self.all or ()):
                continue
            there = f"{trained!r} only" if self.all is None else ", ".join(self.all)
            raise ValueError(f"{name}={code!r}: this model has {there}")
        if self.task.kind == APART:
            _direction(self.task.model_lang_pairs, *self.pair(call))

    def pair(self, call: Call) -> tuple[str, str]:
        """Source and target of a call."""
        return call.source_lang or self.trained_pair[0], call.target_lang or self.trained_pair[1]

    def other(self, call: Call) -> bool:
        """Tells whether a call needs another generator than the translator's own."""
        pair = self.pair(call)
        return (
            pair != self.trained_pair
            if self.task.kind == APART
            else pair[1] != self.trained_pair[1]
        )

    def models(self, call: Call) -> list[Any]:
        """Models that decode a call."""
        return [of_direction(model, *self.pair(call)) for model in self.whole]

    def longest(self) -> Any:
        """Tokens of the longest source and of the longest target, in all languages."""
        limits = [one.max_positions() for one in (self.task, *self.whole)]
        alone = [each.values() if isinstance(each, dict) else [each] for each in limits]
        return resolve_max_positions(*chain(*alone))

    def words(self, side: str, language: str | None) -> Any:
        """The dictionary of ``source`` or ``target`` in a language, None: the task's own."""
        if self.task.kind == APART and language is not None:
            return self.task.dicts[language]
        return getattr(self.task, f"{side}_dictionary")

    def dataset(self, tokens: Sequence[Tensor], lengths: Sequence[int]) -> Any:
        """Sources as the task prepares them for the languages that it has now."""
        built = self.task.build_dataset_for_inference(tokens, lengths)
        return built.datasets[built.eval_key] if self.task.kind == APART else built

    def started(self, target: Tensor) -> tuple[int, Tensor]:
        """The token that an output starts with, and the output (T,) behind what the task forces it to begin with."""
        tag = self._tag(self.settings.target_lang) if self.task.kind == MANY else None
        if self.task.kind == APART:
            return int(self.task.get_decoder_langtok(self.settings.target_lang)), target
        if tag is None:
            return self.task.target_dictionary.eos(), target
        if self.settings.lang_tok_replacing_bos_eos:
            return tag, target
        return self.task.target_dictionary.eos(), torch.cat([target.new_tensor([tag]), target])

    @contextmanager
    def of(self, call: Call) -> Iterator[None]:
        """Within it the task has the languages of a call; the caller keeps other threads out."""
        self._set(*self.pair(call))
        try:
            yield
        finally:
            self._set(*self.trained_pair)

    def generator(self, call: Call, generation: Any, beam: int) -> Any:
        """The one for the languages of a call, which the task has now; fairseq's options say the rest."""
        source, target = self.pair(call)
        key = source if self.task.kind == APART else "", target, beam == 1
        if key not in self.generators:
            options = copy.deepcopy(generation)
            options.beam, options.nbest = beam, min(getattr(options, "nbest", 1), beam)
            self.generators[key] = self.task.build_generator(self.models(call), options)
        return self.generators[key]

    def prefix(self, prefixes: Tensor) -> Tensor | None:
        """The forced tokens (B, P) of a batch behind the tag of the language; None where nothing is forced."""
        if not prefixes.numel():
            return None  # the task itself puts the tag there
        if self.task.kind != MANY or self.settings.lang_tok_replacing_bos_eos:
            return prefixes
        tag = self._tag(self.settings.target_lang)
        if tag is None:
            return prefixes
        return torch.cat([prefixes.new_full((len(prefixes), 1), tag), prefixes], 1)

    def _set(self, source: str, target: str) -> None:
        if self.all is not None:
            self.settings.source_lang, self.settings.target_lang = source, target

    def _tag(self, language: str) -> int | None:
        _, spec = self.settings.langtoks["main"]
        tag: int | None = self.task.data_manager.get_decoder_langtok(language, spec)
        return tag
