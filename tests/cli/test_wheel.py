"""The wheel holds all that is needed: installed apart from the checkout it decodes, in another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from fairseq_aggdec.cli.main import TOOLS, module_of
from fairseq_aggdec.version import __version__
from tests.cli.commands import CUT, ROOT, Result, Trained

# What the build reads; nothing else of the checkout.
SOURCES = ("LICENSE", "README.md", "configs", "fairseq_aggdec", "pyproject.toml", "setup.py")
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
