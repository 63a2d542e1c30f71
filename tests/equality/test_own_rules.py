"""A generation rule from outside the package, as docs/extending.md has it: an engine applies it, or says why not."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.search.acceptance import TopBeta
from fairseq_aggdec.search.engines import DRAFT_ONLY, INTERLEAVED, LATTICE, choose, gaps_of
from fairseq_aggdec.search.rules import OwnRule
from tests.equality.test_extending import PRINTED
from tests.rule_cases import CASES, RuleCase, expected, models_of, searched
from tests.rule_engines import half_right, in_library, on_board
from tests.support import generation_options, make_task

SOME = {
    case.name: case
    for case in CASES
    if case.name in ("a prefix, some free, a minimum", "more unknown words", "two models")
}
RULE: Any = PRINTED["WrittenBefore"]


def by_hand(written: Tensor, log_probs: Tensor, sentences: int, beam: int, step: int) -> Tensor:
    """The rule in stock's own loop, before it chooses; where a token is forced, it does not hold."""
    for row, line in enumerate(written[:, 1 : step + 1].tolist()):
        for token in line if (log_probs[row] > -torch.inf).sum() > 1 else ():
            log_probs[row, token] -= 0.5
    return log_probs


@functools.cache
def with_rule(name: str, beam: int) -> Any:
    """Stock's n-best lists with the rule."""
    return searched(SOME[name], beam, by_hand)


def built(case: RuleCase, beam: int, method: str, rule: OwnRule) -> Any:
    models = models_of(case.model)
    dictionary = models[0].decoder.dictionary
    task = make_task(method, dictionary, dictionary)
    generator = task.build_generator(models, generation_options(**case.generation(beam)))
    generator.own_rules = (rule,)
    return generator


def decoded(generator: Any, case: RuleCase) -> Any:
    with torch.no_grad():
        return generator.generate(models_of(case.model), case.sample(), **case.call())


@pytest.mark.parametrize(("engine", "name"), [(in_library, "windows"), (on_board, "board")])
@pytest.mark.parametrize("case", list(SOME))
@pytest.mark.parametrize(
    ("method", "beam", "drafts"),
    [("greedy", 1, False), ("greedy", 1, True), ("beam", 1, False), ("beam", 3, False)],
)
def test_every_engine_applies_it(
    engine: Any, name: str, case: str, method: str, beam: int, drafts: bool
) -> None:
    generator = built(SOME[case], beam, method, RULE())
    if drafts:
        outputs = [ranked[0]["tokens"].tolist() for ranked in expected(SOME[case], beam)]
        generator.drafter = half_right(outputs)
    with engine():
        found = decoded(generator, SOME[case])
    assert generator.engines[-1][0].name == name
    for ranked, wanted in zip(found, with_rule(case, beam), strict=True):
        for ours, theirs in zip(ranked, wanted, strict=True):
            assert ours["tokens"].tolist() == theirs["tokens"].tolist()
            torch.testing.assert_close(
                ours["positional_scores"], theirs["positional_scores"], atol=1e-4, rtol=1e-4
            )


def test_both_engines_accept_alike_what_it_leaves() -> None:
    """A relaxed acceptance ranks logits as the rule has changed them."""
    case, found = SOME["more unknown words"], []
    for where in (in_library, on_board):
        generator = built(case, 1, "greedy", RULE())
        generator.accept = TopBeta(3, 2.0)
        generator.drafter = half_right([row[0]["tokens"].tolist() for row in expected(case, 1)])
        with where():
            found.append([row[0]["tokens"].tolist() for row in decoded(generator, case)])
    assert found[0] == found[1]


class WithoutTensors(OwnRule):
    def changes(self, line: Any) -> Any:
        return [(10**6, 1.0)]


@pytest.mark.parametrize("search", [INTERLEAVED, DRAFT_ONLY, LATTICE])
def test_searches_that_take_no_rule(search: str) -> None:
    generator = built(SOME["more unknown words"], 1, "greedy", RULE())
    request = replace(generator._request(), search=search)
    asked = gaps_of(request)
    assert all("takes no generation rule" in str(gap) for _, gap in asked[:-1])
    with pytest.raises(ValueError, match="takes no generation rule"):
        choose(request)


def test_a_rule_without_tensors_and_stock() -> None:
    """The board does not decode without it, nor does stock; a token that there is not is named."""
    case = SOME["more unknown words"]
    generator = built(case, 3, "beam", WithoutTensors())
    with pytest.raises(ValueError, match=r"WithoutTensors.changes\(\) names the token 1000000"):
        decoded(generator, case)
    assert "no on_device" in generator.engines[0][1]
    generator = built(case, 3, "beam", RULE())
    with pytest.raises(ValueError, match="does not have the generation rule WrittenBefore"):
        generator.generate(models_of(case.model), case.sample(), bos_token=torch.tensor([2, 2]))
