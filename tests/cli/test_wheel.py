"""The wheel holds all that is needed: installed apart from the checkout it decodes, in another folder.

In an environment with a fairseq in editable mode it leaves that as it is; in one without a compiler it decodes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import fairseq
import pytest

from fairseq_aggdec.cli.main import TOOLS, module_of
from fairseq_aggdec.version import __version__
from tests.cli.commands import CUT, ROOT, Result, Trained

# What the build reads; nothing else of the checkout.
SOURCES = ("LICENSE", "README.md", "configs", "fairseq_aggdec", "pyproject.toml", "setup.py")
FAIRSEQ = ("fairseq", "fairseq_cli")
CLONE = """from setuptools import setup
setup(
    name="fairseq",
    version="1.0.0a0",
    packages=["fairseq", "fairseq_cli"],
    entry_points={"console_scripts": ["fairseq-generate = fairseq_cli.generate:cli_main"]},
)
"""
QUIET = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def pip(*arguments: str | Path, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, arguments), "--no-index", "--no-deps", "--quiet"],
        cwd=folder,
        env=QUIET,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays as it is, with the libraries of the checkout.

    What is not of these sources is compiled again, which takes a minute.
    """
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / "copy" / name, ignore=ignored)
        else:
            (folder / "copy").mkdir(exist_ok=True)
            shutil.copy(source, folder / "copy" / name)
    made = f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    libraries = folder / "copy" / made / "fairseq_aggdec" / "kernels"
    libraries.mkdir(parents=True)
    for path in (ROOT / "fairseq_aggdec" / "kernels").glob("*.so"):
        shutil.copy(path, libraries)  # newer than the sources
    pip("wheel", "--no-build-isolation", "-w", folder, ".", folder=folder / "copy")
    (built,) = folder.glob("*.whl")
    return built


def test_everything_is_in_it(wheel: Path) -> None:
    assert wheel.name.startswith(f"fairseq_aggdec-{__version__}-")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        (scripts,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        commands = archive.read(scripts).decode()
        described = archive.read(metadata).decode()
    assert "Classifier: Typing :: Typed" in described
    assert "Project-URL: fairseq, https://" in described
    assert "# fairseq_aggdec" in described and "](docs/" not in described
    for command in (
        "aggdec",
        *(f"aggdec-{x}" for x in ("generate", "interactive", "train", "validate")),
    ):
        assert f"{command} = fairseq_aggdec.cli." in commands
    wanted = {f"{module_of(tool).replace('.', '/')}.py" for tool in TOOLS}
    wanted |= {"fairseq_aggdec/py.typed"}
    wanted |= {f"fairseq_aggdec/configs/{path.name}" for path in (ROOT / "configs").glob("*.yaml")}
    for pattern in ("*.py", "*.cu", "serve/page.html"):
        wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "fairseq_aggdec").rglob(pattern)}
    wanted |= {
        f"fairseq_aggdec/kernels/{path.name}"
        for path in (ROOT / "fairseq_aggdec" / "kernels").glob("*.so")
    }
    assert wanted <= names
    assert not any(name.startswith(("tests/", "scripts/", "docs/")) for name in names)


def test_it_decodes_in_another_folder(
    wheel: Path, trained: Trained, stock: Result, tmp_path: Path
) -> None:
    place = tmp_path / "installed"
    pip("install", "--target", place, wheel, folder=tmp_path)
    decode = (
        "import sys, fairseq_aggdec\n"
        "from fairseq_aggdec.cli import fairseq_commands\n"
        "print(fairseq_aggdec.__file__)\n"
        "sys.exit(fairseq_commands.generate())\n"
    )
    options = ["--path", trained.checkpoint, "--decoding", "iad", "--cpu", "--num-workers", "0"]
    done = subprocess.run(
        [sys.executable, "-c", decode, *map(str, [trained.data, *options, *CUT])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(place))
    assert Result(done.stdout, []).texts() == stock.texts()


def environment(folder: Path, *left_out: str) -> Path:
    """An empty environment's Python, to which the packages of this one are lent but those that are left out."""
    lent = folder / "lent"
    lent.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match("|".join(left_out), path.name):
            (lent / path.name).symlink_to(path)
    place = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(f"{lent}\n", encoding="utf-8")
    return place / "bin" / "python"


def install(python: Path, *arguments: str | Path, folder: Path) -> None:
    """With the packages that the arguments ask for, which must be there: no index is asked."""
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--quiet"]
    done = subprocess.run(
        [*map(str, command), *map(str, arguments)], cwd=folder, env=QUIET, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def sums(clone: Path) -> dict[str, str]:
    return {
        str(path.relative_to(clone)): hashlib.sha256(path.read_bytes()).hexdigest()
        for name in FAIRSEQ
        for path in (clone / name).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_a_fairseq_in_editable_mode_stays_as_it_is(
    wheel: Path, trained: Trained, stock: Result, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    for name in FAIRSEQ:
        shutil.copytree(Path(fairseq.__file__).parents[1] / name, clone / name)
    (clone / "setup.py").write_text(CLONE, encoding="utf-8")
    python = environment(tmp_path, r"(ve_)?fairseq", "__editable__.*fairseq")
    install(python, "--no-deps", "--no-build-isolation", "-e", clone, folder=tmp_path)
    before = sums(clone)
    install(python, wheel, folder=tmp_path)
    (own,) = python.parents[1].glob("lib/python*/site-packages/fairseq_aggdec")
    options = ["--path", trained.checkpoint, "--task", "translation_aggdec", "--decoding", "iad"]
    command = [python.with_name("fairseq-generate"), trained.data, "--user-dir", own, *options]
    done = subprocess.run(
        [*map(str, command), "--cpu", "--num-workers", "0", *CUT],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Result(done.stdout, []).texts() == stock.texts()
    where = "import fairseq, fairseq_cli; print(fairseq.__file__, fairseq_cli.__file__)"
    found = subprocess.run([python, "-c", where], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.split() == [str(clone / name / "__init__.py") for name in FAIRSEQ]
    assert len(before) > 300 and sums(clone) == before


def test_readme_decodes_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    """README's first example, beside the shipped model and nothing else of the checkout."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- run -->\n```sh\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL)
    assert block is not None
    python = environment(tmp_path, "fairseq_aggdec", "__editable__.*fairseq_aggdec")
    install(python, wheel, folder=tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "cut", "grep", "uname"):
        (tools / name).symlink_to(shutil.which(name) or name)
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block[1]],
        cwd=tmp_path,
        env={"PATH": f"{python.parent}:{tools}", "CXX": "false", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    log = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert done.returncode == 0, log
    assert done.stdout == block[2]
    assert "compiled CPU kernels, a batch in one call" in log
