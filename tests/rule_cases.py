"""Generation rules as a table: what is asked for, and of which model. Every engine decodes each case as stock does.

A case names a model that makes its rule matter (one that likes ``<unk>``, one whose words come in equal pairs), the
beams, fairseq's options, and what a call forces. :func:`expected` is the oracle, stock fairseq.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.support import generation_options, make_batch, make_dictionary, make_model, make_task

EOS, UNK, FIRST_WORD = 2, 3, 4
SOURCES = ([5, 6, 7, 8, 9, 10, 11], [12, 13, 14], [20, 24, 26, 30, 20, 21], [3, 9, 3], [33])
THREE_WORDS = ([4, 5, 6], [6], [4, 4, 5, 5, 6])
SPOILT_ROW, SPOILT_SOURCE = 2, 26  # a word that one sentence has
LAYERS = {"encoder_layers": 1, "decoder_layers": 2}
WRONG_WORD = 6  # is drafted and never stands
NBest = list[list[dict[str, Any]]]


# -- models


def ending(seed: int = 45, words: Sequence[str] | None = None) -> Any:
    """Random, and ends sentences at different times."""
    dictionary = make_dictionary(words)
    model = make_model(make_task("stock", dictionary, dictionary), seed, **LAYERS)
    with torch.no_grad():
        model.decoder.output_projection.weight[EOS] *= 2.0
    return model


def liking(token: int, by: float) -> Any:
    """Gives one token a larger logit."""
    model = ending()
    bias = torch.zeros(len(model.decoder.dictionary))
    bias[token] = by
    return with_bias(model, bias)


def with_bias(model: Any, bias: Tensor) -> Any:
    plain = model.decoder.output_projection
    layer = torch.nn.Linear(plain.in_features, plain.out_features)
    layer.weight, layer.bias = plain.weight, torch.nn.Parameter(bias)
    model.decoder.output_projection = layer
    return model.eval()


def in_pairs() -> Any:
    """Every word has a twin with the same scores, behind which everything goes on alike."""
    model = ending()
    with torch.no_grad():
        for weight in (
            model.decoder.embed_tokens.weight,
            model.decoder.output_projection.weight,
        ):
            weight[FIRST_WORD + 1 :: 2] = weight[FIRST_WORD:-1:2]
    return model


def repeating() -> Any:
    """Likes to write again what it has just written."""
    model = ending()
    with torch.no_grad():
        weight = model.decoder.output_projection.weight
        weight += 0.5 * model.decoder.embed_tokens.weight
        weight[EOS] *= 0.3
    return model


def of_few_words() -> Any:
    """Most words are impossible."""
    model = ending()
    bias = torch.full((len(model.decoder.dictionary),), -torch.inf)
    bias[[EOS, UNK, 7, 8, 9, 20, 21]] = 0.0
    return with_bias(model, bias)


def spoilt(name: str, word: int, width: int = 16) -> Any:
    """Has no number in one place of the row of a word."""
    model = ending()
    with torch.no_grad():
        dict(model.named_parameters())[name].view(-1)[word * width] = torch.nan
    return model


def second_word() -> int:
    """Of the first sentence's output; no other sentence has it."""
    first, *others = (ranked[0]["tokens"].tolist() for ranked in expected(CASES[0], 1))
    word: int = first[1]
    assert not any(word in other for other in others)
    return word


MODELS: dict[str, Callable[[], Any]] = {
    "ending": ending,
    "another": lambda: ending(seed=35),
    "unknowing": lambda: liking(UNK, 3.0),
    "padding": lambda: liking(1, 9.0),
    "in pairs": in_pairs,
    "repeating": repeating,
    "three words": lambda: ending(4, ["a", "b", "c"]),
    "few words": of_few_words,
    "no numbers for a source": lambda: spoilt("encoder.embed_tokens.weight", SPOILT_SOURCE),
    "no numbers for a word": lambda: spoilt("decoder.output_projection.weight", 30),
    "no numbers behind a word": lambda: spoilt("decoder.embed_tokens.weight", second_word()),
    "no numbers behind a draft": lambda: spoilt("decoder.embed_tokens.weight", WRONG_WORD),
}


