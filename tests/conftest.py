"""Set-up shared by all levels of tests."""

from __future__ import annotations

import copy
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.configuration
import pytest

if TYPE_CHECKING:
    import torch

# Read by PyTorch when it is first imported, and by the commands that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# `import fairseq` calls logging.basicConfig at DEBUG: without effect once the root has a handler.
logging.getLogger().addHandler(logging.NullHandler())

CACHE = Path(__file__).resolve().parent.parent / ".cache"
hypothesis.configuration.set_hypothesis_home_dir(CACHE / "hypothesis")
# Same examples in every run, and no limit of time per example: the machine may be busy.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where tests that use the `device` fixture run their models",
    )

    parser.addoption(
        "--stream-sanitizer",
        action="store_true",
        help="with --device cuda: PyTorch watches which streams read and write every tensor, and ends at a race",
    )

    parser.addoption(
        "--kernels",
        type=Path,
        help="folder of the compiled kernels, in place of the package's own: scripts/test.sh sanitizers",
    )


def pytest_configure(config: pytest.Config) -> None:
    from tests import quick_hydra

    quick_hydra.quicken()
    if config.getoption("--stream-sanitizer"):
        if config.getoption("--device") != "cuda":
            raise pytest.UsageError("--stream-sanitizer needs --device cuda")
        from torch.cuda import _sanitizer

        _sanitizer.enable_cuda_sanitizer()
    folder = config.getoption("--kernels")
    if folder is not None:
        from fairseq_aggdec.kernels import library

        library.FOLDER = folder.resolve()
        if library.kernels() is None:
            raise pytest.UsageError(f"--kernels {folder}: there is no library that can be used")


# Tests of these are independent, and those of a file are many.
ONE_BY_ONE = ("tests/strict/", "tests/cli/test_faults.py", "_processes.py")
TOGETHER = ("tests/strict/test_counts.py",)  # they share what was counted

# What takes longest, and what is so short that both workers end at the same time.
FIRST = ("recipe", "tests/system/", "_processes.py", "test_rehearsal")
LAST = ("tests/strict/", "tests/cli/test_faults.py")


def unit(nodeid: str) -> str:
    """Tests of a unit share a worker and what they have made: those of a file, or one test."""
    file = nodeid.partition("::")[0]
    alone = any(part in file for part in ONE_BY_ONE) and not file.endswith(TOGETHER)
    return nodeid if alone else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Units for ``-n``. xdist's own groups are names within ids, which pytest 9.2 does not let it change."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False  # the order is that of rank()
    return Units(config, log)


def rank(item: pytest.Item) -> int:
    if any(part in item.nodeid for part in FIRST):
        return 0
    return 1 + (unit(item.nodeid) == item.nodeid and any(part in item.nodeid for part in LAST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first, the shortest last."""
    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """The garbage collector no longer looks at modules and tests, which takes a twentieth of the time."""
    gc.collect()
    gc.freeze()


def who_asked() -> tuple[list[bool], set[str]]:
    """What ``adopt()`` and ``--user-dir`` have changed, which tests put back; of modules that are loaded."""
    takeover = sys.modules.get("fairseq_aggdec.pipelines.takeover")
    utils = sys.modules.get("fairseq.utils")
    memo = vars(utils.import_user_module).setdefault("memo", set()) if utils else set()
    return takeover._enabled if takeover else [], memo


@contextmanager
def asked() -> Iterator[None]:
    """Who asks for the plugin within it has not asked afterwards."""
    before = [copy.copy(part) for part in who_asked()]
    yield
    adopted, folders = who_asked()
    adopted[:] = before[0]
    folders.clear()
    folders.update(before[1])


@pytest.fixture(autouse=True)
def asked_by_a_test() -> Iterator[None]:
    with asked():
        yield


@pytest.fixture(autouse=True, scope="module")
def asked_by_a_file() -> Iterator[None]:
    with asked():
        yield


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Tools quieten all logs but the plugin's; the next test wants to read them."""
    names = ("", "fairseq", "fairseq_aggdec")
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    """The device chosen with --device."""
    import torch

    name = pytestconfig.getoption("--device")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.fail("--device cuda was asked for, but PyTorch finds no GPU")
    return torch.device(name)
