"""Plots of a result file, from its JSON alone."""

from __future__ import annotations

import itertools
import shlex
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_aggdec.bench import systems
from fairseq_aggdec.records import results
from fairseq_aggdec.records.machine import count, near
from fairseq_aggdec.report import plots
from fairseq_aggdec.report.svg import Label

Record = Mapping[str, Any]


def draw(output: Path, record: Record) -> list[Path]:
    """Draws ``OUTPUT-*.svg``, whichever belong to the result OUTPUT.json; gives those that were written."""
    drawn: list[Path | None] = []
    for field, plot in PLOTS.items():
        if field in record:
            drawn += plot(output, record)
    return [path for path in drawn if path is not None]


def is_timed(rows: object) -> bool:
    """Tells whether results are rows of systems that were timed."""
    return isinstance(rows, list) and bool(rows) and {"system", "batch_size", "p50"} <= set(rows[0])


# -- what stands around a plot


def label(record: Record, shown: str = "", **context: object) -> Label:
    """Title, context and machine of a plot; ``context`` is counted: ``sentences=160``."""
    counted = [count(number, name) for name, number in context.items() if number is not None]
    title = str(record.get("title", ""))
    whole = Label(title or shown, "; ".join([*origin(record), *counted]), on(record["machine"]))
    return whole.of(shown) if title and shown not in title else whole


def origin(record: Record) -> list[str]:
    """Model, data set and precision of a result, as far as its command names them."""
    words = shlex.split(str(record["command"]))[2:]
    given = dict(itertools.pairwise(words))
    found = []
    if "--path" in given:
        found.append(f"model {near(given['--path'])}")
    if "--replay" in given:
        found.append(f"replay of {near(given['--replay'])}")
    if words and not words[0].startswith("-"):
        subset = record.get("split") or given.get("--gen-subset") or "test"
        found.append(f"{subset} set of {near(words[0])}")
    precision = str(record.get("precision", ""))
    return [*found, precision] if precision and precision not in str(record.get("title")) else found


def on(here: Mapping[str, Any]) -> str:
    """The machine in a line that fits below a plot."""
    gpu = f", {here['gpu']}" if here.get("gpu") else ""
    torch = here["versions"].get("torch", "")
    return (
        f"{here['processor']}, {here['cores']} cores, {here['memory_gib']} GiB{gpu}; "
        f"torch {torch}; commit {here['commit']}"
    )


# -- one function for each kind of result


def by_batch(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT-batch.svg of timed systems, with the first number of threads."""
    rows = record["results"]
    if not is_timed(rows):
        return []
    threads = rows[0]["threads"]
    latencies: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["threads"] == threads:
            name = systems.label(row["system"])
            seconds = row["seconds"] / row["sentences"]
            latencies.setdefault(name, {})[row["batch_size"]] = seconds
    about = label(record, "batch size", sentences=rows[0]["sentences"], threads=threads)
    return [plots.latency_against_batch(latencies, about, results.named(output, "-batch.svg"))]


def single(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT-distribution.svg and, of a benchmark, OUTPUT-edits.svg: sentences one at a time."""
    taken = record["distribution"]
    speedups = taken["speedups"]
    name = systems.label(taken["system"])
    baseline = taken.get("baseline") or next(iter(record["results"][0]["speedup"]))
    baseline = systems.label(baseline)
    about = label(
        record,
        f"speed-up of {name}",
        sentences=len(speedups),
        threads=record["results"][0]["threads"],
    )
    about = about.with_note("one sentence at a time")
    path = results.named(output, "-distribution.svg")
    drawn = [plots.speedup_distribution(speedups, baseline, about, path)]
    ratios = taken.get("edit_ratios", [])
    # In a translation nearly every word is an edit, which says nothing.
    if ratios and statistics.median(ratios) < 0.5:
        path = results.named(output, "-edits.svg")
        drawn.append(plots.speedup_against_edits(ratios, speedups, baseline, about, path))
    return drawn


# Field of a result -> what draws it.
PLOTS = {"results": by_batch, "distribution": single}
