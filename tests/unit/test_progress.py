"""Bars of what takes seconds: on a terminal only, and they end where the work ends."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.cli import pack
from fairseq_aggdec.convert.pack import multiplied
from fairseq_aggdec.distill import drafter_training
from fairseq_aggdec.kernels.library import kernels, multiplies_bf16
from fairseq_aggdec.stored import progress
from fairseq_aggdec.stored.loading import load_checkpoint
from scripts import random_models
from tests.support import make_dictionary
from tests.unit.test_one_copy import SMALL


class Terminal(io.StringIO):
    """Takes the place of stderr and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def taken(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What stderr is from now on."""
    found = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", found)
    return found


@pytest.mark.parametrize("terminal", [True, False])
def test_a_saved_state_is_counted_and_is_that_of_torch(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = taken(terminal, monkeypatch)
    one = torch.arange(1000.0)
    state = {"model": {"a": one, "b": one.view(10, 100)}, "cfg": {"beam": 5}}
    progress.save(state, tmp_path / "a.pt")
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    assert found["cfg"] == state["cfg"] and torch.equal(found["model"]["a"], one)
    assert found["model"]["a"].data_ptr() == found["model"]["b"].data_ptr()
    shown = stderr.getvalue()
    assert ("writing a.pt:" in shown and "/4.00k" in shown) if terminal else shown == ""


LOG = [f"INFO | train_inner | epoch 001: loss=1, num_updates={n}, lr=1\n" for n in (550, 600)]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_log_of_training_goes_on_above_a_bar(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr, lines = taken(terminal, monkeypatch), ["begins\n", *LOG]
    updates = drafter_training.updates_in(["data", "--max-update=9", "--max-update=1000"])
    assert (updates, drafter_training.updates_in(["data"])) == (1000, 0)
    assert list(drafter_training.with_progress(lines, updates)) == lines
    shown = stderr.getvalue()
    assert all(line in shown for line in lines)
    assert ("training:" in shown) == terminal == (shown != "".join(lines))


@pytest.mark.skipif(kernels() is None, reason="nothing is packed without compiled kernels")
@pytest.mark.parametrize("kind", ["fp32", "int8", "bf16"])
@pytest.mark.parametrize("more", [["--share-all-embeddings"], []], ids=["shared", "apart"])
def test_packing_is_counted_to_the_end(
    kind: str, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "bf16" and not multiplies_bf16():
        pytest.skip("no products in bfloat16")
    totals, told = list[float](), list[int]()

    class Bar:
        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: Any) -> None:
            """Nothing is shown."""

        def update(self, count: int) -> None:
            told.append(count)

    def counting(what: str, unit: str, total: float) -> Any:
        if what != "packing":
            return plain(what, unit, total)
        totals.append(total)
        return Bar()

    plain = progress.counting
    monkeypatch.setattr(progress, "counting", counting)
    for language in (random_models.SOURCE, random_models.TARGET):
        make_dictionary().save(str(tmp_path / f"dict.{language}.txt"))
    path = tmp_path / "model.pt"
    random_models.write_checkpoint(path, tmp_path, "transformer", *SMALL, *more)
    flags = [] if kind == "fp32" else [f"--{kind}"]
    pack.main([str(path), str(tmp_path), str(tmp_path / "out"), *flags])
    assert totals == [sum(told)] == [multiplied(load_checkpoint(str(path))["model"])] != [0]
