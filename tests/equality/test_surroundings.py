"""Outputs do not depend on what the caller has set in PyTorch: default dtype and device, inference mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.methods import gad as gad_method
from tests.equality.test_blockwise import chained, headed
from tests.equality.test_gad import VARIANTS, drafter
from tests.equality.test_interleaved import lively
from tests.equality.test_lattice import lattice_model
from tests.random_models import random_tables
from tests.support import generation_options, make_batch, make_model, make_task, random_sources


def plain() -> Any:
    return make_model(make_task(), 5)


# Method, model, options of the method, of generation.
CASES: dict[str, tuple[str, Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "greedy": ("greedy", plain, {}, {}),
    "greedy in 8 bits": ("greedy", plain, {"int8": True}, {}),
    "strict": ("greedy", plain, {"strict": 4}, {}),
    "iad": ("iad", plain, {}, {"unkpen": -0.5}),
    "not packed": ("iad", plain, {"low_memory": True}, {}),
    "top beta": ("iad", plain, {"acceptance": "top-beta:3:2.0"}, {}),
    "gad": ("gad", plain, {}, {}),
    "gad, chain": ("gad", plain, {"draft_tree": "8"}, {}),
    "drafter alone": ("nar", plain, {}, {}),
    "blockwise": ("blockwise", headed, {}, {}),
    "blockwise, tree": ("blockwise", chained, {"draft_tree": "8"}, {}),
    "beam": ("beam", plain, {}, {"beam": 4, "no_repeat_ngram_size": 2}),
    "ensemble": ("beam", plain, {}, {"beam": 4, "temperature": 1.5}),
    "interleaved": ("interleaved", lambda: lively(2, 2), {}, {"beam": 3}),
    "lattice": ("lattice", lattice_model, {}, {}),
    "alignment": ("iad", plain, {}, {"print_alignment": "soft"}),
}


@pytest.fixture(scope="module")
def lattice_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path, task = tmp_path_factory.mktemp("tables") / "lattice", make_task()
    random_tables().save(path, task.source_dictionary, task.target_dictionary, {})
    return str(path)


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    """What is probed once is probed in each surrounding."""
    yield
    torch.set_default_dtype(torch.float32)
    kernels.cache_clear()


def decode(name: str, folder: str, models: list[Any]) -> list[list[dict[str, Any]]]:
    decoding, _, method, options = CASES[name]
    task = make_task(decoding, lattice=folder, drafter_path="drafter.pt", **method)
    generator = task.build_generator(models, generation_options(**options))
    sample = make_batch(random_sources(3, 4))
    return [task.inference_step(generator, models, sample) for _ in range(2)][-1]


def models_of(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    kind = "next, chain, causal" if "chain" in name else "causal"
    drafting = drafter(**VARIANTS[kind])
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafting)
    make = CASES[name][1]
    return [make(), make()] if name == "ensemble" else [make()]


def assert_equal(found: list[list[Any]], expected: list[list[Any]]) -> None:
    """Bit for bit: kernels and order of operations are the same."""
    for ours, theirs in zip(found, expected, strict=True):
        for left, right in zip(ours, theirs, strict=True):
            for part in ("tokens", "score", "positional_scores", "attention"):
                if part != "attention" or left[part].numel():
                    assert left[part].dtype is right[part].dtype
                assert torch.equal(left[part], right[part]), part


@pytest.mark.parametrize("name", CASES)
def test_inference_mode(name: str, lattice_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Around models that were made outside of it: generators are made and used inside."""
    models = models_of(name, monkeypatch)
    expected = decode(name, lattice_folder, models)
    with torch.inference_mode():
        found = decode(name, lattice_folder, models)
    assert_equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_default_dtype(
    name: str, dtype: torch.dtype, lattice_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = models_of(name, monkeypatch)
    expected = decode(name, lattice_folder, models)
    assert expected[0][0]["positional_scores"].dtype is torch.float32
    kernels.cache_clear()
    torch.set_default_dtype(dtype)
    library = kernels()
    found = decode(name, lattice_folder, models)
    torch.set_default_dtype(torch.float32)
    assert_equal(found, expected)
    assert library is not None or kernels() is None


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_may_be_changed_in_place(
    name: str, lattice_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq-generate does with the scores of tokens; PyTorch refuses that where inference mode made them."""
    models = models_of(name, monkeypatch)
    for hypothesis in (one for ranked in decode(name, lattice_folder, models) for one in ranked):
        for part in ("tokens", "positional_scores"):
            before = hypothesis[part].clone()
            assert torch.equal(hypothesis[part].mul_(2), before * 2)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"alignment"}))  # which fairseq extracts
def test_default_device(name: str, lattice_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the host stays there, whatever device new tensors go to; here they would have no numbers."""
    models, sample = models_of(name, monkeypatch), make_batch(random_sources(3, 4))
    expected = decode(name, lattice_folder, models)
    decoding, _, method, options = CASES[name]
    task = make_task(decoding, lattice=lattice_folder, drafter_path="drafter.pt", **method)
    with torch.device("meta"):
        generator = task.build_generator(models, generation_options(**options))
        found = [task.inference_step(generator, models, sample) for _ in range(2)][-1]
    assert_equal(found, expected)
