"""The changes of docs/adding.md and adding-kernels.md, made in a copy of the package: nothing is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [(ROOT / "docs" / name).read_text("utf-8") for name in ("adding.md", "adding-kernels.md")]
COMPILER = os.environ.get("CXX", "g++")
pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")

# What the copy is asked, by headings of the page.
ASKED = {
    "A drafter in Python, and its method": """
        method = decoded("repeat")
        assert method.engines[-1][0].name in ("library", "windows")
        assert method.counters.iterations < method.counters.tokens
    """,
    "A drafter in the library": """
        from fairseq_aggdec.methods.repeat import RepeatDrafter
        with mock.patch.object(RepeatDrafter, "draft"):  # nobody asks it
            inside = decoded("repeat").counters
        del RepeatDrafter.in_library
        outside = decoded("repeat").counters
        assert 0 < inside.accepted
        assert inside.accepted == outside.accepted and inside.emitted == outside.emitted
    """,
    "A generation rule": """
        from tests.rule_engines import by_windows, on_board
        token = stock([model], sample)[0]["tokens"][0].item()
        for decoding, beam in (("greedy", 1), ("beam", 3)):
            found = []
            for engine in (by_windows, on_board):
                with engine():
                    ban = lambda generator: setattr(generator, "banned", token)
                    task = make_task(decoding)
                    found.append(generate(task, [model], sample, prepare=ban, beam=beam))
            assert_same(*found)
            assert all(token not in row["tokens"].tolist() for row in found[0])
    """,
    "A kernel of a CPU": """
        x = torch.randn(5, 77)
        places = torch.empty(5, dtype=torch.long)
        kernels().aggdec_smallest(x.data_ptr(), *x.shape, places.data_ptr())
        assert torch.equal(places, x.argmin(1))
    """,
    "A kernel of a GPU": """
        from fairseq_aggdec.cli import doctor
        from fairseq_aggdec.kernels import gpu
        from fairseq_aggdec.kernels.switches import GPU_KERNELS
        from tests.emulated.emulator import ORDERS, Emulator
        from tests.strict.device.bookkeeping import fused_kernels
        assert tuple(gpu.operators.SCHEMAS) == GPU_KERNELS
        assert set(doctor.GPU_KERNELS.values()) == set(gpu.operators.PROBES)
        for order in ORDERS:
            emulator = Emulator(order)
            with fused_kernels(emulator):
                assert gpu.raising.raises_alike(torch.device("cpu"))
                x = torch.randn(4, 300)
                assert torch.equal(gpu.raising.raised(x.clone(), 0.5), x.clamp(min=0.5))
            assert emulator.launches["raised"] > 1  # by the probe, and by its use
    """,
}
PREPARED = """
from unittest import mock
import torch
from fairseq_aggdec.kernels.library import kernels
from tests.support import (
    assert_same, generate, make_batch, make_model, make_task, random_sources, stock
)

assert kernels() is not None
model, sample = make_model(make_task(), 3), make_batch(random_sources(5, 8))


def decoded(decoding):
    kept, task = [], make_task(decoding)
    found = generate(task, [model], sample, prepare=kept.append)
    assert_same(found, stock([model], sample))
    return kept[0]

"""


def sections() -> dict[str, str]:
    found = {}
    for page in PAGES:
        parts = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)
        found |= zip(parts[1::2], parts[2::2], strict=True)
    return found


def changes(text: str) -> Iterator[tuple[str, str, str]]:
    """File, what stands there once (nothing: the file is new), and what it becomes."""
    for kind, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        if kind == "sh":
            continue
        first, rest = block.split("\n", 1)
        if kind != "diff":
            yield first.lstrip("/# "), "", rest
            continue
        for hunk in rest.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(x[1:] for x in lines if x[0] in f" {sign}") for sign in "-+")
            yield first, old, new


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with all changes of the page, compiled for no particular processor."""
    folder = tmp_path_factory.mktemp("copy")
    unwanted = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("fairseq_aggdec", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    shutil.copy(ROOT / "setup.py", folder)
    for name in ("scripts", "checkpoints"):
        (folder / name).symlink_to(ROOT / name)
    (ROOT / ".cache").mkdir(exist_ok=True)
    (folder / ".cache").symlink_to(ROOT / ".cache")  # the emulator's machine is compiled once
    for text in sections().values():
        for name, old, new in changes(text):
            path = folder / "fairseq_aggdec" / name
            before = path.read_text(encoding="utf-8") if old else ""
            assert not old or before.count(old) == 1, (name, old)
            path.write_text(before.replace(old, new) if old else new, encoding="utf-8")
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    given = os.environ | {"AGGDEC_LIBRARIES": "plain", "CXXFLAGS": "-O0"}
    subprocess.run(build, cwd=folder, env=given, check=True, capture_output=True)
    return folder


def test_every_section_is_asked() -> None:
    listed = {name for name, text in sections().items() if next(changes(text), None)}
    assert listed == ASKED.keys()


def test_the_changes_are_enough(copied: Path) -> None:
    program = PREPARED
    for name, text in ASKED.items():
        program += f"# {name}\n" + re.sub(r"^ {8}", "", text, flags=re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=copied,
        env=os.environ | {"PYTHONPATH": str(copied), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
