"""From measurements to tables: ratios, equality beside every speed, JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from rapidfuzz.distance import Levenshtein

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench.systems import STOCK_BEAMS, beam_of, label
from fairseq_aggdec.bench.timing import Measurement, different
from fairseq_aggdec.records import machine, results

Item = TypeVar("Item")

COLUMNS = (
    "system",
    "ms / sentence",
    "p50 ms",
    "p95 ms",
    "sentences / s",
    "tokens / s",
    "x beam 5",
    "x beam 1",
    "x our greedy",
    "mean accepted",
    "differ from stock",
)


@dataclass
class Line:
    """One system at one batch size and thread count. Times in seconds; p50 and p95 are of batches.

    ``differ`` counts sentences whose best hypothesis is not that of stock with the same beam; None where that was not
    timed. ``quality``: BLEU or F0.5, in points, where it was asked for.
    """

    system: str
    batch_size: int
    threads: int
    sentences: int
    tokens: int
    seconds: float
    p50: float
    p95: float
    mean_accepted: float | None
    differ: int | None
    speedup: dict[str, float]
    quality: float | None = None


def lines(measurements: Sequence[Measurement], batch_size: int, threads: int) -> list[Line]:
    """Puts the systems of one run beside each other."""
    by_name = {measurement.name: measurement for measurement in measurements}
    result = []
    for m in measurements:
        speedup: dict[str, float] = {
            base: by_name[base].total / m.total
            for base in ("beam5", "beam1", "greedy")
            if base in by_name
        }
        result.append(
            Line(
                m.name,
                batch_size,
                threads,
                len(m.outputs),
                m.tokens,
                m.total,
                m.percentile(0.5),
                m.percentile(0.95),
                m.mean_accepted,
                differing(m, by_name),
                speedup,
            )
        )
    return result


def differing(measurement: Measurement, by_name: Mapping[str, Measurement]) -> int | None:
    """Sentences on which a system differs from stock with the same beam, None for stock itself and without it."""
    name = measurement.name
    if name in STOCK_BEAMS and name != "beam1":
        return None
    oracle = by_name.get(f"beam{beam_of(name)}")
    return None if oracle is None else different(measurement, oracle)


def markdown(rows: Sequence[Line], quality: str = "quality") -> str:
    """One table per batch size and thread count; ``quality`` names the measure, where there is one."""
    parts = []
    columns = [*COLUMNS, *([quality] if any(row.quality is not None for row in rows) else [])]
    for key in dict.fromkeys((row.batch_size, row.threads) for row in rows):
        parts.append(f"**batch {key[0]}, {key[1]} thread{'s' if key[1] > 1 else ''}**\n")
        parts.append("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
        parts += [_row(row) for row in rows if (row.batch_size, row.threads) == key]
        parts.append("")
    return "\n".join(parts)


def _row(row: Line) -> str:
    def ratio(base: str) -> str:
        return f"{row.speedup[base]:.1f}" if base in row.speedup else ""

    cells = [
        label(row.system),
        f"{1e3 * row.seconds / row.sentences:.1f}",
        f"{1e3 * row.p50:.1f}",
        f"{1e3 * row.p95:.1f}",
        f"{row.sentences / row.seconds:.1f}",
        f"{row.tokens / row.seconds:.0f}",
        ratio("beam5"),
        ratio("beam1"),
        ratio("greedy"),
        "" if row.mean_accepted is None else f"{row.mean_accepted:.2f}",
        "" if row.differ is None else f"{row.differ} of {row.sentences}",
        *([] if row.quality is None else [f"{row.quality:.2f}"]),
    ]
    return "| " + " | ".join(cells) + " |"


def edit_ratio(source: Sequence[str], output: Sequence[str]) -> float:
    """Edit distance between input and output symbols over input length (both without ``</s>``)."""
    return Levenshtein.distance(source, output) / max(1, len(source))


def edit_ratios(session: Session, measurement: Measurement, limit: int | None) -> list[float]:
    """The edit ratio of each sentence, in the order in which they were timed."""
    source, target = session.task.source_dictionary, session.task.target_dictionary
    return [
        edit_ratio(
            [source[token] for token in session.dataset[sentence]["source"].tolist()[:-1]],
            [target[token] for token in measurement.outputs[sentence][:-1]],
        )
        for sentence in session.sentences(limit)
    ]


def spread(items: Sequence[Item], limit: int | None) -> list[Item]:
    """``limit`` of the items at equal distances, all of them for None."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


def write(
    output: Path, title: str, command: str, rows: Sequence[Line], extra: dict[str, object]
) -> dict[str, object]:
    """OUTPUT.json and OUTPUT.md with machine, versions, commit and command; gives what is in the JSON."""
    found = [asdict(row) for row in rows]
    return write_table(output, title, command, markdown(rows), found, extra)


def write_table(
    output: Path,
    title: str,
    command: str,
    table: str,
    found: object,
    extra: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """OUTPUT.json and OUTPUT.md of any measurement, with what it was made on; gives what is in the JSON."""
    record = {"title": title, "command": command, "machine": machine.describe(), **(extra or {})}
    record["results"] = found
    text = json.dumps(results.finite(record), indent=1, ensure_ascii=False)
    results.write_text(results.named(output, ".json"), text + "\n")
    results.write_text(results.named(output, ".md"), page(record, table))
    return record


def page(record: Mapping[str, Any], table: str) -> str:
    """A result in Markdown: title, command, machine, table."""
    on = machine.sentence(record["machine"])
    return f"# {record['title']}\n\n`{record['command']}`\n\n{on}\n\n{table.rstrip()}\n"
