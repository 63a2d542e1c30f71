"""Timing several systems fairly in one process: in turn, the order rotating, the device synchronised.

A turn is a few batches, after one that is not timed: the weights of the system before it have left the processor's
caches by then, as they have where a system runs alone.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm import tqdm

from fairseq_aggdec.engine.graphs.capture import made
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import Drafter

# A batch as the session collates it -> the output tokens of each of its rows.
Decode = Callable[[dict[str, Any]], list[list[int]]]

TURN = 8  # batches


@dataclass
class System:
    """One system under measurement.

    Attributes:
        counters: None for stock and other engines.
        drafter: what drafts; it knows how long its encoder took.
        beam, stock, models, precision: what the output is compared by: with stock of this beam and these models.
        steps: sentence -> iterations when it was last decoded; empty where the system does not say.
        generator: of fairseq's kind; None for other engines.
    """

    name: str
    decode: Decode
    counters: Counters | None = None
    drafter: Drafter = field(default_factory=Drafter)
    beam: int = 1
    stock: bool = False
    models: str = ""
    precision: str = ""
    steps: dict[int, int] = field(default_factory=dict)
    generator: Any = None

    def timed(self, sample: dict[str, Any]) -> tuple[float, dict[int, list[int]]]:
        """Decodes a batch: wall clock in seconds, and sentence -> output tokens."""
        synchronise()
        start = time.perf_counter()
        outputs = self.decode(sample)
        synchronise()
        seconds = time.perf_counter() - start
        return seconds, dict(zip(sample["id"].tolist(), outputs, strict=True))


@dataclass
class Measurement:
    """Measurements of one system.

    Attributes:
        seconds: per batch, wall clock, the median over repeats.
        outputs: sentence -> tokens.
        mean_accepted: tokens per iteration, None where not counted.
        captured: graphs that were captured while it was timed, which take much longer than they save.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    outputs: dict[int, list[int]] = field(default_factory=dict)
    mean_accepted: float | None = None
    captured: int = 0

    @property
    def total(self) -> float:
        return sum(self.seconds)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs.values()))

    def percentile(self, share: float) -> float:
        """Seconds that ``share`` of the batches took at most (nearest rank)."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rotated(systems: Sequence[System], turn: int) -> list[System]:
    """The systems in another order each turn, so that none always runs after the same one."""
    start = turn % len(systems)
    return [*systems[start:], *systems[:start]]


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(
    systems: Sequence[System],
    batches: Sequence[dict[str, Any]],
    warm_up: int = 3,
    repeats: int = 1,
) -> list[Measurement]:
    """Times every system on every batch; the first ``warm_up`` batches are run once before, untimed."""
    for sample in batches[:warm_up]:
        for system in systems:
            system.decode(sample)
    results = {system.name: Measurement(system.name) for system in systems}
    counted = {system.name: [0, 0] for system in systems if system.counters}
    total = len(batches) * len(systems) * repeats
    with tqdm(total=total, unit="batch", leave=False, disable=None) as progress:
        for turn, first in enumerate(range(0, len(batches), TURN)):
            part = batches[first : first + TURN]
            seconds: dict[str, list[list[float]]] = {s.name: [[] for _ in part] for s in systems}
            for repeat in range(repeats):
                for system in rotated(systems, turn + repeat):
                    progress.set_postfix_str(system.name)  # outside of what is timed
                    system.decode(part[0])
                    with _counted(system, counted):
                        _take_turn(system, part, seconds[system.name], results[system.name])
                    progress.update(len(part))
            for name, times in seconds.items():
                results[name].seconds += map(statistics.median, times)
    for name, (tokens, iterations) in counted.items():
        results[name].mean_accepted = tokens / max(1, iterations)
    return list(results.values())


def _take_turn(
    system: System,
    batches: Sequence[dict[str, Any]],
    seconds: list[list[float]],
    result: Measurement,
) -> None:
    """Decodes some batches, adding the time of each to its list."""
    for sample, times in zip(batches, seconds, strict=True):
        graphs = made.graphs
        taken, outputs = system.timed(sample)
        result.captured += made.graphs - graphs
        times.append(taken)
        result.outputs |= outputs


@contextmanager
def _counted(system: System, totals: Mapping[str, list[int]]) -> Iterator[None]:
    """Adds the tokens and iterations of a block to the system's totals, where they are counted."""
    counters = system.counters
    if counters is None:
        yield
        return
    tokens, iterations = counters.tokens, counters.iterations
    yield
    totals[system.name][0] += counters.tokens - tokens
    totals[system.name][1] += counters.iterations - iterations


def different(left: Measurement, right: Measurement) -> int:
    """Sentences on which two systems differ, those that only one of them decoded included."""
    sentences = left.outputs.keys() | right.outputs.keys()
    return sum(left.outputs.get(s) != right.outputs.get(s) for s in sentences)
