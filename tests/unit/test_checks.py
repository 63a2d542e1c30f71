"""Who checks a change: the commands of scripts/test.sh, pre-commit's hooks and the workflow are the same ones."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")  # comes with omegaconf
ROOT = Path(__file__).resolve().parents[2]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_hooks_are_what_the_level_lint_runs() -> None:
    text = (ROOT / "scripts" / "test.sh").read_text(encoding="utf-8")
    lint = re.findall(r'^    "\$PYTHON" -m (.*?)(?: \.)?$', text, re.MULTILINE)[:3]
    hooks = [
        hook
        for repository in read(".pre-commit-config.yaml")["repos"]
        for hook in repository["hooks"]
    ]
    assert [hook["entry"] for hook in hooks] == [f".venv/bin/python -m {tool}" for tool in lint]
    assert {hook["language"] for hook in hooks} == {
        "system"
    }  # nothing is fetched, so versions are setup.py's


def test_the_workflow_runs_what_is_run_here_on_every_python() -> None:
    workflow = read(".github/workflows/tests.yml")
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML takes the key `on` for true
    job, environments = workflow["jobs"]["tests"], workflow["jobs"]["environments"]
    assert any("scripts/matrix.sh" in step.get("run", "") for step in environments["steps"])
    versions = job["strategy"]["matrix"]["python"]
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert versions == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', setup)
    shell = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8")
    assert f"{' | '.join(versions)}) ;;" in shell
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_image_takes_what_the_build_reads() -> None:
    """Every COPY of the Dockerfile is there, and PyTorch is the version of set-up in all of its places."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = [
        name
        for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert {
        "LICENSE",
        "README.md",
        "configs",
        "fairseq_aggdec",
        "pyproject.toml",
        "setup.py",
    } == set(copied)
    assert all((ROOT / name).exists() for name in copied)
    shell = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8")
    (version,) = re.findall(r"^TORCH_VERSION=(.*)$", shell, re.MULTILINE)
    page_of_cuda = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    for page in (text, page_of_cuda):
        assert set(re.findall(r"torch==([\d.]+)\+cpu", page)) == {version}
