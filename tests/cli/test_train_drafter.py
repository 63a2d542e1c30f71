"""aggdec train-drafter: from a model and its data to a drafter or heads, in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fairseq_aggdec.cli import train_drafter
from fairseq_aggdec.stored.loading import load_checkpoint
from tests import warm
from tests.cli.commands import Trained

QUICK = ["--cpu", "--precision", "fp32", "--max-update", "2", "--block-size", "4"]


def run(trained: Trained, folder: Path, *more: str) -> None:
    given = [str(trained.data), "--path", str(trained.checkpoint), "--output", str(folder / "out")]
    train_drafter.main([*given, *QUICK, *more])


def test_a_drafter_and_how_to_use_it(
    trained: Trained,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the verifier's encoder; the printed options decode as stock does."""
    monkeypatch.setattr("sys.executable", warm.python())
    run(trained, tmp_path, "--average", "2")
    said = capfd.readouterr().out
    made = tmp_path / "out" / "drafter" / "averaged.pt"
    printed = said[said.index("Decode with") :].split()
    assert printed[-4:] == ["--decoding", "gad", "--drafter-path", str(made)]
    drafter, own = (load_checkpoint(str(path))["model"] for path in (made, trained.checkpoint))
    shared = [name for name in own if name.startswith("encoder.layers")]
    assert shared and all(torch.equal(drafter[name], own[name]) for name in shared)
    assert any(name.startswith("decoder.chain.") for name in drafter)
    found = trained.generate("gad", "--drafter-path", made).texts()
    assert found == trained.generate("stock").texts()


class Children:
    """Takes the place of processes; every step leaves what the next one looks for."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []
        self.fails = ""

    def __call__(self, module: str, arguments: Sequence[str], log: Path | None) -> None:
        words = [module, *arguments]
        if self.fails and self.fails in " ".join(words):
            raise SystemExit(f"error: {module} failed")
        self.ran.append(words)
        place = "--save-dir" if "--save-dir" in words else "--output"
        folder = Path(words[words.index(place) + 1])
        if place == "--output":
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "distillation.json").touch()

    @property
    def steps(self) -> list[str]:
        found = [words[1] if "main" in words[0] else words[0] for words in self.ran]
        self.ran.clear()
        return [name.rpartition(".")[2] for name in found]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    found = Children()
    monkeypatch.setattr(train_drafter, "run_module", found)
    return found


def test_what_is_done_is_kept_and_what_is_not_goes_on(
    trained: Trained, tmp_path: Path, children: Children
) -> None:
    children.fails = "fairseq_cli.train"
    with pytest.raises(SystemExit, match="failed"):
        run(trained, tmp_path)
    assert children.steps == ["distill"]
    (tmp_path / "out" / "drafter.partial" / "checkpoint_last.pt").touch()
    children.fails = ""
    run(trained, tmp_path)
    assert children.steps == ["train"]
    assert (tmp_path / "out" / "drafter" / "checkpoint_last.pt").exists()
    run(trained, tmp_path)
    assert children.steps == []
    run(trained, tmp_path, "--kind", "heads")  # of what is distilled already
    assert "--arch=blockwise_transformer" in children.ran[0] and children.steps == ["train"]


def test_other_settings_make_a_step_anew(
    trained: Trained, tmp_path: Path, children: Children
) -> None:
    run(trained, tmp_path)
    assert children.steps == ["distill", "train"]
    run(trained, tmp_path, "--lr", "0.5")
    assert children.steps == ["train"]
    run(trained, tmp_path, "--distill-flags", "--max-len-b 9 -s src -t tgt")
    assert children.steps == ["distill", "train"]
    assert len(list((tmp_path / "out").glob("*.before-*"))) >= 2
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert set(settings) == {"distilled", "drafter"}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--path", "nothing.pt"], "nothing.pt does not exist"),
        (["--patience", "0"], "--patience 0"),
        (["--output", "/dev/null"], "cannot be written: Not a directory"),
    ],
)
def test_refusals(trained: Trained, tmp_path: Path, more: list[str], says: str) -> None:
    with pytest.raises(SystemExit, match=says):
        run(trained, tmp_path, *more)
    assert not (tmp_path / "out").exists()


def test_several_gpus_distil_together(
    trained: Trained, tmp_path: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    given = [str(trained.data), "--path", str(trained.checkpoint), "--output", str(tmp_path / "o")]
    train_drafter.main([*given, *QUICK[1:]])
    launched = ["torch.distributed.run", "--standalone", "--nproc-per-node=4", "-m"]
    assert children.ran[0][:6] == [*launched, "fairseq_aggdec.cli.main", "distill"]
