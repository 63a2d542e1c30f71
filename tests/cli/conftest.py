"""The trained model that tests of the command line share."""

from __future__ import annotations

import pytest
from fairseq_cli import preprocess

from tests.cli.commands import Result, Trained, preprocess_arguments, run, write_corpus


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model that has learnt to copy with edits, trained with the stock task."""
    result = Trained(tmp_path_factory.mktemp("copier"))
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
    return result


@pytest.fixture(scope="session")
def stock(trained: Trained) -> Result:
    """The whole test set with stock fairseq and beam 1."""
    return trained.generate("stock")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The recipes, which take longest, first: no worker is left with one of them at the end."""
    items.sort(key=lambda item: "recipe" not in item.path.name)
