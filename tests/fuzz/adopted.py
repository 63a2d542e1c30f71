"""Random tasks, models, options and calls, for stock fairseq's generator and the one that ``adopt()`` makes of it.

A case is a function of its number. The same calls go to both generators, between which fields and models change.
"""

from __future__ import annotations

import copy
import functools
import random
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf

from tests.fuzz.between_calls import FIELDS, MODELS
from tests.fuzz.cases import UNUSUAL, transformer_shape
from tests.pipelines.making import (
    SIZES,
    SPEECH_SIZES,
    forgotten,
    stock_repaired,
    write_model,
    write_speech,
    write_text,
)
from tests.random_models import make_dictionary, make_model, make_task, stir

MANY = "--langs de,en --lang-pairs de-en,en-de --encoder-langtok src --decoder-langtok"
# Task, architecture, flags, sizes.
PIPELINES: dict[str, tuple[str, str, str, list[str]]] = {
    "multi": ("translation_multi_simple_epoch", "transformer", MANY + " -s de -t en", SIZES),
    "multi, start and end": (
        "translation_multi_simple_epoch",
        "transformer",
        MANY + " --lang-tok-replacing-bos-eos -s de -t en",
        SIZES,
    ),
    "multilingual": (
        "multilingual_translation",
        "multilingual_transformer",
        "--lang-pairs de-en,en-de --encoder-langtok tgt --decoder-langtok -s de -t en",
        SIZES,
    ),
    "mBART": (
        "translation_from_pretrained_bart",
        "mbart_base",
        "--langs de,en --prepend-bos -s de -t en",
        SIZES,
    ),
    "BART": ("translation", "bart_base", "-s de -t en", SIZES),
    "aligned": ("translation", "transformer_align", "-s de -t en", SIZES),
    "speech": ("speech_to_text", "s2t_transformer", "", SPEECH_SIZES),
}
VALUES: dict[str, tuple[Any, ...]] = {
    "max_len_a": (0.0, 0.5, 1.2),
    "max_len_b": (12, 20, 5, 1, 0),
    "max_len": (0, 9, 3),
    "min_len": (1, 0, 3, 7),
    "lenpen": (1.0, 0.6, 0.0, -1.0, 2.5),
    "unkpen": (0.0, 1.0, -0.5, -3.0, float("inf")),
    "temperature": (1.0, 0.5, 3.0),
    "unnormalized": (False, True),
    "no_repeat_ngram_size": (0, 2, 3),
    "match_source_len": (False, True),
    "retain_iter_history": (False, True),
    "sacrebleu": (False, True),
    "nbest": (1, 3, 50),
}


@dataclass
class Place:
    """A task with what makes its models and its sentences."""

    task: Any
    model: Callable[[random.Random], Any]
    items: Callable[[random.Random, int], Any]
    speech: bool = False


@functools.cache
def folder() -> Path:
    return Path(tempfile.mkdtemp())


@functools.cache
def pipeline(name: str) -> Place:
    """A task of fairseq with a test set on the disk, and random models of its shape."""
    task, arch, flags, sizes = PIPELINES[name]
    data = folder() / name
    speech = task == "speech_to_text"
    written = write_speech(data) if speech else write_text(data, ["de", "en"])
    path = write_model(data / "m.pt", written, task, arch, *shlex.split(flags), *sizes)
    changes = {"data": str(written)}
    if not speech:
        changes |= {"source_lang": "de", "target_lang": "en"}
    with forgotten(), stock_repaired():
        _, cfg, loaded = checkpoint_utils.load_model_ensemble_and_task([str(path)], changes)
        loaded.load_dataset("test")
    dataset = loaded.dataset("test")
    dataset.ordered_indices()

    def model(chance: random.Random) -> Any:
        options, seed = copy.deepcopy(cfg.model), chance.randrange(1 << 30)
        for name in ("encoder_normalize_before", "decoder_normalize_before"):
            setattr(options, name, chance.random() < 0.5)
        options.decoder_layers = chance.choice((1, 2, 3))
        torch.manual_seed(seed)
        with forgotten(), stock_repaired():
            made = loaded.build_model(options)
        stir(made, seed)
        return made

    def items(chance: random.Random, count: int) -> Any:
        chosen = [chance.randrange(len(dataset)) for _ in range(count)]
        return dataset.collater([dataset[number] for number in chosen])

    return Place(loaded, model, items, speech=speech)