@functools.cache
def models_of(names: str) -> list[Any]:
    return [MODELS[name]() for name in names.split(" + ")]


# -- the table


@dataclass(frozen=True)
class RuleCase:
    """Options of generation, a model for which they matter, and what is forced.

    Attributes:
        name: what the case is about.
        options: as fairseq names them; outputs end at 14 tokens unless they say otherwise.
        model: of :data:`MODELS`, or several that are an ensemble.
        beams: the case is decoded with each.
        prefix: forced tokens of each sentence, ``<pad>`` where one is free.
        start: the start symbol, where it is not ``</s>``.
        sources: without ``</s>``.
        broken: the sentence that ends decoding, as its model gives no numbers for it; None: there is none.
        apart: its model has no numbers for what a row must not see, which PyTorch's attention multiplies by 0.
        idle: the rule changes nothing, and that is the case.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    model: str = "ending"
    beams: tuple[int, ...] = (1, 3)
    prefix: tuple[tuple[int, ...], ...] | None = None
    start: int | None = None
    sources: Sequence[Sequence[int]] = SOURCES
    broken: int | None = None
    apart: bool = False
    idle: bool = False

    def generation(self, beam: int) -> dict[str, Any]:
        return {"max_len_b": 14, "beam": beam} | self.options

    def call(self) -> dict[str, Any]:
        """Arguments of ``generate`` beside the sample."""
        forced = None if self.prefix is None else torch.tensor(self.prefix)
        return {"prefix_tokens": forced, "bos_token": self.start}

    def sample(self) -> dict[str, Any]:
        sample = make_batch(self.sources)
        sample["id"] += 70
        return sample


ONE = ((9,), (10,), (11,), (12,), (13,))
SOME_FREE = ((9, 8, 7), (10, 1, 1), (5, 6, 1), (3, 3, 3), (1, 1, 1))
# Of </s> in the first place stock makes a hypothesis only with a beam of one.
ENDING = ((9, 2, 1), (5, 5, 2), (6, 2, 1), (7, 8, 9), (9, 9, 2))
AT_ONCE = ((2, 1, 1), (5, 5, 2), (2, 2, 1), (7, 8, 9), (9, 9, 2))
TOO_LONG = ((9,) * 30, (5,) * 30, (6, 7) + (1,) * 28, (8,) * 30, (1,) * 30)
FREE = ((1, 1, 1, 1),) * 5
UNKNOWN = ((3, 1), (1, 3), (3, 3), (9, 3), (3, 9))
ALL = (1, 2, 5)

CASES = [
    RuleCase("plain", beams=(1, 2, 3, 4, 5, 7, 10), idle=True),
    RuleCase("one sentence", sources=SOURCES[:1], beams=ALL, idle=True),
    RuleCase("two models", model="ending + another", beams=ALL, idle=True),
    RuleCase("another start symbol", start=5),
    RuleCase("padding is never written", model="padding", beams=ALL, idle=True),
    RuleCase(
        "all but one of the words",
        model="three words",
        beams=(1, 5),
        sources=THREE_WORDS,
        idle=True,
    ),
    RuleCase("words that are impossible", model="few words", beams=(1, 2), idle=True),
    RuleCase("no maximum", {"max_len_b": 200}),
    # Lengths
    RuleCase("nothing", {"max_len_b": 0, "min_len": 0}),
    RuleCase("one token", {"max_len_b": 1}),
    RuleCase("four tokens", {"max_len_b": 4}, beams=ALL),
    RuleCase("half of the source", {"max_len_a": 0.5, "max_len_b": 1}),
    RuleCase("more than the source", {"max_len_a": 1.2, "max_len_b": 0}),
    RuleCase("a minimum", {"min_len": 6}, beams=ALL),
    RuleCase("no minimum", {"min_len": 0}, beams=ALL),
    RuleCase("a long minimum", {"min_len": 12, "max_len_b": 15}, beams=ALL),
    RuleCase("the minimum is the maximum", {"min_len": 9, "max_len_b": 9}),
    RuleCase("a minimum, half of the source", {"min_len": 3, "max_len_a": 0.5, "max_len_b": 1}),
    RuleCase("the length of the source", {"match_source_len": True}, beams=(1, 2, 9)),
    RuleCase("the length of the source, a maximum", {"match_source_len": True, "max_len_b": 3}),
    RuleCase("the length of the source, hot", {"match_source_len": True, "temperature": 2.0}),
    RuleCase("the length of the source, sums", {"match_source_len": True, "unnormalized": True}),
    RuleCase(
        "the length of the source, fewer unknown words",
        {"match_source_len": True, "unkpen": 2.0},
        "unknowing",
    ),
    # Where the length forces it, </s> scores 0, which a rewarded word exceeds.
    RuleCase(
        "unknown words before a free end",
        {"match_source_len": True, "unkpen": -6.0},
        beams=(2, 5),
    ),
    # The unknown word
    RuleCase("unknown words", model="unknowing", beams=ALL, idle=True),
    RuleCase("fewer unknown words", {"unkpen": 1.0}, "unknowing", ALL),
    RuleCase("hardly any unknown words", {"unkpen": 5.0}, "unknowing", ALL),
    RuleCase("no unknown words", {"unkpen": math.inf}, "unknowing", ALL),
    RuleCase("more unknown words", {"unkpen": -3.0}, beams=ALL),
    RuleCase("unknown words throughout", {"unkpen": -20.0, "max_len_b": 5}),
    RuleCase("fewer unknown words, hot", {"unkpen": 1.0, "temperature": 2.0}, "unknowing"),
    RuleCase("fewer unknown words, a minimum", {"unkpen": 1.0, "min_len": 7}, "unknowing"),
    # Scores
    RuleCase("short ones", {"lenpen": 0.0}, beams=ALL),
    RuleCase("rather short ones", {"lenpen": 0.3}),
    RuleCase("long ones", {"lenpen": 2.0}, beams=ALL),
    RuleCase("a negative penalty of length", {"lenpen": -1.0}),
    RuleCase("a penalty of length far out", {"lenpen": 40.0}),
    RuleCase("sums", {"unnormalized": True}, beams=ALL),
    RuleCase("sums, long ones", {"unnormalized": True, "lenpen": 2.0}),
    RuleCase("hot", {"temperature": 2.5}, beams=ALL),
    RuleCase("cold", {"temperature": 0.3}, beams=ALL),
    # Forced prefixes
    RuleCase("a prefix of one token", prefix=ONE, beams=ALL),
    RuleCase("a prefix, some free", prefix=SOME_FREE, beams=ALL),
    RuleCase("a prefix with an end", prefix=ENDING, beams=ALL),
    RuleCase("a prefix that is an end", prefix=AT_ONCE, beams=(1,)),
    RuleCase("a prefix with unknown words", {"unkpen": 2.0}, prefix=UNKNOWN, beams=ALL),
    RuleCase("a prefix without a token", prefix=FREE),
    RuleCase("a prefix without a token, a minimum", {"min_len": 8}, prefix=FREE),
    RuleCase("a prefix, some free, a minimum", {"min_len": 6}, prefix=SOME_FREE, beams=ALL),
    RuleCase("a prefix with an end, a minimum", {"min_len": 6}, prefix=ENDING),
    RuleCase("a prefix, a maximum", {"max_len_b": 2}, prefix=SOME_FREE, beams=ALL),
    RuleCase("a prefix that is too long", prefix=TOO_LONG),
    RuleCase("a prefix that is too long, a maximum", {"max_len_b": 5}, prefix=TOO_LONG),
    RuleCase("a prefix, the length of the source", {"match_source_len": True}, prefix=ONE),
    RuleCase("a prefix, hot, long ones", {"temperature": 2.0, "lenpen": 2.0}, prefix=SOME_FREE),
    RuleCase("a prefix behind another start", prefix=ONE, start=9),
    # N-grams
    *[
        RuleCase(f"no {size}-gram twice", {"no_repeat_ngram_size": size}, "repeating", ALL)
        for size in (1, 2, 3, 4)
    ],
    RuleCase("the start symbol is a word", {"no_repeat_ngram_size": 2}, "repeating", ALL, start=5),
    RuleCase("no 2-gram twice, cold", {"no_repeat_ngram_size": 2, "temperature": 0.5}, "repeating"),
    RuleCase("no 2-gram twice, a minimum", {"no_repeat_ngram_size": 2, "min_len": 8}, "repeating"),
    RuleCase(
        "no 2-gram twice, a maximum", {"no_repeat_ngram_size": 2, "max_len_b": 5}, "repeating"
    ),
    RuleCase("no 1-gram twice, a prefix", {"no_repeat_ngram_size": 1}, "repeating", prefix=ONE),
    RuleCase(
        "no 2-gram twice, the length of the source",
        {"no_repeat_ngram_size": 2, "match_source_len": True},
        "repeating",
    ),
    RuleCase(
        "no 2-gram twice, more unknown words",
        {"no_repeat_ngram_size": 2, "unkpen": -2.0},
        "repeating",
    ),
    # Ties: of equal words the first
    RuleCase("ties", model="in pairs", beams=(1, 2, 3, 5), idle=True),
    RuleCase("ties, a minimum", {"min_len": 8}, "in pairs", ALL),
    RuleCase("ties, hot", {"temperature": 2.0}, "in pairs"),
    RuleCase("ties, a prefix", model="in pairs", prefix=((10,), (12,), (14,), (16,), (18,))),
    # No numbers
    RuleCase("no numbers", model="no numbers for a word", broken=0),
    RuleCase("no numbers for a source", model="no numbers for a source", broken=SPOILT_ROW),
    RuleCase("no numbers behind a word", model="no numbers behind a word", broken=0, beams=(1,)),
    # The end that is forced behind the word scores what the model says.
    RuleCase(
        "no numbers where the end is forced",
        {"max_len_b": 2},
        "no numbers behind a word",
        (1,),
        broken=0,
    ),
    RuleCase(
        "no numbers behind a draft",
        model="no numbers behind a draft",
        beams=(1,),
        apart=True,
        idle=True,
    ),
    # Together
    RuleCase(
        "all scores",
        {"unkpen": 1.0, "lenpen": 0.3, "temperature": 1.5, "min_len": 4},
        "unknowing",
        ALL,
    ),
    RuleCase(
        "all lengths, a prefix",
        {"min_len": 5, "max_len_a": 0.5, "max_len_b": 6, "unnormalized": True},
        prefix=SOME_FREE,
        beams=ALL,
    ),
    RuleCase(
        "two models, all",
        {"min_len": 5, "unkpen": -1.0, "temperature": 1.5, "lenpen": 0.5},
        "ending + another",
    ),
]
ROWS = [(case, beam) for case in CASES for beam in case.beams]


# -- the oracle


class WorkingBlocker(torch.nn.Module):
    """Stock's own block of repeated n-grams, which on a CPU looks at padding, shown what it should look at.

    Of single words it blocks nothing, whatever it is shown.
    """

    def __init__(self, blocker: Any):
        super().__init__()
        self.blocker = blocker

    def forward(self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Any:
        if self.blocker.no_repeat_ngram_size == 1:
            return lprobs.scatter_(1, tokens[:, 1 : step + 1], -math.inf)
        return self.blocker(tokens[:, : step + 1], lprobs, bsz, beam_size, step)


def searched(case: RuleCase, beam: int, blocker: Any = None) -> NBest:
    """The n-best lists of stock fairseq; ``blocker``: what changes log-probabilities at last."""
    models = models_of(case.model)
    dictionary = models[0].decoder.dictionary
    task = make_task("stock", dictionary, dictionary)
    generator = task.build_generator(models, generation_options(**case.generation(beam)))
    if generator.repeat_ngram_blocker is not None:
        generator.repeat_ngram_blocker = WorkingBlocker(generator.repeat_ngram_blocker)
    if blocker is not None:
        generator.repeat_ngram_blocker = blocker
    with torch.no_grad():
        found: NBest = generator.generate(models, case.sample(), **case.call())
    return found


STOCK: dict[tuple[str, int], NBest] = {}


def expected(case: RuleCase, beam: int) -> NBest:
    """What stock finds, searched once."""
    if (case.name, beam) not in STOCK:
        STOCK[case.name, beam] = searched(case, beam)
    return STOCK[case.name, beam]
