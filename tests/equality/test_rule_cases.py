"""The table of generation rules, decoded by every engine of a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.search.engines import ENGINES
from fairseq_aggdec.search.errors import NonFiniteError
from scripts.forced_drafts import ForcedDrafter
from tests.rule_cases import (
    CASES,
    FIRST_WORD,
    ROWS,
    NBest,
    RuleCase,
    expected,
    half_right,
    models_of,
    only,
    searched,
)
from tests.strict.device.bookkeeping import fused_kernels
from tests.support import assert_same, generation_options, make_task


@contextmanager
def without_library() -> Iterator[None]:
    """As where nothing could be compiled at installation."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(VARIABLE, "none")
        kernels.cache_clear()
        yield
    kernels.cache_clear()


# How each engine is made to decode, and its name in the list of engines: of greedy search, and of beam search.
WAYS: dict[str, tuple[Callable[[], Any], str, str | None]] = {
    "library": (nullcontext, "library", "library"),
    "board": (nullcontext, "board", "board"),
    "board with kernels": (fused_kernels, "board", "board"),
    "python": (nullcontext, "python", None),
    "no library": (without_library, "python", "board"),
}
# Of equal words of a beam PyTorch's topk() takes any.
FIRST_OF_EQUAL = "library", "board with kernels"
OPERATORS = "board", "no library"  # attention by PyTorch
Ranked = list[dict[str, Any]]
KNOWN = {engine.name for engine in ENGINES}
RUNS = [
    pytest.param(way, case, beam, id=f"{way}-{case.name}-{beam}")
    for way, (_, greedy, of_beam) in WAYS.items()
    for case, beam in ROWS
    if (greedy if beam == 1 else of_beam) in KNOWN and not (case.apart and way in OPERATORS)
]


def without_twins(case: RuleCase, ranked: Ranked) -> Ranked:
    """The hypotheses with the first of each pair of words in place of the other, where words come in pairs."""
    if case.model != "in pairs":
        return ranked
    return [hypothesis | {"tokens": first_of_pairs(hypothesis["tokens"])} for hypothesis in ranked]


def first_of_pairs(tokens: torch.Tensor) -> torch.Tensor:
    return torch.where(tokens >= FIRST_WORD, tokens - tokens % 2, tokens)


def assert_first_of_pairs(found: NBest) -> None:
    for best, *_ in found:
        assert torch.equal(best["tokens"], first_of_pairs(best["tokens"]))


def built(case: RuleCase, beam: int) -> Any:
    models = models_of(case.model)
    dictionary = models[0].decoder.dictionary
    decoding = "greedy" if beam == 1 else "beam"
    task = make_task(decoding, dictionary, dictionary, draft_from="none")
    return task.build_generator(models, generation_options(**case.generation(beam)))


@pytest.mark.parametrize(("way", "case", "beam"), RUNS)
def test_every_engine_decodes_as_stock(way: str, case: RuleCase, beam: int) -> None:
    ready, greedy, of_beam = WAYS[way]
    engine = greedy if beam == 1 else of_beam
    assert engine is not None
    with ready(), only(engine):
        generator = built(case, beam)
        check(generator, way, case, beam)
        assert generator.engines[-1][0].name == engine
        if beam == 1 and case.broken is None:
            for generator.drafter in drafters_of(case, way):
                check(generator, way, case, beam)


def check(generator: Any, way: str, case: RuleCase, beam: int) -> None:
    models = models_of(case.model)
    if case.broken is not None:
        with pytest.raises(NonFiniteError) as error:
            generator.generate(models, case.sample(), **case.call())
        assert error.value.row == case.broken
        return
    found = generator.generate(models, case.sample(), **case.call())
    if case.model == "in pairs" and (beam == 1 or way in FIRST_OF_EQUAL):
        assert_first_of_pairs(found)
    for own, theirs in zip(found, expected(case, beam), strict=True):
        assert_same(*(without_twins(case, hypotheses) for hypotheses in (own, theirs)))


def drafters_of(case: RuleCase, way: str) -> list[Any]:
    """Right and wrong drafts, and trees, which a board does not take."""
    outputs = [ranked[0]["tokens"].tolist() for ranked in expected(case, 1)]
    drafters: list[Any] = [half_right(outputs)]
    if WAYS[way][1] != "board":
        types = len(models_of(case.model)[0].decoder.dictionary)
        numbered = dict(enumerate(outputs, start=70))
        drafters += [ForcedDrafter(kind, 4, types, numbered) for kind in ("tree", "random-tree")]
    return drafters


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_rule_matters(case: RuleCase) -> None:
    """Stock writes something else without it, or other scores."""
    if case.idle or case.broken is not None:
        return
    plain = RuleCase(case.name, model=case.model, sources=case.sources)
    beam = case.beams[-1]

    def written(one: RuleCase) -> Any:
        return [
            [(h["tokens"].tolist(), float(h["score"])) for h in own] for own in searched(one, beam)
        ]

    assert written(case) != written(plain)
