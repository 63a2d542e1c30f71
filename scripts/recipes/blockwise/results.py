"""Rows of ``scripts/recipes/blockwise/table.py``, kept over a kill, and the tables of them (Stern et al., Table 1)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fairseq_aggdec.records import machine
from fairseq_aggdec.records import results as files
from scripts.recipes import paper_plots

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
        fingerprint: of all that the numbers depend on.
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
    fingerprint: str


@dataclass
class Speed:
    """One model under one rule, one sentence at a time.

    Attributes:
        mean_accepted: tokens per iteration on the timed sentences.
        milliseconds: wall clock per sentence, the median over repeats.
        speedup: over our own greedy decoding of the same model.
        fingerprint: of all that the numbers depend on, the machine included.
    """

    model: str
    rule: str
    mean_accepted: float
    milliseconds: float
    speedup: float
    fingerprint: str


@dataclass
class Results:
    """What is measured, in ``OUTPUT.json``; ``known`` is what an earlier run left there."""

    output: Path
    command: str
    scores: list[Score] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    known: dict[str, Score] = field(default_factory=dict)
    timed: dict[str, list[Speed]] = field(default_factory=dict)

    def read(self) -> None:
        """Takes over what an earlier run measured."""
        path = files.named(self.output, ".json")
        if not path.exists():
            return
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            found = [Score(**row) for row in record["scores"] if "fingerprint" in row]
            speeds = [Speed(**row) for row in record.get("speeds", [])]
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(
                f"error: --output: {path} is no result of this script: {error}"
            ) from error
        self.known = {score.fingerprint: score for score in found}
        for speed in speeds:
            self.timed.setdefault(speed.fingerprint, []).append(speed)

    def write(self) -> str:
        """Writes OUTPUT.json and OUTPUT.md and returns the tables."""
        here = machine.describe()
        kept = {score.fingerprint for score in self.scores}
        # What this run has not come to yet stays for the next one.
        later = [score for key, score in self.known.items() if key not in kept]
        now = {speed.fingerprint for speed in self.speeds}
        untimed = [speed for key, rows in self.timed.items() if key not in now for speed in rows]
        record = {
            "title": TITLE,
            "command": self.command,
            "machine": here,
            "scores": [asdict(score) for score in self.scores + later],
            "speeds": [asdict(speed) for speed in self.speeds + untimed],
        }
        files.write_text(files.named(self.output, ".json"), json.dumps(record, indent=1) + "\n")
        tables = f"{grid(self.scores)}\n\n{rows(self.scores, self.speeds)}"
        signature = self.scores[0].signature if self.scores else ""
        text = f"# {TITLE}\n\n`{self.command}`\n\n{tables}\n\n"
        text += f"sacreBLEU signature: `{signature}`. {machine.sentence(here)}\n"
        files.write_text(files.named(self.output, ".md"), text)
        return tables

    def finish(self) -> str:
        """Writes the end result: only what this command measures, and the plot."""
        self.known, self.timed = {}, {}
        tables = self.write()
        if self.speeds:
            record = json.loads(files.named(self.output, ".json").read_text(encoding="utf-8"))
            paper_plots.draw(self.output, record)
        return tables


def rows(scores: Sequence[Score], speeds: Sequence[Speed]) -> str:
    """Every model under every rule."""
    ratio = {(speed.model, speed.rule): f"{speed.speedup:.2f}" for speed in speeds}
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for score in scores:
        cells = (
            score.model,
            "" if score.updates is None else str(score.updates),
            score.rule,
            f"{score.bleu:.2f}",
            f"{score.mean_accepted:.2f}",
            f"{score.accepted_block:.2f}",
            f"{score.differ} of {score.sentences}",
            ratio.get((score.model, score.rule), ""),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


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
    lines = ["| k | " + " | ".join(settings) + " |", "|---|" + "---|" * len(settings)]
    for size in sizes:
        row = (cells.get((size, setting), "") for setting in settings)
        lines.append(f"| {size} | " + " | ".join(row) + " |")
    return "\n".join(lines)
