"""Plots of results: latency by batch size, speed-up by sentence, by edits, by accepted block; recall, ranks, time.

Each writes one SVG file, or nothing and gives None where there would be one point only.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fairseq_aggdec.report.colours import light
from fairseq_aggdec.report.svg import HEIGHT, MARKERS, Label, beside, sheet

MOST = 6  # series in one plot
# Name of a line -> x, y and what stands beside the point.
Series = Mapping[str, Sequence[tuple[float, float, str]]]


def latency_against_batch(
    latencies: Mapping[str, Mapping[int, float]], label: Label, path: Path
) -> Path | None:
    """Seconds per sentence against batch size, a line per system.

    Of more than six systems the first one is shown, and those of the rest that are fastest at the smallest batch size.
    """
    sizes = sorted({size for by_batch in latencies.values() for size in by_batch})
    if len(sizes) < 2:
        return None
    shown = _fastest(latencies, sizes[0])
    if len(shown) < len(latencies):
        label = label.with_note(
            f"the first and the {MOST - 1} fastest at batch {sizes[0]} of {len(latencies)} systems"
        )
    with sheet(path, label) as figure:
        axes = figure.subplots()
        for name in shown:
            points = sorted(latencies[name].items())
            axes.plot([b for b, _ in points], [1e3 * s for _, s in points], label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _ticks(axes, sizes)
        _decades(axes)
        axes.set_xlabel("batch size, sentences")
        axes.set_ylabel("milliseconds per sentence")
        beside(axes)
    return path


def _fastest(latencies: Mapping[str, Mapping[int, float]], size: int) -> list[str]:
    """At most six systems, in their order: the first, which is the baseline, and the fastest."""
    first, *others = latencies
    others.sort(key=lambda name: latencies[name].get(size, float("inf")))
    kept = {first, *others[: MOST - 1]}
    return [name for name in latencies if name in kept]


def _ticks(axes: Axes, places: Iterable[float]) -> None:
    """Marks on the x axis where the data is, and nowhere else."""
    axes.xaxis.set_major_locator(FixedLocator(list(places)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _decades(axes: Axes) -> None:
    """Plain numbers 1, 2, 5, 10, ... on a logarithmic y axis, as far as the data goes."""
    low, high = axes.get_ylim()
    steps = [m * 10.0**e for e in range(-3, 6) for m in (1, 2, 5)]
    inside = [step for step in steps if low <= step <= high]
    axes.yaxis.set_major_locator(FixedLocator(inside))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))


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
                _ticks(axes, sorted({p[0] for points in series.values() for p in points}))
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
        _ticks(axes, places)
        beside(axes, reverse=True)
    return path
