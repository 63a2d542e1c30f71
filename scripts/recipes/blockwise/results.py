"""Rows of ``scripts/recipes/blockwise/table.py``, and the tables of them (Stern et al., Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fairseq_aggdec.records import results as files
from scripts.recipes import paper_plots, tables

TITLE = "Blockwise parallel decoding: quality, accepted block size and speed"
STOCK, EXACT = "stock --beam 1", "exact"
COLUMNS = (
    "model / k",
    "updates",
    "acceptance",
    "BLEU",
    "mean accepted tokens",
    "accepted block size",
    "differ from stock",
    "x our greedy",
)


@dataclass
class Score:
    """One model under one rule.

    Attributes:
        updates: how long it was trained, None where the checkpoint does not say.
        bleu: sacreBLEU on text, or BLEU on tokens with compounds split; the signature tells.
        mean_accepted: tokens per iteration, ``</s>`` counted.
        accepted_block: the same without the first iteration of a sentence, as the paper counts.
        differ: sentences whose tokens are not those of stock, of ``sentences``.
        signature: sacreBLEU's.
    """

    model: str
    updates: int | None
    rule: str
    bleu: float
    mean_accepted: float
    accepted_block: float
    differ: int
    sentences: int
    signature: str


@dataclass
class Speed:
    """One model under one rule, one sentence at a time.

    Attributes:
        mean_accepted: tokens per iteration on the timed sentences.
        milliseconds: wall clock per sentence, the median over repeats.
        speedup: over our own greedy decoding of the same model.
    """

    model: str
    rule: str
    mean_accepted: float
    milliseconds: float
    speedup: float


@dataclass
class Results:
    """What is measured, in ``OUTPUT.json``."""

    output: Path
    command: str
    scores: list[Score] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)

    def write(self) -> str:
        """Writes OUTPUT.json, OUTPUT.md and the plot, with what is there so far; returns the tables."""
        shown = f"{grid(self.scores)}\n\n{rows(self.scores, self.speeds)}"
        text = f"{shown}\n\nsacreBLEU signature: `{self.scores[0].signature}`."
        scores = [asdict(score) for score in self.scores]
        extra = {"speeds": [asdict(speed) for speed in self.speeds]}
        record = files.write_table(self.output, TITLE, self.command, text, scores, extra)
        if self.speeds:
            paper_plots.draw(self.output, record)
        return shown


def rows(scores: Sequence[Score], speeds: Sequence[Speed]) -> str:
    """Every model under every rule."""
    ratio = {(speed.model, speed.rule): f"{speed.speedup:.2f}" for speed in speeds}
    lines = [
        [
            *(score.model, score.updates, score.rule, score.bleu, score.mean_accepted),
            *(score.accepted_block, f"{score.differ} of {score.sentences}"),
            ratio.get((score.model, score.rule)),
        ]
        for score in scores
    ]
    return tables.table(COLUMNS, lines)


def grid(scores: Sequence[Score]) -> str:
    """Table 1 of the paper: block sizes by settings, with exact acceptance BLEU / mean accepted tokens (and accepted
    block size)."""
    cells: dict[tuple[str, str], str] = {}
    for score in scores:
        setting, _, size = score.model.partition("/")
        if score.rule == EXACT or size == "1":
            cells[size, setting] = (
                f"{score.bleu:.2f} / {score.mean_accepted:.2f} ({score.accepted_block:.2f})"
            )
    settings = list(dict.fromkeys(setting for _, setting in cells))
    sizes = sorted(dict.fromkeys(size for size, _ in cells), key=lambda s: (len(s), s))
    lines = [[size, *(cells.get((size, setting)) for setting in settings)] for size in sizes]
    return tables.table(["k", *settings], lines)
