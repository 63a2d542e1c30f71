"""The loop on the device with its fused kernels and with operators in their place; how many launches it takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_aggdec.engine.graphs.capture import made
from fairseq_aggdec.kernels.gpu.arguments import Signature
from fairseq_aggdec.kernels.gpu.operators import SIGNATURES
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.search.verification.fused import FusedBookkeeping
from tests.strict.device import cases as device_cases
from tests.strict.device import counts as device_counts
from tests.strict.device.bookkeeping import fused_kernels, unproven
from tests.strict.device.cases import CASES, Case
from tests.strict.device.counts import ITERATIONS
from tests.strict.device.recorder import IN_GRAPH
from tests.strict.device.strict_device import DEVICE, strict_device
from tests.strict.test_methods import SIZES, assert_equal
from tests.unit.test_beam_board import compare_candidates, compare_steps
from tests.unit.test_cross_attention import compare_cross_attention
from tests.unit.test_drafting_kernels import compare_chains, compare_embeddings, compare_sources
from tests.unit.test_gpu_attention import compare_attention, compare_far_rows
from tests.unit.test_gpu_kernels import (
    compare_an_iteration,
    compare_copies,
    compare_largest,
    compare_slot_windows,
)
from tests.unit.test_gpu_logits import compare_logits
from tests.unit.test_gpu_products import compare_products

BY_NAME = {case.name: case for case in CASES}
ONE_LAYER = {"block_size": 5, "decoder_layers": 1}
# The most kernels of an iteration with 6+6 layers; with PyTorch's operators they were 129, 249, 225 and 152.
COUNTED = (
    (BY_NAME["greedy"], 46),
    (BY_NAME["iad, aligned"], 47),
    (Case("gad, one layer", "gad", drafter=("nar_drafter", ONE_LAYER)), 64),
    (
        Case("gad, a chain", "gad", drafter=("nar_drafter", ONE_LAYER | device_cases.NEXT_CHAIN)),
        69,
    ),
    (Case("gad, a copy", "gad", drafter=("nar_drafter", ONE_LAYER | device_cases.COPY)), 64),
    (BY_NAME["beam 3"], 46),
)


@torch.inference_mode()
def test_the_kernels_do_what_operators_do(gpu: torch.device) -> None:
    if torch.cuda.is_available():  # the stand-in has been asked
        compare_far_rows(gpu)
    for seed in range(
        int(os.environ.get("KERNEL_SEEDS", "200" if torch.cuda.is_available() else "6"))
    ):
        compare_an_iteration(seed, gpu)
        compare_copies(seed, gpu)
        compare_slot_windows(seed, gpu)
        compare_attention(seed, gpu)
        compare_candidates(seed, gpu)
        compare_steps(seed, gpu)
        compare_largest(seed, gpu)
        compare_products(seed, gpu)
        compare_logits(seed, gpu)
        compare_embeddings(seed, gpu)
        compare_sources(seed, gpu)
        compare_chains(seed, gpu)
        compare_cross_attention(seed, gpu)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "operators"])
@pytest.mark.parametrize(
    "name",
    [
        *("greedy", "iad, aligned", "gad, causal", "gad, top-beta", "blockwise, dense"),
        *("gad, chain", "gad, next, chain, causal", "nar, source copy", "prefix, gad"),
        *("no repeated n-grams, gad", "no repeated n-grams, nar"),
    ],
)
def test_both_write_the_same(
    name: str, fused: bool, gpu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.setenv(VARIABLE, "none")
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    samples = [device_cases.batch(seed, len(case.prefix or "...")) for seed in range(3)]
    wanted = device_cases.expected(case, models, drafter, tmp_path, samples)
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    for sample, reference in zip(samples, wanted, strict=True):
        prefix = device_cases.prefix_of(case, len(sample["id"]))
        assert_equal(ready.decode(sample, prefix), reference, gpu)
    assert isinstance(ready.generator.memory.device_loop.books, FusedBookkeeping) == fused


@pytest.mark.parametrize(
    "name",
    [
        *(
            "greedy",
            "iad, aligned",
            "gad, next, chain, causal",
            "blockwise, dense",
            "nar",
            "beam 3",
        ),
        "greedy, two models",
    ],
)
def test_without_a_proof_no_kernel_is_launched(
    name: str, device: torch.device, tmp_path: Path
) -> None:
    """What a user has who installs the package: captured graphs of PyTorch's operators."""
    if device.type == "cuda":
        pytest.skip("launches are refused on the strict device only")

    def refuse(kernel: str, *given: Any) -> None:
        raise AssertionError(f"{kernel} was launched")

    case, sample = BY_NAME[name], device_cases.batch(1, 3)
    models, drafter = device_cases.random_models(case, SIZES)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    with strict_device(), fused_kernels(refuse, unproven):
        ready, before = device_cases.prepared(case, models, drafter, tmp_path, DEVICE), made.graphs
        for _ in range(3):
            assert_equal(ready.decode(sample, None), wanted, DEVICE)
    assert made.graphs > before


@pytest.mark.parametrize("name", ["greedy, no graphs", "gad, no graphs"])
def test_arguments_are_checked_once(name: str, gpu: torch.device, tmp_path: Path) -> None:
    """A second decoding of a batch finds every check of a kernel's arguments remembered."""
    case, sample = BY_NAME[name], device_cases.batch(3, 3)
    models, drafter = device_cases.random_models(case, SIZES)
    ready, launched = device_cases.prepared(case, models, drafter, tmp_path, gpu), list[str]()
    for signature in SIGNATURES.values():
        signature.known.clear()  # a full table forgets all: tests before this one may have filled it
    ready.decode(sample, None)

    def read(signature: Signature, given: Sequence[Any]) -> list[Any]:
        launched.append(signature.name)
        return plain(signature, given)

    plain = Signature.read
    with (
        mock.patch.object(Signature, "read", read),
        mock.patch.object(Signature, "_copied", side_effect=AssertionError("it is checked again")),
    ):
        ready.decode(sample, None)
    assert {"product", "attend", "verify"} <= set(launched) and len(launched) > 100


@pytest.mark.parametrize("case, most", COUNTED, ids=[case.name for case, _ in COUNTED])
def test_kernels_of_an_iteration(
    case: Case, most: int, device: torch.device, tmp_path: Path
) -> None:
    if device.type == "cuda":
        pytest.skip("counted on the strict device only")
    counts = device_counts.count(case, tmp_path)
    assert counts.means[ITERATIONS][IN_GRAPH] <= most
