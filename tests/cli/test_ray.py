"""Ray with two workers, one of which is killed: the same outputs. Skipped where Ray is not installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec.ray import Translate
from tests.cli.commands import ROOT
from tests.cli.translating import arguments, stock_output, write_folder

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")


def test_the_launcher(tmp_path: Path) -> None:
    folder, target = write_folder(tmp_path), tmp_path / "out"
    more = ["--launcher", "ray", "--workers", "2", "--shard-size", "2"]
    command = (
        "import sys\nfrom fairseq_aggdec.cli.fairseq_commands import generate\nsys.exit(generate())"
    )
    given = [sys.executable, "-c", command, *arguments(folder, target, *more)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(given, env=environment, stderr=subprocess.PIPE, text=True) as process:
        os.kill(worker(target, process), signal.SIGKILL)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "2 workers in Ray" in said
    assert target.read_bytes() == stock_output(folder)


def worker(target: Path, process: subprocess.Popen[str]) -> int:
    """The number of a process that works on a shard."""
    while process.poll() is None:
        for claim in Path(f"{target}.parts").glob("*-of-*.claim"):
            with suppress(FileNotFoundError, ValueError):  # given back, or being written
                return int(json.loads(claim.read_text())["pid"])
        time.sleep(0.005)
    raise AssertionError(process.communicate())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ray.init(num_cpus=2)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_ray_data(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    shipped = ROOT / "checkpoints" / "ua_gec"

    class Killed(Translate):
        """The first worker that is called is killed."""

        def __call__(self, batch: Any) -> Any:
            with suppress(FileExistsError):
                killed.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(batch)

    options = {"decoding": "iad", "spm": shipped / "spm.model", "device": "cpu"}
    lines = (shipped / "sample.src").read_text(encoding="utf-8").splitlines()[:32]
    items = [{"id": number, "text": line} for number, line in enumerate(lines)]
    found = ray.data.from_items(items, override_num_blocks=8).map_batches(
        Killed,
        fn_constructor_args=(shipped / "checkpoint.pt", shipped),
        fn_constructor_kwargs=options,
        compute=ray.data.ActorPoolStrategy(size=2),
        batch_size=4,
    )
    outputs = {row["id"]: (row["text"], row["output"]) for row in found.take_all()}
    assert killed.exists()
    expected = Translate(shipped / "checkpoint.pt", shipped, **options)({"text": lines})["output"]
    assert outputs == dict(enumerate(zip(lines, expected, strict=True)))
