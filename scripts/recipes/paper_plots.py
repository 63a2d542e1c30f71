"""Figures of the papers, from the JSON of a result alone: ``python -m scripts.recipes.paper_plots OUTPUT``.

Of a result of ``aggdec bench`` it draws OUTPUT-distribution.svg and OUTPUT-edits.svg.
"""

from __future__ import annotations

import itertools
import json
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from fairseq_aggdec.bench import systems
from fairseq_aggdec.records import results
from fairseq_aggdec.records.machine import count, near
from fairseq_aggdec.report.colours import light
from scripts.recipes.svg import HEIGHT, MARKERS, Label, beside, sheet
from scripts.recipes.svg import ticks as svg_ticks

Record = Mapping[str, Any]
MOST = 6  # series in one plot

STOCK, ENGINE = "Transformer, fairseq", "Transformer, this engine"  # of interleaved/figures.py
# Name of a line -> x, y and what stands beside the point.
Series = Mapping[str, Sequence[tuple[float, float, str]]]


def draw(output: Path, record: Record) -> list[Path]:
    """Draws ``OUTPUT*.svg``, whichever belong to a result; gives those that were written.

    Args:
        output: name of the result without ``.json``.
        record: what is in that file.
    """
    drawn: list[Path | None] = []
    for field, plot in PLOTS.items():
        if field in record:
            drawn += plot(output, record)
    return [path for path in drawn if path is not None]


def label(record: Record, shown: str = "", **context: object) -> Label:
    """Title, context and machine of a plot; ``context`` is counted: ``sentences=160``."""
    counted = [count(number, name) for name, number in context.items() if number is not None]
    title = str(record.get("title", ""))
    whole = Label(title or shown, "; ".join([*origin(record), *counted]), on(record["machine"]))
    return whole.of(shown) if title and shown not in title else whole


def origin(record: Record) -> list[str]:
    """Model, data set and precision of a result, as far as its command names them."""
    words = shlex.split(str(record["command"]))
    words = words[3 if words[1] == "-m" else 2 :]  # python -m MODULE DATA, aggdec TOOL DATA
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


def single(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT-distribution.svg and OUTPUT-edits.svg: sentences one at a time (Ge et al., Figures 5 and 8)."""
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
    drawn = [speedup_distribution(speedups, baseline, about, path)]
    ratios = taken.get("edit_ratios", [])
    # In a translation nearly every word is an edit, which says nothing.
    if ratios and statistics.median(ratios) < 0.5:
        path = results.named(output, "-edits.svg")
        drawn.append(speedup_against_edits(ratios, speedups, baseline, about, path))
    return drawn


def speedup_distribution(
    speedups: Sequence[float], baseline: str, label: Label, path: Path
) -> Path | None:
    """Histogram of per-sentence speed-ups over ``baseline``, with their median."""
    if len(speedups) < 2:
        return None
    middle = statistics.median(speedups)
    with sheet(path, label) as figure:
        axes = figure.subplots()
        bins = min(30, max(5, len(speedups) // 4))
        axes.hist(speedups, bins=bins, color=light("series-1"), edgecolor=light("paper"))
        axes.axvline(middle, color=light("series-2"), linestyle="--", marker="")
        axes.set_title(f"dashed: the median, {middle:.1f} times as fast")
        axes.set_xlim(left=0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"speed-up over {baseline}")
        axes.set_ylabel("sentences")
    return path


def speedup_against_edits(
    ratios: Sequence[float], speedups: Sequence[float], baseline: str, label: Label, path: Path
) -> Path | None:
    """One point per sentence: edit distance between input and output over input length, and speed-up."""
    if len(set(ratios)) < 2:
        return None
    with sheet(path, label) as figure:
        axes = figure.subplots()
        axes.scatter(ratios, speedups, s=14, alpha=0.6, color=light("series-1"), linewidths=0)
        axes.axhline(1, color=light("series-2"), linestyle="--", marker="", linewidth=1)
        axes.set_title("one point is one sentence; dashed: as fast as the baseline")
        axes.set_xlabel("edit ratio: edits from input to output / input tokens")
        axes.set_ylabel(f"speed-up over {baseline}")
        axes.set_xlim(left=-0.02 * max(ratios))
        axes.set_ylim(bottom=0)
    return path


def interleaved(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT-batch.svg, OUTPUT-length.svg and OUTPUT-words.svg: Figures 2 to 4 of Zhang et al."""
    rows = record["results"]
    if not isinstance(rows, Mapping) or not {"batch", "length", "words"} <= rows.keys():
        return []
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
        lines(batch, "batch size, sentences", gain, about, files[0], ticks=True),
        lines({"": length}, "source tokens", gain, one, files[1]),
        lines({"": words}, f"{gain} on this engine", "BLEU", one, files[2]),
    ]


