"""Plots of the benchmark: speed-up by sentence, by edit ratio and by accepted block size, latency by batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def speedup_distribution(speedups: Sequence[float], baseline: str, path: Path) -> Path:
    """Histogram of per-sentence speed-ups over ``baseline``."""
    figure = Figure(figsize=(5, 3.2))
    axes = figure.subplots()
    axes.hist(speedups, bins=30, color="#4477aa")
    axes.set_xlabel(f"speed-up over {baseline}")
    axes.set_ylabel("sentences")
    return _save(figure, path)


def speedup_against_edits(
    ratios: Sequence[float], speedups: Sequence[float], baseline: str, path: Path
) -> Path:
    """One point per sentence: edit distance between input and output over input length, and speed-up."""
    figure = Figure(figsize=(5, 3.2))
    axes = figure.subplots()
    axes.scatter(ratios, speedups, s=8, alpha=0.5, color="#4477aa", linewidths=0)
    axes.set_xlabel("edit ratio (edits / input tokens)")
    axes.set_ylabel(f"speed-up over {baseline}")
    axes.set_xlim(left=-0.02, right=max(1.0, max(ratios, default=1.0)))
    axes.set_ylim(bottom=0)
    return _save(figure, path)


def latency_against_batch(latencies: Mapping[str, Mapping[int, float]], path: Path) -> Path:
    """Seconds per sentence against batch size, a line per system."""
    figure = Figure(figsize=(5, 3.2))
    axes = figure.subplots()
    for name, by_batch in latencies.items():
        axes.plot(list(by_batch), [1e3 * s for s in by_batch.values()], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("batch size")
    axes.set_ylabel("milliseconds per sentence")
    axes.legend(fontsize=7)
    return _save(figure, path)


def speedup_against_accepted(
    series: Mapping[str, Sequence[tuple[float, float]]], path: Path
) -> Path:
    """Wall-clock speed-up over greedy against mean accepted block size (Stern et al., Figure 4).

    Args:
        series: name -> (tokens per iteration, speed-up), in the order in which a line joins them.
    """
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for number, (name, points) in enumerate(series.items()):
        accepted, speedups = zip(*points, strict=True)
        axes.plot(accepted, speedups, marker="os^Dv"[number % 5], markersize=5, label=name)
    highest = max((accepted for points in series.values() for accepted, _ in points), default=1)
    # Where an iteration would cost no more than one step of greedy decoding.
    axes.plot([1, highest], [1, highest], color="#999999", linestyle=":", linewidth=1)
    axes.set_xlabel("mean accepted block size")
    axes.set_ylabel("speed-up over our greedy")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    return _save(figure, path)
