"""Plots and tables of a result file, from its JSON alone: what every tool draws, and what draws old results anew."""

from __future__ import annotations

import itertools
import shlex
import statistics
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from fairseq_aggdec.bench import systems, table
from fairseq_aggdec.records import results
from fairseq_aggdec.report import plots
from fairseq_aggdec.report.svg import Label

Record = Mapping[str, Any]
STOCK, ENGINE = "Transformer, fairseq", "Transformer, this engine"  # of interleaved_figures.py


def draw(output: Path, record: Record) -> list[Path]:
    """Draws ``OUTPUT-*.svg``, whichever belong to a result; gives those that were written.

    Args:
        output: name of the result without ``.json``.
        record: what is in that file.
    """
    drawn: list[Path | None] = []
    for field, plot in PLOTS.items():
        if field in record:
            drawn += plot(output, record)
    return [path for path in drawn if path is not None]


def tables(output: Path, record: Record) -> Path | None:
    """Writes ``OUTPUT.md`` of a benchmark or a comparison; None for other results."""
    rows: Any = record.get("results")
    if not is_timed(rows):
        return None
    measure = str(record.get("quality", "BLEU"))
    shown = table.markdown([table.Line(**modern(row)) for row in rows], measure)
    if record.get("sacrebleu"):
        shown += f"\nsacreBLEU signature: `{record['sacrebleu']}`"
    path = results.named(output, ".md")
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    results.write_text(path, results.page(record, shown) + remarks(old))
    return path


def remarks(page: str) -> str:
    """What somebody wrote below the tables of a result."""
    lines = page.splitlines()
    made = [n for n, line in enumerate(lines) if line.startswith(("|", "sacreBLEU signature"))]
    return "".join(f"{line}\n" for line in lines[made[-1] + 1 :]) if made else ""


def modern(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is today: until version 0.1 all systems were compared with beam 1, and some had ``bleu``."""
    new = dict(row)
    if "bleu" in new:
        new["quality"] = new.pop("bleu")
    if "differ_from_beam1" in new:
        new["differ"] = new.pop("differ_from_beam1")
    return new


def is_timed(rows: object) -> bool:
    """Whether results are rows of systems that were timed."""
    return isinstance(rows, list) and bool(rows) and {"system", "batch_size", "p50"} <= set(rows[0])


# -- what stands around a plot


def label(record: Record, shown: str = "", **context: object) -> Label:
    """Title, context and machine of a plot; ``context`` is counted: ``sentences=160``."""
    counted = [count(number, name) for name, number in context.items() if number is not None]
    title = str(record.get("title", ""))
    if not title:
        return Label(shown, "; ".join([*origin(record), *counted]), on(record["machine"]))
    whole = Label(title, "; ".join([*origin(record), *counted]), on(record["machine"]))
    return whole.of(shown) if shown and shown not in title else whole


def count(number: object, name: str) -> str:
    """``1 thread``, ``2 threads``."""
    name = name.replace("_", " ")
    return f"{number} {name.removesuffix('s') if number == 1 else name}"


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


def near(path: str) -> str:
    """The end of a path, which says what it is."""
    return str(PurePath(*PurePath(path).parts[-2:]))


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
    if isinstance(rows, Mapping) and {"batch", "length", "words"} <= rows.keys():
        return interleaved(output, record)
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


def interleaved(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT-batch.svg, OUTPUT-length.svg and OUTPUT-words.svg: Figures 2 to 4 of Zhang et al."""
    rows = record["results"]
    batch: dict[str, dict[str, list[tuple[float, float, str]]]] = {}
    for cell in rows["batch"]:
        if cell["system"] not in (ENGINE, STOCK):
            point = (cell["batch_size"], cell["speedup"][ENGINE], "")
            panel = batch.setdefault(f"beam {cell['beam']}", {})
            panel.setdefault(cell["system"], []).append(point)
    length: dict[str, list[tuple[float, float, str]]] = {}
    for part in rows["length"]:
        if part["system"] not in (ENGINE, STOCK):
            middle = (part["shortest"] + part["longest"]) / 2
            length.setdefault(part["system"], []).append((middle, part["speedup"][ENGINE], ""))
    words: dict[str, list[tuple[float, float, str]]] = {}
    for spot in sorted(rows["words"], key=lambda spot: spot["words_per_direction"]):
        if spot["system"] != STOCK:
            name = f"h={spot['directions']}" + (f", dedup {spot['dedup']}" if spot["dedup"] else "")
            text = f"c={spot['words_per_direction']}"
            words.setdefault(name, []).append((spot["speedup"][ENGINE], spot["bleu"], text))
    gain = "speed-up over the Transformer"
    sentences = rows["batch"][0]["sentences"]
    about = label(record, sentences=sentences, threads=record["threads"])
    one = about.with_note("one sentence at a time")
    files = [results.named(output, f"-{name}.svg") for name in ("batch", "length", "words")]
    return [
        plots.lines(batch, "batch size, sentences", gain, about, files[0], ticks=True),
        plots.lines({"": length}, "source tokens", gain, one, files[1]),
        plots.lines({"": words}, f"{gain} on this engine", "BLEU", one, files[2]),
    ]


def lattice_time(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT-time.svg: Figure 4 of Deng and Rush."""
    spans = record["spans"]
    parts = {
        name: [span["milliseconds"][name] for span in spans] for name in spans[0]["milliseconds"]
    }
    return [
        plots.time_by_length(
            [(span["first"] + span["last"]) / 2 for span in spans],
            [span["sentences"] for span in spans],
            parts,
            label(record, sentences=record["sentences"]),
            results.named(output, "-time.svg"),
        )
    ]


def lattice_ranks(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT-ranks.svg: Figure 2 of Deng and Rush."""
    series = {}
    for name, counts in record["ranks"].items():
        by_rank = {int(rank): found for rank, found in counts.items()}
        total = sum(by_rank.values())
        ranks = [2**power for power in range(max(by_rank).bit_length())]
        series[name] = [
            (rank, 100 * sum(n for r, n in by_rank.items() if r <= rank) / total, "")
            for rank in ranks
        ]
    x, y = "rank before the search, or better", "words of the best path, %"
    about = label(record, words=record["words"], sentences=record["sentences"])
    path = results.named(output, "-ranks.svg")
    return [plots.lines({"": series}, x, y, about, path, ticks=True)]


def lattice_recall(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT.svg: Figure 1 of Deng and Rush."""
    series = {
        name: [(int(n), 100 * share, "") for n, share in curve.items()]
        for name, curve in record["recall"].items()
    }
    x, y = "candidates per position (N)", "reference tokens in the lattice, %"
    about = label(record, "Reference tokens in the lattice", sentence_pairs=record["pairs"])
    path = results.named(output, ".svg")
    return [plots.lines({"": series}, x, y, about, path, ticks=True)]


def blockwise(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT-speedup.svg: Figure 4 of Stern et al., a series for each acceptance rule."""
    series: dict[str, list[tuple[float, float]]] = {}
    for speed in record["speeds"]:
        point = (speed["mean_accepted"], speed["speedup"])
        series.setdefault(speed["rule"], []).append(point)
    about = label(record, models=len({speed["model"] for speed in record["speeds"]}))
    path = results.named(output, "-speedup.svg")
    return [plots.speedup_against_accepted(series, about, path)]


# Field of a result -> what draws it.
PLOTS = {
    "results": by_batch,
    "distribution": single,
    "spans": lattice_time,
    "ranks": lattice_ranks,
    "recall": lattice_recall,
    "speeds": blockwise,
}
