"""The table of generation rules, decoded by every engine of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.search.errors import NonFiniteError
from scripts.forced_drafts import ForcedDrafter
from tests.rule_cases import (
    CASES,
    FIRST_WORD,
    ROWS,
    NBest,
    RuleCase,
    expected,
    models_of,
    searched,
)
from tests.rule_engines import by_windows, half_right, in_library, on_board
from tests.strict.device.bookkeeping import fused_kernels
from tests.support import assert_same, generation_options, make_task


@contextmanager
def without_library() -> Iterator[None]:
    """As where nothing could be compiled at installation: the board decodes."""
    with pytest.MonkeyPatch.context() as patched, on_board():
        patched.setenv(VARIABLE, "none")
        kernels.cache_clear()
        yield
    kernels.cache_clear()


@contextmanager
def with_kernels() -> Iterator[None]:
    """The board decodes by a GPU's kernels, compiled as C++."""
    with fused_kernels(), on_board():
        yield


# How each engine is made to decode.
WAYS = {
    "library": in_library,
    "windows": by_windows,
    "board": on_board,
    "board with kernels": with_kernels,
    "no library": without_library,
}
# Of equal words of a beam PyTorch's topk() takes any.
FIRST_OF_EQUAL = "library", "windows", "board with kernels"
OPERATORS = "windows", "board", "no library"  # attention by PyTorch
Ranked = list[dict[str, Any]]
RUNS = [
    pytest.param(way, case, beam, id=f"{way}-{case.name}-{beam}")
    for way in WAYS
    for case, beam in ROWS
    if not (case.apart and way in OPERATORS)
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
    with WAYS[way]():
        generator = built(case, beam)
        check(generator, way, case, beam)
        assert generator.engines[-1][0].name == engine_of(way)
        if beam == 1 and case.broken is None:
            for generator.drafter in drafters_of(case, way):
                check(generator, way, case, beam)


def engine_of(way: str) -> str:
    return way if way in ("library", "windows") else "board"


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
    if engine_of(way) != "board":
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
