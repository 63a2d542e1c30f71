"""Beam search that a GPU does alone, on a card or the strict device: stock's n-best list, in captured steps.

Options are cases of ``tests/rule_cases.py``, which ``test_rule_cases.py`` decodes here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.graphs.capture import made
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.search.beam.on_device import BeamLoop
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import Case
from tests.strict.test_methods import SIZES, assert_equal
from tests.support import make_batch, random_sources

# Of 64 random sources: beams of 2 to 10 take about 12, 5, 8, 10 and 2 steps for them.
ENDING_APART = 9, 22, 36, 24, 42


@pytest.fixture(scope="module")
def model() -> Any:
    """A random model that likes to end, so that sentences of a batch do at different times."""
    (model,), _ = device_cases.random_models(
        Case("beam", "beam"), {"encoder_layers": 1, "decoder_layers": 1}
    )
    with torch.no_grad():
        model.decoder.output_projection.weight[model.decoder.dictionary.eos()] *= 3
    return model


@pytest.fixture(scope="module")
def samples() -> list[Any]:
    """Two batches: what the first has left on the board must not be seen in the second."""
    sources = random_sources(7, 64, 12)
    return [make_batch([sources[i] for i in rows]) for rows in (ENDING_APART, (50, 11))]


def check(
    case: Case, models: list[Any], samples: list[Any], gpu: torch.device, folder: Path
) -> Any:
    """Decodes batches twice with one generator: steps are captured, and replayed with other numbers.

    Returns:
        the loop on the device.
    """
    before = made.graphs
    ready = device_cases.prepared(case, models, None, folder, gpu)
    wanted = device_cases.expected(case, models, None, folder, samples)
    for sample, reference in 2 * list(zip(samples, wanted, strict=True)):
        prefix = device_cases.prefix_of(case, len(sample["id"]))
        assert_equal(ready.decode(sample, prefix), reference, gpu)
    assert made.graphs > before
    assert not vars(ready.generator).get("searches")
    return ready.generator.memory.device_loop


# Rows move to a smaller grid where some have ended.
@pytest.mark.parametrize("beam", range(1, 11))
def test_beams(
    beam: int, model: Any, samples: list[Any], gpu: torch.device, tmp_path: Path
) -> None:
    case = Case("beam", "beam", generation={"beam": beam, "max_len_b": 14})
    loop = check(case, [model], samples, gpu, tmp_path)
    assert isinstance(loop, BeamLoop) == (beam > 1)  # a beam of 1 is greedy decoding
    assert len({rows for rows, *_ in loop.graphs.captured}) > 1


def test_two_models(gpu: torch.device, tmp_path: Path) -> None:
    case = Case("two models", "beam", generation={"beam": 3}, models=2)
    models, _ = device_cases.random_models(case, SIZES)
    check(case, models, [device_cases.batch(1, 2)], gpu, tmp_path)


def test_operators_in_place_of_the_kernel(
    model: Any,
    samples: list[Any],
    gpu: torch.device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "none")
    case = Case("operators", "beam", generation={"beam": 3, "max_len_b": 14})
    check(case, [model], samples, gpu, tmp_path)


@pytest.mark.parametrize("why", ["no graphs", "trees", "history"])
def test_the_host_searches(why: str, gpu: torch.device, tmp_path: Path) -> None:
    history = {"retain_iter_history": why == "history"}
    case = Case(
        why, "beam", task={"no_graphs": why == "no graphs"}, generation={"beam": 3} | history
    )
    models, _ = device_cases.random_models(case, SIZES)
    ready = device_cases.prepared(case, models, None, tmp_path, gpu)
    ready.generator.keeps_trees = why == "trees"
    sample = device_cases.batch(1, 2)
    found = ready.decode(sample, None)
    # Without graphs the compiled library searches, where it is there, and shows nothing.
    assert why == "no graphs" or len(ready.generator.searches) == 2
    assert ready.generator.memory.device_loop is None
    assert_equal(found, device_cases.expected(case, models, None, tmp_path, [sample])[0], gpu)


@pytest.mark.parametrize("decoding, beam", [("beam", 3), ("greedy", 1)])
def test_a_temperature_that_changes(
    decoding: str, beam: int, model: Any, samples: list[Any], gpu: torch.device, tmp_path: Path
) -> None:
    """Captured steps divide by the one that they were captured with."""
    sample, _ = samples
    cold, hot = (
        Case("heat", decoding, generation={"beam": beam, "max_len_b": 14, "temperature": heat})
        for heat in (1.0, 2.5)
    )
    before = made.graphs
    ready = device_cases.prepared(cold, [model], None, tmp_path, gpu)
    for _ in range(3):
        ready.decode(sample, None)
    assert made.graphs > before
    ready.generator.temperature = 2.5
    (wanted,) = device_cases.expected(hot, [model], None, tmp_path, [sample])
    assert_equal(ready.decode(sample, None), wanted, gpu)
