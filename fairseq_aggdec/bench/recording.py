"""Records of what draft-and-verify did, iteration by iteration: kept for traces, reports and replays."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fairseq_aggdec.records.results import write_text


@dataclass
class Iteration:
    """One round of one sentence; tokens are ids of the target dictionary.

    Attributes:
        drafted: what was proposed.
        predicted: what the verifier would emit at each position of the window, one more than ``drafted``.
        accepted: how many drafted tokens stood (the bifurcation).
        emitted: tokens gained: the accepted ones and the verifier's own, nothing after ``</s>``.
    """

    drafted: list[int]
    predicted: list[int]
    accepted: int
    emitted: list[int]


@dataclass
class Record:
    """One sentence.

    Attributes:
        sentence: index in the data set.
        source: ids of the source dictionary, ``</s>`` included, no padding.
        iterations: in order.
    """

    sentence: int
    source: list[int]
    iterations: list[Iteration] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        """Emitted tokens, ``</s>`` included."""
        return [token for iteration in self.iterations for token in iteration.emitted]


def save(path: Path, records: Iterable[Record]) -> None:
    """One JSON object a line."""
    lines = (json.dumps(asdict(record), separators=(",", ":")) for record in records)
    write_text(path, "".join(line + "\n" for line in lines))


def load(path: Path) -> list[Record]:
    """The inverse of :func:`save`; one clear error for anything else."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [
            Record(row["sentence"], row["source"], [Iteration(**i) for i in row["iterations"]])
            for row in rows
        ]
    except OSError as error:
        raise SystemExit(f"error: {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(
            f"error: {path} is not a recording of benchmark.py --record: {error}"
        ) from error
