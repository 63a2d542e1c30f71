"""The figures of lattices: ranks against a loop over single paths, times by length, and the whole from a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq_cli import train
from torch import Tensor

from fairseq_aggdec.cli import lattice_tables
from fairseq_aggdec.lattice.lattice import Lattice
from fairseq_aggdec.lattice.length import LengthWindow
from scripts.recipes.lattice import figures as lattice_figures
from tests.cli.commands import CUT, PLUGIN, TRAINING, Trained, run

SCRIPT: dict[str, Any] = vars(lattice_figures)
WAYS = {"best edge to the word", "edge", "candidate model"}
PAD, EOS = 1, 2


def random_lattice(seed: int) -> tuple[Lattice, Tensor, Tensor]:
    """Two rows of lengths 2 to 4 and 1 to 2, five candidates, with scores."""
    generator = torch.Generator().manual_seed(seed)
    shortest, longest = torch.tensor([2, 1]), torch.tensor([4, 2])
    tokens = torch.randint(4, 30, (2, 5, 5), generator=generator)
    own = torch.rand(2, 5, 5, generator=generator).log()
    at = torch.arange(5)
    for row in range(2):
        own[row, at >= longest[row], 2:] = -torch.inf
        tokens[row, :, 0], tokens[row, :, 1] = EOS, PAD
        own[row, :, 0] = torch.where((at >= shortest[row]) & (at <= longest[row]), 0.0, -torch.inf)
        own[row, :, 1] = torch.where(at > shortest[row], 0.0, -torch.inf)
    lattice = Lattice(tokens, own, LengthWindow(shortest, longest), PAD, EOS)
    # Few different scores: ties are there.
    first = -torch.randint(1, 4, (2, 5), generator=generator).float()
    edges = -torch.randint(1, 6, (2, 4, 5, 5), generator=generator).float()
    return lattice, first, edges


def slow_ranks(
    lattice: Lattice, first: Tensor, edges: Tensor, choices: Tensor
) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {name: [] for name in WAYS}

    def is_word(row: int, position: int, candidate: int) -> bool:
        there = lattice.log_probabilities[row, position, candidate] > -torch.inf
        return bool(there) and int(lattice.tokens[row, position, candidate]) not in (PAD, EOS)

    for row, path in enumerate(choices.tolist()):
        for position, chosen in enumerate(path):
            if not is_word(row, position, chosen):
                continue
            words = [j for j in range(5) if is_word(row, position, j)]
            leading = {(None, j): float(first[row, j]) for j in words}
            taken = None
            if position:
                taken = path[position - 1]
                leading = {
                    (i, j): float(edges[row, position - 1, i, j])
                    for j in words
                    for i in range(5)
                    if is_word(row, position - 1, i)
                }
            best = {j: max(s for (_, k), s in leading.items() if k == j) for j in words}
            own = {j: float(lattice.log_probabilities[row, position, j]) for j in words}
            for name, scores, mine in (
                ("best edge to the word", best, best[chosen]),
                ("edge", leading, leading[taken, chosen]),
                ("candidate model", own, own[chosen]),
            ):
                found[name].append(1 + sum(score > mine for score in scores.values()))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_ranks_are_those_of_a_loop(seed: int) -> None:
    lattice, first, edges = random_lattice(seed)
    choices = lattice.search(first, edges).choices
    found = SCRIPT["path_ranks"](lattice, first, edges, choices)
    assert found == slow_ranks(lattice, first, edges, choices)
    assert min(map(len, found.values())) > 0


def test_spans_are_means_of_like_lengths() -> None:
    times = [
        (length, dict.fromkeys(SCRIPT["PARTS"], length / 1000)) for length in (1, 5, 6, 10, 21)
    ]
    found = SCRIPT["spans"](times, 5)
    assert [(span.first, span.last, span.sentences) for span in found] == [
        (1, 5, 2),
        (6, 10, 2),
        (21, 25, 1),
    ]
    assert [span.milliseconds["scorer"] for span in found] == pytest.approx([3, 8, 21])


@pytest.fixture(scope="module")
def scorer(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scorer that has hardly learnt anything; its folder has tables in ``lattice``."""
    folder = tmp_path_factory.mktemp("scorer")
    more = ["--arch", "lattice_transformer", "--max-update", "3", "--save-dir", folder]
    more += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    more += ["--base-checkpoint", trained.checkpoint, "--no-epoch-checkpoints"]
    run(train.cli_main, trained.data, *PLUGIN, *TRAINING, *more)
    links = folder / "links"
    pairs = [(trained.folder / f"train.{side}").read_text().splitlines() for side in ("src", "tgt")]
    with links.open("w") as file:
        for source, target in zip(*pairs, strict=True):
            shorter = min(len(source.split()), len(target.split()))
            file.write(" ".join(f"{t}-{t}" for t in range(shorter)) + "\n")
    options = ["--links", links, "--held-out", "10", "--output", folder / "lattice"]
    lattice_tables.main([str(option) for option in (trained.data, *options)])
    return folder


def figures(trained: Trained, scorer: Path, *options: str | Path) -> None:
    common = [trained.data, *PLUGIN, "--path", scorer / "checkpoint_last.pt", "--cpu", *CUT]
    common += ["--gen-subset", "test", "--lattice", scorer / "lattice", "--repeats", "1"]
    SCRIPT["main"]([str(option) for option in (*common, *options)])


def test_figures_of_a_model(
    trained: Trained, scorer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "figures"
    figures(trained, scorer, "--limit", "12", "--span", "4", "--output", output)
    printed = capsys.readouterr().out.strip()
    record = json.loads(output.with_suffix(".json").read_text())
    assert sum(span["sentences"] for span in record["spans"]) == record["sentences"] == 12
    for span in record["spans"]:
        assert set(span["milliseconds"]) == {"encoder", "candidates", "scorer", "search"}
        assert min(span["milliseconds"].values()) > 0
        assert span["last"] - span["first"] == 3
    assert set(record["ranks"]) == WAYS
    for counts in record["ranks"].values():
        assert sum(counts.values()) == record["words"]
        assert min(map(int, counts)) >= 1
    assert record["candidates"] == 64
    assert printed.splitlines()[-1] in output.with_suffix(".md").read_text()
    for name in ("time", "ranks"):
        assert "<svg" in output.with_name(f"figures-{name}.svg").read_text()


@pytest.mark.parametrize("option", ["--limit", "--repeats", "--span"])
def test_sizes_that_cannot_be_are_refused(
    option: str, trained: Trained, scorer: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=f"{option} is 0; it must be at least 1"):
        figures(trained, scorer, option, "0", "--output", tmp_path / "none")
    assert not list(tmp_path.iterdir())
