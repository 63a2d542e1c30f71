"""The trained model that tests of the command line share."""

from __future__ import annotations

import multiprocessing
import os
import shutil

import pytest
from fairseq_cli import preprocess
from filelock import FileLock

from tests.cli.commands import Result, Trained, preprocess_arguments, run, write_corpus


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model that has learnt to copy with edits, trained with the stock task: once for all workers."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    made, own = base / "copier-made", tmp_path_factory.mktemp("copier")
    with FileLock(base / "copier.lock"):
        if not (made / "done").exists():
            shutil.rmtree(made, ignore_errors=True)
            train_copier(Trained(made))
            (made / "done").touch()
    shutil.copytree(made, own, dirs_exist_ok=True)
    return Trained(own)


def train_copier(result: Trained) -> None:
    """Data and checkpoints."""
    result.folder.mkdir()
    write_corpus(result.folder)
    run(preprocess.cli_main, *preprocess_arguments(result.folder, result.data))
    options = ["--max-update", "600", "--save-interval-updates", "300", "--no-epoch-checkpoints"]
    result.train(
        "--task",
        "translation",
        "--save-dir",
        result.checkpoint.parent,
        *options,
        "--keep-interval-updates",
        "9",
    )


@pytest.fixture(scope="session")
def stock(trained: Trained) -> Result:
    """The whole test set with stock fairseq and beam 1."""
    return trained.generate("stock")


@pytest.fixture
def loaded_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes for which a method of starting is asked are forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.cli.preloaded"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