def translation(chance: random.Random) -> Place:
    """Dictionaries and models of any size, sentences of any words."""
    words = chance.choice(((36, 36), (7, 9), (36, 12), (120, 70), (5, 3)))
    source, target = (make_dictionary([f"w{i}" for i in range(count)]) for count in words)
    task = make_task("stock", source, target)

    def model(chance: random.Random) -> Any:
        seed = chance.randrange(1 << 30)
        usual = chance.random() > 0.08
        shape = transformer_shape(chance, words) if usual else dict(chance.choice(UNUSUAL))
        return make_model(task, seed, shape.pop("arch", "transformer"), **shape)

    def items(chance: random.Random, count: int) -> Any:
        special = [source.unk()] * (chance.random() < 0.3)
        types = [*range(source.nspecial, len(source)), *special]
        longest = chance.choice((1, 5, 12, 30))
        rows = [
            torch.tensor([*chance.choices(types, k=chance.randint(0, longest)), source.eos()])
            for _ in range(count)
        ]
        lengths = torch.tensor([len(row) for row in rows])
        left = chance.random() < 0.5
        tokens = data_utils.collate_tokens(rows, source.pad(), source.eos(), left_pad=left)
        net_input = {"src_tokens": tokens, "src_lengths": lengths}
        return {"id": torch.arange(count) + 5, "net_input": net_input, "target": None}

    config = TranslationConfig(data="", source_lang="src", target_lang="tgt")
    return Place(TranslationTask(config, source, target), model, items)


def place_of(chance: random.Random) -> tuple[str, Place]:
    name = chance.choice((*("translation",) * len(PIPELINES), *PIPELINES))
    return name, translation(chance) if name == "translation" else pipeline(name)


def options_of(chance: random.Random, place: Place) -> dict[str, Any]:
    given: dict[str, Any] = {"beam": chance.choice((1, 1, 2, 3, 4, 5, 8))}
    for name, values in VALUES.items():
        if chance.random() < 0.2:
            given[name] = chance.choice(values)
    if given.get("max_len_b", 200) == 200:
        given["max_len_b"] = 14
    if given.get("match_source_len"):
        given["min_len"] = min(given.get("min_len", 1), 1)
    if chance.random() < 0.15:
        given["print_alignment"] = chance.choice(("hard", "soft"))
    given["min_len"] = min(given.get("min_len", 1), given["max_len_b"])
    return given


# -- samples and arguments of a call


def altered_sample(chance: random.Random, sample: Any, place: Place, pad: int, eos: int) -> Any:
    sample = dict(sample, net_input=dict(sample["net_input"]))
    net_input = sample["net_input"]
    if chance.random() < 0.15:
        sample.pop("id", None)
    if place.speech:
        return sample
    tokens = net_input["src_tokens"]
    kind = chance.random()
    if kind < 0.06:
        net_input["src_tokens"] = tokens.int()
    elif kind < 0.12:
        more = tokens.new_full((len(tokens), 2), pad)
        net_input["src_tokens"] = torch.cat([more, tokens], 1)
    elif kind < 0.18:
        more = tokens.new_full((len(tokens), 2), pad)
        net_input["src_tokens"] = torch.cat([tokens, more], 1)
    elif kind < 0.22:
        net_input.pop("src_lengths", None)
    elif kind < 0.26:
        row = chance.randrange(len(tokens))
        tokens = tokens.clone()
        tokens[row] = chance.choice((pad, eos))
        net_input["src_tokens"] = tokens
    elif kind < 0.3:
        net_input["prev_output_tokens"] = tokens[:, :1]
    elif kind < 0.33:
        net_input["src_tokens"] = tokens.t().contiguous().t()
    return sample


def prefixes(chance: random.Random, rows: int, dictionary: Any, ends: bool) -> Any:
    """Forced tokens; ``ends``: also </s>, of which stock repeats the best hypothesis without its attention."""
    if chance.random() < 0.65:
        return None
    size = chance.choice((1, 1, 2, 4, 20))
    types = [*range(4, len(dictionary)), dictionary.unk(), dictionary.bos()]
    shape = chance.random()
    found = []
    for _ in range(rows):
        length = size if shape < 0.4 else chance.randint(0, size)
        row = [chance.choice(types) for _ in range(length)]
        row += [dictionary.pad()] * (size - length)
        if shape > 0.85:
            chance.shuffle(row)  # free places before forced ones
        if ends and 0.75 < shape < 0.85 and length:
            row[length - 1] = dictionary.eos()
        found.append(row)
    return torch.tensor(found)


