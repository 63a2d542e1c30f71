"""Timing several systems fairly in one process: in turn, the order rotating, the device synchronised."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm import tqdm

from fairseq_aggdec.decoding.counters import Counters

# A batch as the session collates it -> the output tokens of each sentence.
Decode = Callable[[dict[str, Any]], list[list[int]]]


@dataclass
class System:
    """One system under measurement, with its counters where it is one of ours."""

    name: str
    decode: Decode
    counters: Counters | None = None


@dataclass
class Measurement:
    """What one system did.

    Attributes:
        seconds: per batch, wall clock, the median over repeats.
        outputs: sentence -> tokens.
        mean_accepted: tokens per iteration, None where not counted.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    outputs: dict[int, list[int]] = field(default_factory=dict)
    mean_accepted: float | None = None

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
    before = {s.name: (s.counters.tokens, s.counters.iterations) for s in systems if s.counters}
    results = {system.name: Measurement(system.name) for system in systems}
    for turn, sample in enumerate(tqdm(batches, desc="timing", unit="batch", leave=False)):
        seconds: dict[str, list[float]] = {system.name: [] for system in systems}
        for repeat in range(repeats):
            for system in rotated(systems, turn + repeat):
                synchronise()
                start = time.perf_counter()
                outputs = system.decode(sample)
                synchronise()
                seconds[system.name].append(time.perf_counter() - start)
                results[system.name].outputs |= dict(
                    zip(sample["id"].tolist(), outputs, strict=True)
                )
        for name, times in seconds.items():
            results[name].seconds.append(statistics.median(times))
    for system in systems:
        if system.counters is not None:
            tokens, rounds = before[system.name]
            gained = system.counters.tokens - tokens
            results[system.name].mean_accepted = gained / max(
                1, system.counters.iterations - rounds
            )
    return list(results.values())


def different(left: Measurement, right: Measurement) -> int:
    """Sentences on which two systems differ, those that only one of them decoded included."""
    sentences = left.outputs.keys() | right.outputs.keys()
    return sum(left.outputs.get(s) != right.outputs.get(s) for s in sentences)
