"""Every command line of README and the pages is run by a test, or a table here says why not.

This test runs what the others leave, in a folder of files by the names that the pages use, on a small model, and with
a home that is empty. Trainings end after two updates.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.cli.commands import MODEL, ROOT, Trained

PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
# Pages whose blocks say themselves whether they are run -> the test that reads it.
READ_BY = {
    "README.md": "tests/cli/test_readme.py",
    "docs/python.md": "tests/cli/test_python_page.py",
    "docs/serving.md": "tests/cli/test_python_page.py",
    "docs/tour.md": "tests/cli/test_tour.py",
}
# How lines begin that are not run -> why; a file: the test that runs the command with other files or fewer updates.
NOT_RUN = {
    "pip install": "it installs",
    "export PIP_": "it installs",
    "echo torch==": "it installs",
    "scripts/matrix.sh": "it installs",
    "AGGDEC_LIBRARIES=plain CXXFLAGS=-O0 .venv/bin/python setup.py": "tests/cli/test_adding.py",
    "aggdec train-drafter": "tests/cli/test_train_drafter.py",
    "scripts/distill.sh": "tests/cli/test_distill_processes.py",
    "fairseq-train distilled ...": "any training, whose options are left out",
    "aggdec convert": "tests/cli/test_published.py",
    "aggdec-generate data-bin --path wmt14-en-de-base-at": "it needs a published model",
    "aggdec doctor --try-kernels": "it needs a GPU",
    "aggdec audit data-bin --path model.pt --fp16": "it needs a GPU",
    "for i in 0 1 2 3": "it needs four GPUs",
    "CUDA_VISIBLE_DEVICES=$i": "it needs four GPUs",
    "done": "it needs four GPUs",
    "wait": "it needs four GPUs",
    "cat part.?": "it needs four GPUs",
    "bash scripts/gpu.sh": "it needs a GPU",
    "scripts/gpu.sh": "tests/cli/test_gpu_recipe.py",
    "scripts/recipes/": "tests/cli/test_paper_recipes.py",
    "SYNTHETIC=PREFIX scripts/recipes/": "tests/cli/test_paper_recipes.py",
    "LAYERS=12+2 WORK=": "tests/cli/test_paper_recipes.py",
    "SEGMENTER=": "tests/cli/test_paper_recipes.py",
    "ARCH=transformer LAYERS=2+2": "tests/cli/test_paper_recipes.py",
    "aggdec-generate cnn_dm-bin": "tests/pipelines/test_rest.py",
    "aggdec-generate mustc": "tests/pipelines/test_rest.py",
    "aggdec-generate data-bin --path model.pt --task": "tests/pipelines/test_tasks.py",
    "aggdec-interactive data-bin --path model.pt --task": "tests/pipelines/test_languages.py",
    "aggdec-generate data-bin --path model.pt --user-dir my_tasks": "tests/pipelines/test_ones_own.py",
    "aggdec-train data-bin --task translation_multi": "tests/pipelines/test_languages.py",
    "aggdec bench data-bin --path model.pt --systems all": "tests/cli/test_bench_apart.py",
}
SIZES = " ".join(MODEL[2:]) + " "
SHORT = (
    " --cpu --max-update 2 --seed 1 --num-workers 0 --optimizer adam --lr 0.001 --max-tokens 900"
)
# How commands begin -> what is added: sizes of the model, two updates.
MORE = {
    "aggdec-train data-bin --arch blockwise": SHORT,
    "aggdec-train data-bin --task translation --arch transformer": f" {SIZES}{SHORT}",
    "aggdec-train data-bin --arch lattice": f" {SHORT}",
    "aggdec-train distilled --arch nar": f" {SIZES.replace('--share-all-embeddings ', '')}{SHORT}",
    "aggdec-train distilled --arch interleaved": f" {SIZES}{SHORT}",
}
CHANGED = {  # languages of the small data, and options that a page leaves out
    "--source-lang de --target-lang en": "--source-lang src --target-lang tgt",
    " ...": "",
}
# Pages whose commands need each other's files.
TOGETHER = [
    *(["aggressive"], ["beam"], ["blockwise"], ["bulk"], ["exactness"], ["gad", "trees"]),
    *(["int8"], ["interleaved"], ["lattice"], ["pipelines"]),
]


def lines(page: str) -> Iterator[str]:
    """The command lines in the page's blocks of shell, without comments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if command := re.sub(r"(^|\s+)#.*", "", line).strip():
                yield command


def reason(command: str) -> str | None:
    """Why a command is not run here: the longest entry of :data:`NOT_RUN` that it begins with."""
    found = [start for start in NOT_RUN if command.startswith(start)]
    return NOT_RUN[max(found, key=len)] if found else None


def to_run(page: str) -> list[str]:
    return [command for command in lines(page) if reason(command) is None]


def test_every_page_with_a_command_is_run() -> None:
    run = {f"docs/{name}.md" for names in TOGETHER for name in names}
    assert not run & READ_BY.keys() and {*READ_BY, *run} <= {*PAGES}
    others = [page for page in PAGES if page not in READ_BY and to_run(page)]
    assert sorted(run) == others
    for page, test in READ_BY.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def test_every_reason_is_one_of_a_command() -> None:
    every = [command for page in PAGES for command in lines(page)]
    for start, why in NOT_RUN.items():
        assert any(command.startswith(start) for command in every), start
        assert not why.startswith("tests/") or (ROOT / why).is_file(), why
    for start in (*MORE, *CHANGED):
        assert any(start in command for command in every), start


@pytest.fixture
def folder(trained: Trained, tmp_path: Path) -> Path:
    """Files by the names that the pages use, and an empty home."""
    for name in ("data-bin", "distilled"):
        shutil.copytree(trained.data, tmp_path / name)
    for name in ("model.pt", "teacher.pt", "verifier.pt"):
        (tmp_path / name).symlink_to(trained.checkpoint)
    for name in ("lines.txt", "big.txt"):
        (tmp_path / name).write_text("\n".join(trained.source()) + "\n", encoding="utf-8")
    (tmp_path / "home").mkdir()
    return tmp_path


def run(command: str, folder: Path) -> None:
    """Runs a line of a page as it is printed but for :data:`CHANGED` and :data:`MORE`; it must succeed."""
    for printed, ours in CHANGED.items():
        command = command.replace(printed, ours)
    command += "".join(more for start, more in MORE.items() if command.startswith(start))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    kept.pop("PYTHONPATH", None)
    kept["PATH"] = os.pathsep.join([str(Path(warm.python()).parent), kept["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=kept | {"HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("pages", TOGETHER, ids=lambda pages: "-".join(pages))
def test_commands(pages: list[str], folder: Path) -> None:
    for page in pages:
        if page == "bulk":
            shutil.rmtree(folder / "distilled")  # it makes that folder
        if page == "trees":
            (folder / "drafter.pt").symlink_to(folder / "work" / "drafter" / "checkpoint_best.pt")
        for command in to_run(f"docs/{page}.md"):
            run(command, folder)
    assert list((folder / "home").iterdir()) == []
