"""Plots of results: latency by batch size, speed-up by sentence and by edits.

Each writes one SVG file, or nothing and gives None where there would be one point only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fairseq_aggdec.report.colours import light
from fairseq_aggdec.report.svg import Label, beside, sheet

MOST = 6  # series in one plot


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
        ticks(axes.xaxis, sizes)
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


def ticks(axis: Axis, places: Iterable[float]) -> None:
    """Plain numbers at these places of an axis, and no other marks."""
    axis.set_major_locator(FixedLocator(list(places)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _decades(axes: Axes) -> None:
    """Numbers 1, 2, 5, 10, ... on a logarithmic y axis, as far as the data goes."""
    low, high = axes.get_ylim()
    steps = [m * 10.0**e for e in range(-3, 6) for m in (1, 2, 5)]
    ticks(axes.yaxis, [step for step in steps if low <= step <= high])


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
