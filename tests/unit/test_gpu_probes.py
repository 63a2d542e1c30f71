"""Every fused kernel of a GPU is tried before it is used, and ``aggdec doctor`` tells of it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_aggdec.cli import doctor
from fairseq_aggdec.kernels.gpu import attention, cross, logits, operators, products
from fairseq_aggdec.kernels.switches import DEPENDENT, GPU_KERNELS, VARIABLE

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("compiled_kernels")


# Of each kernel what it writes, and what it is tried by.
TRIED: dict[str, tuple[str, str]] = {
    "begin": ("window_tokens", "accepting and committing"),
    "ban": ("logits", "accepting and committing"),
    "look": ("seen", "accepting and committing"),
    "verify": ("tokens", "accepting and committing"),
    **dict.fromkeys(("attend", "attend_slots"), ("out", "attention of windows")),
    "logits": ("y", "logits of few slots"),
    "cross_attend": ("out", "attention to a source with its queries"),
    "slots": ("places", "slots of a drafter"),
    "copy_block": ("block", "drafts copied from texts"),
    "embedding": ("out", "embeddings of a window"),
    "sources": ("x", "embeddings of sources"),
    "hear": ("chained", "chain of a drafter"),
    "follow": ("block", "chain of a drafter"),
    "largest": ("tokens", "largest logits"),
    "leaders": ("keys", "likeliest tokens"),
    "best": ("tokens", "likeliest tokens"),
    "beam_step": ("sums", "steps of beam search"),
    "best_step": ("sums", "steps of beam search with their candidates"),
    **dict.fromkeys(("product", "layer_norm"), ("y", "layers for few rows")),
}


@pytest.mark.parametrize("name", operators.SCHEMAS)
def test_every_kernel_is_tried(name: str) -> None:
    """One that writes something else is not used."""
    own, (word, told) = operators.ops(), TRIED[name]
    place = [known for known, _ in operators.SIGNATURES[name].parameters].index(word)
    agree = doctor.GPU_KERNELS[told]
    precisions = [torch.float16] if operators.PROBES[agree].precise else []

    def wrong(*given: Any) -> None:
        before = given[place].clone()
        getattr(own, name)(*given)
        given[place].copy_(before if name == "ban" else given[place].flip(0) + 1)

    spoilt = mock.Mock(**{other: getattr(own, other) for other in operators.SCHEMAS})
    setattr(spoilt, name, wrong)
    with (
        mock.patch.object(operators, "ops", lambda: spoilt),
        mock.patch.object(attention, "ops", lambda: spoilt),
        mock.patch.object(cross, "ops", lambda: spoilt),
        mock.patch.object(logits, "ops", lambda: spoilt),
        mock.patch.object(products, "ops", lambda: spoilt),
    ):
        assert not agree(CPU, *precisions)


def test_doctor_tells_of_every_kernel() -> None:
    found = dict(doctor.of_gpu_kernels(CPU))
    assert len(found) == len(doctor.GPU_KERNELS)
    assert set(found.values()) == {"runs", "float32, float16, bfloat16 runs"}


@pytest.mark.parametrize(
    "word", ["none", "no-gpu", *(f"no-{x}" for x in (DEPENDENT, *GPU_KERNELS))]
)
def test_kernels_are_switched_off(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, or those that work with the one that is named; they are not even tried."""
    given = f"no-cpu,{word}"
    monkeypatch.setenv(VARIABLE, given)
    off = {told for told, agree in doctor.GPU_KERNELS.items() if runs(agree, word)}
    assert off and (len(off) == len(doctor.GPU_KERNELS)) == (word in ("none", "no-gpu"))
    told = dict(doctor.of_gpu_kernels(CPU))
    assert {name for name in told if f"{VARIABLE}={given}" in told[name]} == off
    assert all(told[name].endswith("runs") for name in told if name not in off)


def runs(agree: operators.Probe, word: str) -> bool:
    return word in ("none", "no-gpu") or word.removeprefix("no-") in operators.PROBES[agree].names


def test_every_kernel_has_a_probe() -> None:
    assert tuple(operators.SCHEMAS) == GPU_KERNELS
    named = [name for tried in operators.PROBES.values() for name in tried.names]
    assert set(named) == {DEPENDENT, *GPU_KERNELS}
    assert set(doctor.GPU_KERNELS.values()) == set(operators.PROBES)
