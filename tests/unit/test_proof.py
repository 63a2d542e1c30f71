"""A kernel of a GPU runs where it was tried with success, and where it is forced."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_aggdec.cli import doctor
from fairseq_aggdec.drafters.copy.copy_on_device import copies_alike
from fairseq_aggdec.kernels.gpu import dependent, launching, operators, proof, trying
from fairseq_aggdec.kernels.gpu.dependent import begins_early
from fairseq_aggdec.kernels.gpu.largest import finds_alike
from fairseq_aggdec.kernels.gpu.products import computes_alike
from fairseq_aggdec.kernels.gpu.proof import PROVEN, UNTRIED, Card, Finding
from fairseq_aggdec.kernels.switches import DEPENDENT, GPU_KERNELS, VARIABLE
from tests.strict.device.bookkeeping import fused_kernels, in_one_thread
from tests.strict.device.on_stand_in import StandIn

CARD = Card("A card, compute capability 9.0", "570.1", "2.13, CUDA 13.0")
CPU = torch.device("cpu")
REAL = proof.against


@pytest.fixture(autouse=True)
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A card without a proof, whose kernels are compiled as C++."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(proof, "card_of", lambda device: CARD)
    with fused_kernels(proofs=REAL):
        yield


def finding(verdict: str = PROVEN) -> Finding:
    return Finding(proof.source_of(finds_alike), verdict, {"1": (0.5, 1.0)})


def reason() -> str | None:
    operators.forget()
    return operators.against(CPU, finds_alike)


def test_without_a_proof_none_runs() -> None:
    for agree, dtype in operators.probes():
        assert operators.against(CPU, agree, *dtype) == UNTRIED
    assert proof.COMMAND in operators.describe(set()) and "wait" in operators.describe(set())
    assert operators.running(CPU, torch.float16) == set()


def test_a_proof_counts_for_one_card_driver_pytorch_and_source() -> None:
    assert proof.write(CARD, "largest", finding())
    assert reason() is None
    assert operators.against(CPU, computes_alike, torch.float16) == UNTRIED
    for other in (
        CARD._replace(name="Another"),
        CARD._replace(driver="571"),
        CARD._replace(pytorch="2.14"),
    ):
        with mock.patch.object(proof, "card_of", lambda device, own=other: own):
            assert reason() == UNTRIED
    with mock.patch.object(proof, "source_of", lambda agree: "another"):
        assert reason() == UNTRIED
    assert proof.write(CARD, "largest", finding("it hangs"))
    assert reason() == "it hangs"


def test_a_precision_has_its_own_proof() -> None:
    sound = Finding(proof.source_of(computes_alike), PROVEN, {})
    proof.write(CARD, "product float16", sound)
    proof.write(CARD, "product bfloat16", sound)
    assert operators.usable(CPU, computes_alike, torch.float16)
    assert operators.usable(CPU, computes_alike, torch.bfloat16)
    assert not operators.usable(CPU, computes_alike, torch.float32)
    told = dict(doctor.of_gpu_kernels(CPU))["layers for few rows"]
    assert told == f"float32 PyTorch's operators: {UNTRIED}; float16, bfloat16 runs"


@pytest.mark.parametrize("words", ["all", "largest", "product,largest"])
def test_kernels_are_forced(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, words)
    assert reason() is None
    if words == "all":
        assert operators.running(CPU, torch.float16) == {*GPU_KERNELS, DEPENDENT}
        assert operators.describe(operators.running(CPU, torch.float16)) == "all of ours run"
    monkeypatch.setenv(VARIABLE, f"{words},no-largest")
    assert reason() == f"{VARIABLE}={words},no-largest"


@pytest.mark.parametrize(
    "spoilt", ["", "{", "[]", '{"card": 1}', '{"card": [], "kernels": {}}', "kept"]
)
def test_a_proof_that_cannot_be_read_counts_for_nothing(spoilt: str) -> None:
    proof.write(CARD, "largest", finding())
    path = proof.file_of(CARD)
    assert path is not None and path.stat().st_mode & 0o022 == 0
    if spoilt == "kept":
        found = json.loads(path.read_text())
        found["kernels"]["largest"] = [1, 2]
        spoilt = json.dumps(found)
    path.write_text(spoilt)
    assert reason() == UNTRIED
    assert proof.write(CARD, "largest", finding()) and reason() is None


def test_where_no_proof_can_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fairseq_aggdec").touch()
    assert not proof.write(CARD, "largest", finding()) and reason() == UNTRIED
    tried = [("largest", finding(), False)]
    with (
        mock.patch.object(proof, "card_of", lambda device: CARD),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(trying, "try_kernels", lambda *_: iter(tried)),
    ):
        doctor.try_all()
    said = capsys.readouterr().out
    assert "largest: right and faster (1 rows 500.0 us, operators 1000.0 us)" in said
    assert "nothing could be kept: XDG_CACHE_HOME" in said


FAULTS = {
    "copy_block": ("crash", f"the process ended with {-signal.SIGSEGV}"),
    "slots": ("hang", "it hangs"),
    "largest": ("wrong", "they differ from PyTorch's operators"),
    "verify": ("slow", "they are not faster than PyTorch's operators for 1 rows"),
    "leaders": ("compiler", "does not compile"),
}


@pytest.mark.parametrize("name", [*FAULTS, "none"])
def test_kernels_are_tried(name: str) -> None:
    """Each in a process of its own: what is wrong, slow, hangs or crashes stays off, all others run."""
    agree = next(
        agree for agree, tried in operators.PROBES.items() if name in (*tried.names, "none")
    )
    fault, said = FAULTS.get(name, ("", ""))
    asked = (
        [(agree, ())] if fault else [(one, ()) for one in (copies_alike, finds_alike, begins_early)]
    )
    place = StandIn({name: fault})
    seconds = 120.0, 3.0 if fault == "hang" else 120.0
    found = [*trying.try_kernels(CARD, place, seconds, asked)]
    assert len(found) == len(asked) and all(written for _, _, written in found)
    operators.forget()
    for (one, dtype), (_, tried, _) in zip(asked, found, strict=True):
        if one is begins_early:  # as many launches either way
            assert "not faster" in tried.verdict
        elif not fault:
            assert tried.verdict == PROVEN, operators.PROBES[one].names
        assert said in tried.verdict
        off = None if tried.verdict == PROVEN else tried.verdict
        assert operators.against(CPU, one, *dtype) == off


def test_early_launches_are_tried_by_a_chain() -> None:
    """Product, norm, attention and logits behind each other; with other bits, or a driver that lacks them, they are
    off."""
    launched, device = list[str](), torch.device("cpu")

    def run(name: str, *given: Any) -> None:
        launched.append(name)
        in_one_thread(name, *given)

    with fused_kernels(run), torch.inference_mode():
        assert dependent.begins_early(device) is True
        assert {"product", "layer_norm", "attend", "logits"} == set(launched)
        early = mock.Mock(side_effect=lambda call, device: lambda: call().add(1))
        with mock.patch.object(dependent, "captured", early):
            assert not dependent.begins_early(device)
        with mock.patch.object(launching, "lacking", lambda device: "a newer driver"):
            assert dependent.begins_early(device) == "a newer driver"
            with dependent.dependent_launches(device):  # forced
                assert not launching._overlapping
        with dependent.dependent_launches(device):
            assert launching._overlapping == {device}