def lattice_time(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT-time.svg: Figure 4 of Deng and Rush."""
    spans = record["spans"]
    parts = {
        name: [span["milliseconds"][name] for span in spans] for name in spans[0]["milliseconds"]
    }
    return [
        time_by_length(
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
    return [lines({"": series}, x, y, about, path, ticks=True)]


def lattice_recall(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT.svg: Figure 1 of Deng and Rush."""
    series = {
        name: [(int(n), 100 * share, "") for n, share in curve.items()]
        for name, curve in record["recall"].items()
    }
    x, y = "candidates per position (N)", "reference tokens in the lattice, %"
    about = label(record, "Reference tokens in the lattice", sentence_pairs=record["pairs"])
    path = results.named(output, ".svg")
    return [lines({"": series}, x, y, about, path, ticks=True)]


def blockwise(output: Path, record: Record) -> list[Path | None]:
    """OUTPUT-speedup.svg: Figure 4 of Stern et al., a series for each acceptance rule."""
    series: dict[str, list[tuple[float, float]]] = {}
    for speed in record["speeds"]:
        point = (speed["mean_accepted"], speed["speedup"])
        series.setdefault(speed["rule"], []).append(point)
    about = label(record, models=len({speed["model"] for speed in record["speeds"]}))
    path = results.named(output, "-speedup.svg")
    return [speedup_against_accepted(series, about, path)]


# Field of a result -> what draws it.
PLOTS = {
    "distribution": single,
    "results": interleaved,
    "spans": lattice_time,
    "ranks": lattice_ranks,
    "recall": lattice_recall,
    "speeds": blockwise,
}


# -- plots; each gives None where there would be one point only


def speedup_against_accepted(
    series: Mapping[str, Sequence[tuple[float, float]]], label: Label, path: Path
) -> Path | None:
    """Wall-clock speed-up over greedy against mean accepted block size (Stern et al., Figure 4).

    Args:
        series: acceptance rule -> (tokens per iteration, speed-up) of each model.
    """
    points = [point for of_rule in series.values() for point in of_rule]
    if len(points) < 2:
        return None
    with sheet(path, label) as figure:
        axes = figure.subplots()
        for number, (name, of_rule) in enumerate(series.items()):
            accepted, speedups = zip(*of_rule, strict=True)
            axes.scatter(
                accepted, speedups, s=26, marker=MARKERS[number % len(MARKERS)], label=name
            )
        axes.axhline(1, color=light("muted"), linestyle="--", marker="", linewidth=1)
        axes.set_title("one point is one model under one acceptance rule; dashed: our greedy")
        axes.set_xlabel("mean accepted block size, tokens per iteration")
        axes.set_ylabel("speed-up over our greedy")
        axes.set_ylim(bottom=0)
        beside(axes)
    return path


def lines(
    panels: Mapping[str, Series], x: str, y: str, label: Label, path: Path, ticks: bool = False
) -> Path | None:
    """Lines through named points, in panels side by side that share their y axis.

    Args:
        panels: heading -> series; of more than six the first six are shown.
        x, y: what the axes are, with their units.
        ticks: the x axis is logarithmic, with a mark at each point.
    """
    most = max(map(len, panels.values()), default=0)
    if most > MOST:
        panels = {
            heading: dict(itertools.islice(series.items(), MOST))
            for heading, series in panels.items()
        }
        label = label.with_note(f"the first {MOST} of {most} lines")
    spots = [spot for series in panels.values() for points in series.values() for spot in points]
    if len({left for left, _, _ in spots}) < 2:
        return None
    with sheet(path, label, HEIGHT if len(panels) == 1 else 0.85 * HEIGHT) as figure:
        row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (heading, series) in zip(row, panels.items(), strict=True):
            for number, (name, points) in enumerate(series.items()):
                axes.plot([p[0] for p in points], [p[1] for p in points], label=name)
                for left, up, text in points:
                    aside = (-5, -11) if number % 2 else (5, 5)  # series may be close to each other
                    axes.annotate(
                        text,
                        (left, up),
                        xytext=aside,
                        textcoords="offset points",
                        fontsize=7.5,
                        ha="right" if number % 2 else "left",
                    )
            if ticks:
                axes.set_xscale("log", base=2)
                svg_ticks(axes.xaxis, sorted({p[0] for points in series.values() for p in points}))
            axes.set_title(heading)
            axes.set_xlabel(x)
        row[0].set_ylabel(y)
        beside(row[-1])
    return path


def time_by_length(
    places: Sequence[float],
    sentences: Sequence[int],
    parts: Mapping[str, Sequence[float]],
    label: Label,
    path: Path,
) -> Path | None:
    """Milliseconds by part against target length, stacked, under the number of sentences of each length.

    Args:
        places: middles of the spans of length, tokens.
        sentences: of each span.
        parts: part -> milliseconds per sentence in each span.
    """
    if len(places) < 2:
        return None
    with sheet(path, label, 1.3 * HEIGHT) as figure:
        above, axes = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3])
        wide = 0.9 * (places[1] - places[0])
        above.bar(places, sentences, wide, color=light("muted"))
        above.set_ylabel("sentences")
        axes.stackplot(places, *parts.values(), labels=list(parts), edgecolor=light("paper"))
        axes.set_xlabel("target length, tokens")
        axes.set_ylabel("milliseconds per sentence")
        svg_ticks(axes.xaxis, places)
        beside(axes, reverse=True)
    return path


if __name__ == "__main__":
    place = Path(sys.argv[1])
    draw(place, json.loads(results.named(place, ".json").read_text(encoding="utf-8")))
