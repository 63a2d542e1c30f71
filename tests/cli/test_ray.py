"""Ray with two workers, one of which is killed: the same outputs; the programs of docs/bulk.md for Ray and Spark.

Skipped where Ray or PySpark is not installed: ``pip install '.[ray]' pyspark``.
"""

from __future__ import annotations

import json
import os
import re
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

SHIPPED = ROOT / "checkpoints" / "ua_gec"
PAGE = (ROOT / "docs" / "bulk.md").read_text(encoding="utf-8")


def test_the_launcher(tmp_path: Path) -> None:
    pytest.importorskip("ray")
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
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two cores."""
    ray: Any = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ray.init(num_cpus=2)
    yield ray
    ray.shutdown()


def test_ray_data(ray: Any, tmp_path: Path) -> None:
    killed = tmp_path / "killed"

    class Killed(Translate):
        """The first worker that is called is killed."""

        def __call__(self, batch: Any) -> Any:
            with suppress(FileExistsError):
                killed.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(batch)

    options = {"decoding": "iad", "spm": SHIPPED / "spm.model", "device": "cpu"}
    lines = (SHIPPED / "sample.src").read_text(encoding="utf-8").splitlines()[:32]
    items = [{"id": number, "text": line} for number, line in enumerate(lines)]
    found = ray.data.from_items(items, override_num_blocks=8).map_batches(
        Killed,
        fn_constructor_args=(SHIPPED / "checkpoint.pt", SHIPPED),
        fn_constructor_kwargs=options,
        compute=ray.data.ActorPoolStrategy(size=2),
        batch_size=4,
    )
    outputs = {row["id"]: (row["text"], row["output"]) for row in found.take_all()}
    assert killed.exists()
    expected = Translate(SHIPPED / "checkpoint.pt", SHIPPED, **options)({"text": lines})["output"]
    assert outputs == dict(enumerate(zip(lines, expected, strict=True)))


@pytest.mark.parametrize("package", ["ray", "pyspark"])
def test_the_programs_of_the_page(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (program,) = (
        block for block in blocks if re.search(rf"^(import|from) {package}\b", block, re.M)
    )
    lines = (SHIPPED / "sample.src").read_text(encoding="utf-8").splitlines()[:4]
    (tmp_path / "checkpoints").symlink_to(SHIPPED.parent)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    own = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, **own},
        check=True,
        timeout=300,
    )
    found = {}
    for path in (tmp_path / "out").glob("*.json"):
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        found |= {row["text"]: row["output"] for row in rows}
    options: dict[str, Any] = {"decoding": "iad", "spm": SHIPPED / "spm.model"}
    expected = Translate(SHIPPED / "checkpoint.pt", SHIPPED, **options)({"text": lines})["output"]
    assert found == dict(zip(lines, expected, strict=True))
