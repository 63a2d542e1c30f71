"""The table of generation rules, decoded on a GPU or the strict device: steps are captured, and replayed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from fairseq_aggdec.search.errors import NonFiniteError
from tests.rule_cases import CASES, RuleCase, expected, models_of
from tests.rule_engines import half_right
from tests.strict.device import cases as device_cases
from tests.strict.test_methods import assert_equal
from tests.support import generation_options, make_task

# Each case once, with its first beam or its last in turn. Tokens of equal scores are no others than the table's other
# engines find.
ROWS = [
    (case, case.beams[-(number % 2)])
    for number, case in enumerate(CASES)
    if case.model != "in pairs" and not case.apart
]


@pytest.mark.parametrize(("case", "beam"), ROWS, ids=lambda one: getattr(one, "name", one))
def test_a_gpu_decodes_as_stock(case: RuleCase, beam: int, gpu: torch.device) -> None:
    models = [copy.deepcopy(model).to(gpu) for model in models_of(case.model)]
    dictionary = models[0].decoder.dictionary
    decoding = "greedy" if beam == 1 else "beam"
    task = make_task(decoding, dictionary, dictionary, draft_from="none")
    generator = task.build_generator(models, generation_options(**case.generation(beam)))
    call = case.call()
    if call["prefix_tokens"] is not None:
        call["prefix_tokens"] = call["prefix_tokens"].to(gpu)

    def decoded() -> Any:
        with torch.no_grad():
            return generator.generate(models, device_cases.moved(case.sample(), gpu), **call)

    if case.broken is not None:
        with pytest.raises(NonFiniteError) as error:
            decoded()
        assert error.value.row == case.broken
        return
    wanted = expected(case, beam)
    assert_equal(decoded(), wanted, gpu)
    assert generator.engines[-1][0].name == "board"
    if beam == 1:
        generator.drafter = half_right([ranked[0]["tokens"].tolist() for ranked in wanted])
    assert_equal(decoded(), wanted, gpu)
