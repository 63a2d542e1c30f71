"""Every fused kernel of a GPU is tried before it is used, and ``aggdec doctor`` tells of it."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_aggdec.cli import doctor
from fairseq_aggdec.engine import attention
from fairseq_aggdec.kernels.gpu import logits, operators, products
from fairseq_aggdec.kernels.switches import DEPENDENT, GPU_KERNELS, VARIABLE

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("compiled_kernels")


# Of each kernel what it writes, and what it is tried by.
TRIED: dict[str, tuple[str, str]] = {
    "begin": ("shown", "accepting and committing"),
    "ban": ("logits", "accepting and committing"),
    "look": ("seen", "accepting and committing"),
    "judge": ("tokens", "accepting and committing"),
    **dict.fromkeys(("attend", "attend_slots"), ("out", "attention of windows")),
    "logits": ("y", "logits of few slots"),
    "cross_attend": ("out", "attention to a source with its queries"),
    "slots": ("places", "slots of a drafter"),
    "copy_block": ("block", "drafts copied from texts"),
    "embedding": ("out", "embeddings of a window"),
    "sources": ("x", "embeddings of sources"),
    "hear": ("told", "chain of a drafter"),
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
    own, (word, told) = operators.operators(), TRIED[name]
    place = [known for known, _ in operators.SIGNATURES[name].parameters].index(word)
    agree, *precisions = doctor.GPU_KERNELS[told]

    def wrong(*given: Any) -> None:
        before = given[place].clone()
        getattr(own, name)(*given)
        given[place].copy_(before if name == "ban" else given[place].flip(0) + 1)

    spoilt = mock.Mock(**{other: getattr(own, other) for other in operators.SCHEMAS})
    setattr(spoilt, name, wrong)
    with (
        mock.patch.object(operators, "operators", lambda: spoilt),
        mock.patch.object(attention, "operators", lambda: spoilt),
        mock.patch.object(logits, "operators", lambda: spoilt),
        mock.patch.object(products, "operators", lambda: spoilt),
    ):
        assert not agree(CPU, *precisions[1:2])


def test_doctor_tells_of_every_kernel() -> None:
    found = dict(doctor.of_gpu_kernels(CPU))
    assert len(found) == len(doctor.GPU_KERNELS)
    assert found.pop("dependent launches") == "in captured graphs"
    assert set(found.values()) == {"compiled"}
    operators.try_again(everything=True)
    own = operators.operators()
    kept = {name: getattr(own, name) for name in operators.SCHEMAS if not name.endswith("_step")}
    with mock.patch.object(
        operators,
        "operators",
        lambda: mock.Mock(beam_step=lambda *_: None, best_step=lambda *_: None, **kept),
    ):
        told = dict(doctor.of_gpu_kernels(CPU))
    other = {name for name in told if told[name] not in ("compiled", "in captured graphs")}
    assert other == {"steps of beam search", "steps of beam search with their candidates"}
    assert "they differ from PyTorch's operators" in told["steps of beam search"]


@pytest.mark.parametrize(
    "word", ["none", "no-gpu", *(f"no-{x}" for x in (DEPENDENT, *GPU_KERNELS))]
)
def test_kernels_are_switched_off(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, or those that work with the one that is named; they are not even tried."""
    given = f"no-cpu,{word}"
    monkeypatch.setenv(VARIABLE, given)
    off = {told for told, (agree, *_) in doctor.GPU_KERNELS.items() if runs(agree, word)}
    assert off and (len(off) == len(doctor.GPU_KERNELS)) == (word in ("none", "no-gpu"))
    with mock.patch.object(operators, "_against", lambda *_: None):
        told = dict(doctor.of_gpu_kernels(CPU))
    assert {name for name in told if f"{VARIABLE}={given}" in told[name]} == off
    ran = {told[name] for name in told if name not in off}
    assert ran <= {"compiled", "in captured graphs"}


def runs(agree: operators.Probe, word: str) -> bool:
    return word in ("none", "no-gpu") or word.removeprefix("no-") in operators.PROBES[agree]


def test_every_kernel_has_a_probe() -> None:
    assert tuple(operators.SCHEMAS) == GPU_KERNELS
    assert set(itertools.chain(*operators.PROBES.values())) == {DEPENDENT, *GPU_KERNELS}
    assert {agree for agree, *_ in doctor.GPU_KERNELS.values()} == set(operators.PROBES)


# Seconds that a host takes for a launch of ours, for PyTorch's (measured: 9.74 us), for a view, for a copy and its
# bytes, for a random number.
LAUNCH, OPERATOR, VIEW, COPY, BYTE, NUMBER = 60e-6, 10e-6, 2e-6, 20e-6, 1 / 5e9, 8e-9


class Cost(TorchDispatchMode):
    """Adds up what a host and a GPU do for operators."""

    seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found, name, returned = func(*args, **(kwargs or {})), func.__name__, func._schema.returns
        aliases = [one.alias_info for one in returned if one.alias_info is not None]
        if func.namespace == operators.NAMESPACE:
            self.seconds += LAUNCH
        elif aliases and not aliases[0].is_write:
            self.seconds += VIEW
        elif "copy" in name or "clone" in name:
            self.seconds += COPY + getattr(found, "nbytes", 0) * BYTE
        elif "rand" in name:
            self.seconds += found.numel() * NUMBER
        else:
            self.seconds += OPERATOR
        return found


def test_probes_take_little_time() -> None:
    """All of them in one precision, as a process tries them."""
    with Cost() as cost:
        for agree, *precisions in doctor.GPU_KERNELS.values():
            assert agree(CPU, *precisions[:1])
    assert cost.seconds <= 0.3
