"""The UA-GEC recipe from the real corpus to the shipped folder, tiny, killed once and restarted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import warm
from tests.cli.wmt_files import recipe

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "scripts" / "recipes" / "aggressive" / "ua_gec.sh"
SYSTEMS = ("beam1", "iad")
SHIPPED = {"checkpoint.pt", "spm.model", "dict.src.txt", "dict.tgt.txt"}
SHIPPED |= {"sample.src", "sample.tgt", "sample.tgt2"}

TINY = {
    "LIMIT": "24",
    "COPIES": "1",
    "VOCABULARY": "500",
    "LAYERS": "1+1",
    "MODEL_FLAGS": "--encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 32 "
    "--decoder-ffn-embed-dim 32 --encoder-attention-heads 2 --decoder-attention-heads 2",
    "PRETRAIN_UPDATES": "6",
    "MAX_UPDATE": "6",
    "SYSTEMS": " ".join(SYSTEMS),
    "DECODE_FLAGS": "--max-len-a 0 --max-len-b 20",
    "GPUS": "0",
    "DEVICE_FLAGS": "--cpu",
}


@pytest.fixture(scope="module", autouse=True)
def corpus() -> None:
    pytest.importorskip("ua_gec")


def settings(work: Path) -> dict[str, str]:
    own = {"PYTHON": warm.python(), "WORK": str(work), "SHIP": str(work / "shipped")}
    return TINY | own


def kill_in_training(work: Path, log: Path) -> None:
    """Start the recipe; kill it and its children, as a machine that goes down, once it trains."""
    with open(log, "w") as output:
        running = subprocess.Popen(
            ["bash", str(RECIPE)],
            env={**os.environ, **settings(work)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + 120
    while running.poll() is None and not (work / "pretrain.partial" / "train.log").exists():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)
    assert running.poll() is None, log.read_text()[-3000:]
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def run(work: Path) -> subprocess.CompletedProcess[str]:
    result = recipe("ua_gec", cwd=work.parent, **settings(work))
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return result


def stages(result: subprocess.CompletedProcess[str], state: str) -> list[str]:
    return re.findall(rf"stage (\S+): {state}", result.stderr)


def test_from_corpus_to_shipped_folder(tmp_path: Path) -> None:
    work = tmp_path / "work"
    kill_in_training(work, tmp_path / "first.log")
    assert not (work / "pretrain").exists()

    second = run(work)
    before = ["text", "synthetic", "subwords", "data", "pretrain-subwords", "pretrain-data"]
    assert stages(second, "done already") == before
    decoded = [*(f"decode-test-{system}" for system in SYSTEMS), "decode-valid-iad"]
    assert stages(second, "start") == ["pretrain", "train", "model", *decoded]
    for name in ("train.src", "valid.src", "test.src", "test.tgt2"):
        assert (work / "text" / name).read_text().count("\n") == 24

    assert "copied pieces" in (work / "valid.md").read_text()
    rows = json.loads((work / "results.json").read_text())["results"]
    assert [row["system"] for row in rows] == list(SYSTEMS)
    for row in rows:
        assert row["different"] == 0
        assert row["sentences/s"] == pytest.approx(24 / row["seconds"])
        assert row["F0.5"] >= max(row["F0.5 (1)"], row["F0.5 (2)"])
        assert 0 <= row["copied pieces (%)"] <= 100
        assert str(ROOT) not in row["command"]
    assert {path.name for path in (work / "shipped").iterdir()} == SHIPPED