@dataclass
class Call:
    """One call of a generator, with what changes before it."""

    sample: Any
    prefix: Any
    kwargs: dict[str, Any]
    how: str
    fields: list[Any] = field(default_factory=list)
    models: list[Any] = field(default_factory=list)

    def make(self, task: Any, generator: Any, models: Any) -> Any:
        sample = copy.deepcopy(self.sample)
        if isinstance(generator, GeneratorHubInterface):
            rows = sample["net_input"]["src_tokens"].long()
            return generator.generate(
                [row[row != task.source_dictionary.pad()] for row in rows], **self.kwargs
            )
        prefix = None if self.prefix is None else self.prefix.clone()
        if self.how == "step":
            return task.inference_step(generator, models, sample, prefix_tokens=prefix)
        if self.how == "step, constraints":
            return task.inference_step(
                generator, models, sample, prefix_tokens=prefix, constraints=None
            )
        if self.how == "forward":  # which aligns nothing
            return generator(sample, prefix, **self.kwargs)
        if self.how == "inference mode":
            with torch.inference_mode():
                return generator.generate(models, sample, prefix_tokens=prefix, **self.kwargs)
        return generator.generate(models, sample, prefix_tokens=prefix, **self.kwargs)


@dataclass
class Case:
    """Everything about a case; what makes its models is a number for each."""

    seed: int

    def __post_init__(self) -> None:
        chance = self.chance = random.Random(self.seed)
        self.name, self.place = place_of(chance)
        count = chance.choice((1, 1, 1, 2, 3))
        self.seeds = [chance.randrange(1 << 30) for _ in range(count)]
        self.options = options_of(chance, self.place)
        self.own: dict[str, Any] = {}
        if chance.random() < 0.3:
            self.own["draft_from"] = "none"
        if chance.random() < 0.1:
            self.own["low_memory"] = True
        self.by = chance.choice(("task", "task", "generator", "hub"))
        if self.by == "hub" and (self.place.speech or self.name.startswith("multi")):
            self.by = "task"  # stock's hub fails
        self.dtype = torch.float32
        if chance.random() < 0.15:
            self.dtype = chance.choice((torch.bfloat16, torch.float16))
        self.calls = [self._call(number) for number in range(chance.choice((1, 1, 2, 3)))]

    def _call(self, number: int) -> Call:
        chance, place = self.chance, self.place
        rows = chance.choice((1, 1, 2, 3, 5))
        target = place.task.target_dictionary
        items = place.items(chance, rows)
        sample = altered_sample(chance, items, place, target.pad(), target.eos())
        kwargs: dict[str, Any] = {}
        if chance.random() < 0.2:
            kwargs["bos_token"] = chance.randrange(len(target))
        how = chance.choice(
            ("step", "step", "step, constraints", "generate", "forward", "inference mode")
        )
        if how == "forward" and "print_alignment" in self.options:
            how = "generate"  # else attention is asked for of models that have none
        ends = "print_alignment" not in self.options
        call = Call(sample, prefixes(chance, rows, target, ends), kwargs, how)
        if (
            self.by == "hub"
        ):  # which makes a generator for each call; no blocker of a test can be put into it
            call.prefix, call.kwargs = None, self.options | {"no_repeat_ngram_size": 0}
        elif self.options.get("no_repeat_ngram_size"):
            call.prefix = None  # docs/exactness.md says where a forced token differs
        if self.by != "hub" and chance.random() < (0.15, 0.4)[number > 0]:
            change = chance.choice(FIELDS)(chance)
            # BART is told the beam when stock is built, and mixes sentences with another.
            if "BART" not in self.name or "beam_size" not in change.__name__:
                call.fields.append(change)
        if number and chance.random() < 0.3:
            call.models.append(chance.choice(MODELS))
        return call

    def models(self) -> list[Any]:
        found = [self.place.model(random.Random(seed)) for seed in self.seeds]
        return [model.eval().to(self.dtype) for model in found]

    def hub(self, task: Any, models: list[Any]) -> GeneratorHubInterface:
        """The models as ``torch.hub`` gives them."""
        return GeneratorHubInterface(OmegaConf.structured(FairseqConfig()), task, models)

    def __str__(self) -> str:
        calls = []
        for call in self.calls:
            names = [one.__name__ for one in (*call.fields, *call.models)]
            prefix, (first, *_) = call.prefix, call.sample["net_input"].values()
            given = prefix is not None and prefix.tolist()
            calls.append((call.how, names, given, call.kwargs, len(first)))
        models = f"{len(self.seeds)} models in {self.dtype}"
        return f"{self.seed} {self.name} by {self.by} {models} {self.options} {self.own} {calls}"
