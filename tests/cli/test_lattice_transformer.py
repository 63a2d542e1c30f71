"""Sequence-to-lattice from ``fairseq-train`` over the tables to ``fairseq-generate --decoding lattice``."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from fairseq_cli import train

from fairseq_aggdec.cli import lattice_tables
from tests.cli.commands import PLUGIN, TRAINING, Result, Trained, run


def train_scorer(trained: Trained, folder: Path, *options: str | Path, updates: int) -> Result:
    more = ["--arch", "lattice_transformer", "--max-update", str(updates), "--save-dir", folder]
    more += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    more += ["--base-checkpoint", trained.checkpoint, "--dropout", "0", "--no-epoch-checkpoints"]
    return run(train.cli_main, *[trained.data, *PLUGIN, *TRAINING, *more, *options])


@pytest.fixture(scope="module")
def scorer(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scorer with tables beside the data, from links of its own: this corpus mostly copies."""
    folder = tmp_path_factory.mktemp("scorer")
    train_scorer(trained, folder, updates=200)
    lines = []
    for source, target in zip(trained.source("train"), targets(trained), strict=True):
        words = source.split()
        lines.append(" ".join(f"{words.index(w)}-{t}" for t, w in enumerate(target) if w in words))
    links = folder / "links"
    links.write_text("\n".join(lines) + "\n")
    tables = lattice_tables.main
    tables([str(trained.data), "--links", str(links)])
    return folder / "checkpoint_last.pt"


def targets(trained: Trained) -> list[list[str]]:
    lines = (trained.folder / "train.tgt").read_text().splitlines()
    return [line.split() for line in lines]


def test_it_translates(trained: Trained, scorer: Path) -> None:
    found = trained.generate("lattice", path=scorer)
    texts, references = found.texts("H"), found.lines("T")
    assert len(texts) == 53
    assert sum(text == references[name] for name, text in texts.items()) > 20


def test_options(trained: Trained, scorer: Path) -> None:
    options = "--nbest 3 --variant lattice-candidates=16,lattice-length-window=2"
    options += " --variant lattice-smoothing=none,lattice-least-probability=0"
    options += " --variant lattice-normalise=vocabulary"
    found = trained.generate("lattice", *shlex.split(options), path=scorer)
    assert sum(line.startswith("H-") for line in found.stdout.splitlines()) > 53


def test_training_resumes(trained: Trained, scorer: Path) -> None:
    result = train_scorer(trained, scorer.parent, updates=202)
    assert result.logged(r"Loaded checkpoint .*checkpoint_last\.pt")
