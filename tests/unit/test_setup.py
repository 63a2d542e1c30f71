"""What scripts/setup.sh takes, and what setup.py asks for."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"
TEXT = SETUP.read_text(encoding="utf-8")
FUNCTIONS = TEXT.partition("\nif command -v flock")[0].replace(
    'cd "$(dirname "${BASH_SOURCE[0]}")/.."', ""
)
(VERSION,) = re.findall(r"^TORCH_VERSION=(.*)$", TEXT, re.MULTILINE)

# Stands for the environment's Python: the configured index and PyTorch's own list what the variables say.
PYTHON = """#!/usr/bin/env bash
case "$*" in
    *version_info*) echo 3.12 ;;
    *--index-url*) echo "Available versions: $THEIRS" ;;
    *) echo "Available versions: $CONFIGURED" ;;
esac
"""


@pytest.mark.parametrize(
    ("machine", "line", "libraries"),
    [
        ("x86_64", "flags\t\t: fpu avx2 avx512_vnni amx_int8 amx_tile", "plain amx"),
        ("x86_64", "flags : avx2 avx512f avx512_vnni", "plain avx512"),
        ("x86_64", "flags : avx2 avx_vnni", "plain avxvnni"),
        ("x86_64", "flags : fma avx2", "plain avx2"),
        ("x86_64", "flags : sse2", "plain "),
        ("aarch64", "Features\t: fp asimd asimddp", "plain neon"),
        ("riscv64", "isa : rv64imafdc", "plain "),
    ],
)
def test_kernels_of_a_checkout(machine: str, line: str, libraries: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{line}\n", encoding="utf-8")
    (tmp_path / "uname").write_text(f"#!/bin/sh\necho {machine}\n", encoding="utf-8")
    (tmp_path / "uname").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f'{FUNCTIONS}\nchoose_libraries "$1"', "_", str(tmp_path / "cpuinfo")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.rstrip("\n") == libraries, done.stderr


def test_parts_are_told_and_a_failure_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{FUNCTIONS}\nLOG={log}\npart PyTorch echo said; part fairseq false || echo $?",
        ],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "1\n"
    assert re.fullmatch(r"setup: \d+ s: PyTorch\n", done.stderr)
    assert log.read_text() == "said\n"


def test_a_second_run_is_over_at_once(tmp_path: Path) -> None:
    """What the first run chooses and exports is no part of what it was asked for."""
    files = [f"{name}={tmp_path / name}" for name in ("STAMP", "UNFINISHED", "LOG", "CONSTRAINTS")]
    stubs = [
        *("part() { :; }", "remove_other_fairseq() { :; }", "check_compiler() { :; }"),
        *("right_python() { :; }", "choose_torch() { torch=torch index=(); }"),
    ]
    done = subprocess.run(
        ["bash", "-c", "\n".join([FUNCTIONS, *files, *stubs, "(main)", "(main)"])],
        cwd=SETUP.parents[1],
        env={name: value for name, value in os.environ.items() if not name.startswith("AGGDEC_")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("setup: installing") == done.stderr.count("setup: done") == 1


@pytest.mark.parametrize(
    ("configured", "theirs", "torch", "index"),
    [
        (f"9.9, {VERSION}+cpu, 2.0", "", f"torch=={VERSION}+cpu", False),
        (f"{VERSION}", f"{VERSION}+cpu", f"torch=={VERSION}+cpu", True),
        (f"{VERSION}", "", f"torch=={VERSION}", False),
    ],
    ids=["configured index", "its own index", "neither"],
)
def test_choice(configured: str, theirs: str, torch: str, index: bool, tmp_path: Path) -> None:
    for name, text in (("python", PYTHON), ("nvidia-smi", "#!/bin/sh\nexit 1\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{FUNCTIONS}\nPYTHON=python\nchoose_torch\necho $torch ${{index[@]+${{index[@]}}}}",
        ],
        env={
            **{name: value for name, value in os.environ.items() if name != "AGGDEC_TORCH"},
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "CONFIGURED": configured,
            "THEIRS": theirs,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    chosen, *options = done.stdout.split()
    assert chosen == torch
    assert ("--extra-index-url" in options) == index
    assert ("for Python 3.12: taking" in done.stderr) == (torch == f"torch=={VERSION}")


@pytest.mark.parametrize(
    ("versions", "asked", "said"),
    [
        (["3.13", "3.12"], "", "python3.12"),
        (["3.13", "3.14"], "", "python3.13"),
        (["3.10", "3.13"], "", "python3.13"),
        (["3.9", "3.10"], "", "python3.10"),
        (["3.12", "3.13"], "python3.13", "python3.13"),
        (
            ["3.14"],
            "python3.14",
            "setup: error: needs Python 3.10 to 3.13 with venv, tried python3.14 and found 3.14; "
            "name one in BASE_PYTHON.",
        ),
        (
            [],
            "python3.12",
            "setup: error: needs Python 3.10 to 3.13 with venv, tried python3.12; name one in BASE_PYTHON.",
        ),
    ],
)
def test_which_python(versions: list[str], asked: str, said: str, tmp_path: Path) -> None:
    """Commands that stand for Pythons of these versions, and no others, are there."""
    for version in versions:
        path = tmp_path / f"python{version}"
        path.write_text(f'#!/bin/sh\ncase "$*" in *version_info*) echo {version} ;; esac\n')
        path.chmod(0o755)
    done = subprocess.run(
        ["/bin/bash", "-c", f"{FUNCTIONS}\nchoose_python"],
        env={"PATH": str(tmp_path), "BASE_PYTHON": asked},
        capture_output=True,
        text=True,
    )
    assert (done.stdout + done.stderr).strip() == said
    assert done.returncode == ("error" in said)


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """setup.py as pip runs it, up to the build; its names."""
    monkeypatch.chdir(SETUP.parents[1])
    monkeypatch.setattr(setuptools, "setup", lambda **given: None)
    monkeypatch.setattr(sys, "argv", ["setup.py", "dist_info"])
    return runpy.run_path("setup.py")


def test_no_fairseq_is_forced(installation: dict[str, Any]) -> None:
    """One that is there stays as it is; the extra brings exactly one, on every Python and machine."""
    assert not [one for one in installation["REQUIREMENTS"] if "fairseq" in one]
    brought = [Requirement(one) for one in installation["EXTRAS"]["fairseq"]]
    for python, machine, name in (
        ("3.10", "x86_64", "fairseq-fixed"),
        ("3.11", "x86_64", "ve-fairseq"),
        ("3.12", "x86_64", "ve-fairseq"),
        ("3.12", "aarch64", "fairseq-fixed"),
        ("3.13", "x86_64", "fairseq-fixed"),
    ):
        where = {
            "python_version": python,
            "platform_machine": machine,
            "sys_platform": "linux",
        }
        found = [one.name for one in brought if one.marker and one.marker.evaluate(where)]
        assert found == [name]


def test_every_file_of_tests_has_one_level() -> None:
    """``scripts/test.sh all`` runs each once: what a long level names, the level cli leaves out. The level sanitizers
    runs some again, on other kernels."""
    text = (SETUP.parent / "test.sh").read_text(encoding="utf-8")
    function = "tests_of() {" + text.partition("tests_of() {")[2].partition("\n}\n")[0] + "\n}\n"
    levels = [
        level
        for name in ("LEVELS", "LONG")
        for level in re.findall(rf"^{name}=\((.*)\)$", text, re.MULTILINE)[0].split()
    ]
    run: list[Path] = []
    for level in set(levels) - {"lint", "sanitizers"}:
        done = subprocess.run(
            ["bash", "-euc", f"{function}tests_of {level}"],
            cwd=SETUP.parents[1],
            capture_output=True,
            text=True,
            check=True,
        )
        ignored = re.findall(r"^--ignore=(.*)$", done.stdout, re.MULTILINE)
        for word in done.stdout.split():
            place = SETUP.parents[1] / word
            files = place.rglob("test_*.py") if place.is_dir() else [place]
            if not word.startswith("--"):
                run += [
                    x for x in files if x.relative_to(SETUP.parents[1]).as_posix() not in ignored
                ]
    assert sorted(run) == sorted((SETUP.parents[1] / "tests").rglob("test_*.py"))
    assert "test.sh all" in (SETUP.parents[1] / ".ci" / "run").read_text(encoding="utf-8")


def test_extras_and_files_that_are_named_are_there() -> None:
    """In pages, scripts and the Dockerfile: pip passes over an extra that there is not."""
    root = SETUP.parents[1]
    files = [root / "Dockerfile", SETUP, *root.glob("*.md"), *(root / "docs").glob("*.md")]
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in files if "CHANGE" not in path.name
    )
    named = {one for part in re.findall(r"['\"]\.\[([\w,]+)\]", text) for one in part.split(",")}
    setup = (root / "setup.py").read_text(encoding="utf-8")
    extras = {*re.findall(r'^    "(\w+)": \[', setup, re.MULTILINE), "test", "dev"}
    assert {"serve", "convert"} <= named <= extras, named - extras
    docker = (root / "Dockerfile").read_text(encoding="utf-8")
    copied = [
        name for line in re.findall(r"^COPY (.*) \S+$", docker, re.M) for name in line.split()
    ]
    assert len(copied) == 6 and all((root / name).exists() for name in copied)
    assert set(re.findall(r"torch==(\S+)\+cpu", docker)) == {VERSION}
