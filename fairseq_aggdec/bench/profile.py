"""Where an iteration's time goes: cost of a decoder call by width, and the share outside matrix products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench.timing import System, synchronise
from fairseq_aggdec.engine.compiled import CompiledLayers
from fairseq_aggdec.engine.int8 import Int8Linear
from fairseq_aggdec.engine.linear import FastLinear
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.windows.window import Window

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
START = 10  # committed positions before the window


@dataclass
class StepCost:
    """Time of one decoder call, vocabulary projection included.

    Attributes:
        seconds: window width in tokens -> seconds, medians.
        intercept, slope: of the straight line through them, seconds and seconds per token.
    """

    seconds: dict[int, float]
    intercept: float
    slope: float

    @property
    def intercept_in_tokens(self) -> float:
        """What a call costs beyond its tokens, in tokens' worth: how long a draft should dare to be."""
        return self.intercept / self.slope if self.slope > 0 else float("inf")


@torch.inference_mode()
def step_cost(
    session: Session, widths: Sequence[int] = WIDTHS, repeats: int = 15, rows: int = 1
) -> StepCost:
    """Times windows of each width on so many copies of the median sentence, the widths in turn."""
    generator, _ = session.generator("greedy")
    order = session.sentences()
    sample = session.dataset.collater([session.dataset[order[len(order) // 2]]] * rows)
    if session.cuda:
        sample = {"net_input": {k: v.cuda() for k, v in sample["net_input"].items()}}
    tokens = sample["net_input"]["src_tokens"]
    generator.verifier.start(sample["net_input"], START + max(widths))
    first = torch.full((rows * START,), 4, device=tokens.device)
    generator.verifier.read(Window(first, [0] * rows, [START] * rows))
    windows = {
        w: Window(torch.full((rows * w,), 5, device=tokens.device), [START] * rows, [w] * rows)
        for w in widths
    }
    times: dict[int, list[float]] = {width: [] for width in widths}
    for repeat in range(repeats + 2):
        for width, window in windows.items():
            synchronise()
            start = time.perf_counter()
            generator.verifier.read(window)
            synchronise()
            if repeat >= 2:  # the first ones warm up
                times[width].append(time.perf_counter() - start)
    medians = {width: statistics.median(seconds) for width, seconds in times.items()}
    slope, intercept = np.polyfit(list(medians), list(medians.values()), 1)
    return StepCost(medians, float(intercept), float(slope))


class Stopwatch:
    """Seconds spent in something that is called often, while it runs."""

    def __init__(self) -> None:
        self.seconds, self.running = 0.0, False

    def around(self, function: Callable) -> Callable:
        """``function``, its time added here."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.running:
                return function(*args, **kwargs)
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds += time.perf_counter() - start
            return result

        return timed


@contextmanager
def product_times() -> Iterator[tuple[Stopwatch, Stopwatch]]:
    """Times our linear layers and attention inside the decoder (on CPU, where a call returns when it is done).

    What the compiled library does in one call counts as linear layers.
    """
    linear, attention = Stopwatch(), Stopwatch()
    shared, read = F.scaled_dot_product_attention, Verifier.read
    timed: tuple[tuple[Any, str], ...] = (
        (FastLinear, "__call__"),
        (Int8Linear, "__call__"),
        (CompiledLayers, "decode"),
    )
    originals = [getattr(owner, name) for owner, name in timed]

    def verify(*args: Any) -> Any:
        linear.running = attention.running = True
        try:
            return read(*args)
        finally:
            linear.running = attention.running = False

    for (owner, name), original in zip(timed, originals, strict=True):
        setattr(owner, name, linear.around(original))
    F.scaled_dot_product_attention = attention.around(shared)
    Verifier.read = verify  # type: ignore[method-assign,assignment]
    try:
        yield linear, attention
    finally:
        for (owner, name), original in zip(timed, originals, strict=True):
            setattr(owner, name, original)
        Verifier.read = read  # type: ignore[method-assign]
        F.scaled_dot_product_attention = shared


@dataclass
class Overhead:
    """Seconds of decoding by what they went into; ``host`` is everything of the loop but the decoder's products."""

    encoder: float
    linear: float
    attention: float
    host: float
    iterations: int

    @property
    def share(self) -> float:
        """Host overhead over the time of the loop (the encoder not counted)."""
        return self.host / (self.linear + self.attention + self.host)


def overhead(system: System, counters: Counters, batches: Sequence[dict[str, Any]]) -> Overhead:
    """Splits the time that ``system`` (of ours, on CPU) spends on ``batches``; ``counters`` are its own."""
    for sample in batches[:2]:
        system.decode(sample)
    before, rounds = dict(counters.seconds), counters.iterations
    with product_times() as (linear, attention):
        for sample in batches:
            system.decode(sample)
    spent = {part: seconds - before[part] for part, seconds in counters.seconds.items()}
    encoder = spent.pop("encoder")
    host = sum(spent.values()) - linear.seconds - attention.seconds
    return Overhead(encoder, linear.seconds, attention.seconds, host, counters.iterations - rounds)


def cost_table(threads: int, cost: StepCost) -> str:
    """Markdown of the cost of a call."""
    rows = "\n".join(f"| {w} | {1e3 * s:.2f} |" for w, s in cost.seconds.items())
    return (
        f"**{threads} thread(s)**: {1e3 * cost.intercept:.2f} ms + {1e3 * cost.slope:.3f} ms a token; the "
        f"intercept is worth {cost.intercept_in_tokens:.0f} tokens\n\n| tokens read | ms |\n|---|---|\n{rows}"
    )


def overhead_table(found: Sequence[tuple[str, int, Overhead]]) -> str:
    """Markdown of name, threads and overhead of several systems."""
    columns = (
        "system",
        "threads",
        "iterations",
        "ms / iteration",
        "linear layers",
        "attention",
        "host",
    )
    rows = ["| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)]
    for name, threads, one in found:
        loop = one.linear + one.attention + one.host
        shares = (f"{100 * part / loop:.1f} %" for part in (one.linear, one.attention, one.host))
        cells = [name, str(threads), str(one.iterations), f"{1e3 * loop / one.iterations:.2f}"]
        rows.append("| " + " | ".join([*cells, *shares]) + " |")
    return "\n".join(rows)
