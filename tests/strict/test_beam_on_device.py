"""Beam search that a GPU does alone, on a card or the strict device: stock's n-best list, in captured steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.graphs.capture import made
from fairseq_aggdec.kernels.library import VARIABLE
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import Case
from tests.strict.test_methods import SIZES, assert_equal
from tests.support import make_batch, random_sources, trained_copier

OPTIONS: dict[str, dict[str, Any]] = {
    "lengths": {"min_len": 6, "max_len_a": 0.5, "max_len_b": 4},
    "scores": {"unkpen": 2.0, "lenpen": 0.3, "temperature": 2.5},
    "unnormalized, unknown words": {"unnormalized": True, "unkpen": -4.0},
    "source length": {"match_source_len": True},
    "no repetition": {"no_repeat_ngram_size": 2},
}
PREFIX = ((9, 8, 7), (10, 1, 1), (5, 6, 2), (3, 3, 3))


@pytest.fixture(scope="module")
def copier() -> Any:
    return trained_copier()[1]


def check(
    case: Case, models: list[Any], samples: list[Any], gpu: torch.device, folder: Path
) -> None:
    """Decodes batches twice with one generator: steps are captured, and replayed with other numbers."""
    before = made.graphs
    ready = device_cases.prepared(case, models, None, folder, gpu)
    wanted = device_cases.expected(case, models, None, folder, samples)
    for sample, reference in 2 * list(zip(samples, wanted, strict=True)):
        prefix = device_cases.prefix_of(case, len(sample["id"]))
        assert_equal(ready.decode(sample, prefix), reference, gpu)
    assert made.graphs > before
    assert ready.generator.device_loop.board is not None and not ready.generator.searches


# Sentences of one batch end at different times, so that rows move to a smaller grid.
@pytest.mark.parametrize("beam", [2, 3, 5, 7, 10])
def test_beams(beam: int, copier: Any, gpu: torch.device, tmp_path: Path) -> None:
    samples = [make_batch(random_sources(beam, 5, 24)), make_batch(random_sources(9, 1, 24))]
    case = Case("beam", "beam", generation={"beam": beam, "max_len_b": 30})
    check(case, [copier], samples, gpu, tmp_path)


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, copier: Any, gpu: torch.device, tmp_path: Path) -> None:
    samples = [make_batch(random_sources(23, 3, 15))]
    generation = {"beam": 4, "max_len_b": 20} | OPTIONS[name]
    case = Case(name, "beam", generation=generation, stock=name != "no repetition")
    check(case, [copier], samples, gpu, tmp_path)


def test_prefixes(copier: Any, gpu: torch.device, tmp_path: Path) -> None:
    case = Case("prefix", "beam", generation={"beam": 3, "min_len": 5}, prefix=PREFIX)
    check(case, [copier], [make_batch(random_sources(24, 4))], gpu, tmp_path)


def test_two_models(gpu: torch.device, tmp_path: Path) -> None:
    case = Case("two models", "beam", generation={"beam": 3}, models=2)
    models, _ = device_cases.random_models(case, SIZES)
    check(case, models, [device_cases.batch(1, 2)], gpu, tmp_path)


def test_operators_in_place_of_the_kernel(
    copier: Any, gpu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "none")
    case = Case("operators", "beam", generation={"beam": 3, "max_len_b": 30})
    check(case, [copier], [make_batch(random_sources(4, 5, 24))], gpu, tmp_path)


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
    assert ready.generator.device_loop is None
    assert_equal(found, device_cases.expected(case, models, None, tmp_path, [sample])[0], gpu)
