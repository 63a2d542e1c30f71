"""Methods beside each other on one set: quality, steps, latency and speed; each has its own options and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench.timing import TURN, Measurement, System, different, measure
from fairseq_aggdec.records.quality import bleu
from fairseq_aggdec.records.results import cell
from fairseq_aggdec.search.counters import PARTS, Counters
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.generator import drafter_of

COLUMNS = ("system", "BLEU", "steps / sentence", "tokens / step", "ms / sentence", "p50", "p95")
DRAFTERS_ENCODER = "drafter's encoder"
MODULES = ("encoder", DRAFTERS_ENCODER, *PARTS[1:])
TIME = " / ".join(MODULES) + ", %"
SLOTS = 10


@dataclass
class Method:
    """One system: a name and a loaded session whose command line says how it decodes.

    Attributes:
        beam: of the search.
        steps: sentence -> iterations when it was last decoded; stock has one per token.
    """

    name: str
    session: Session
    beam: int
    steps: dict[int, int] = field(default_factory=dict)

    @property
    def decoding(self) -> str:
        return str(self.session.task.cfg.decoding)

    @property
    def stock(self) -> bool:
        return self.decoding == "stock"

    @property
    def oracle(self) -> bool:
        return self.stock and self.beam == 1

    @property
    def models(self) -> tuple[str, str]:
        """Their paths and precision."""
        return str(self.session.cfg.common_eval.path), self.session.precision

    def system(self) -> tuple[System, Drafter]:
        """Ready to be timed, and its drafter."""
        generator, counters = self.session.generator(self.decoding, self.beam)

        def decode(sample: dict[str, Any]) -> list[list[int]]:
            found = self.session.decode(generator, sample)
            steps = [hypothesis.get("steps", len(hypothesis["tokens"])) for hypothesis in found]
            self.steps.update(zip(sample["id"].tolist(), steps, strict=True))
            return [hypothesis["tokens"].tolist() for hypothesis in found]

        system = System(self.name, decode, None if self.stock else counters)
        return system, drafter_of(generator)


@dataclass
class Line:
    """One system at one batch size and thread count; times in seconds, p50 and p95 of batches.

    Attributes:
        steps: iterations per sentence, decoder calls of a sentence for stock.
        differ: sentences that are not those of stock ``--beam 1`` on the same models; None where that is not compared.
        parts: share of the time by module (Ge et al., Table 15), warm-up included; empty for stock. On a GPU measured
            apart, every module waited for.
        by_slot: share of the iterations in which the first, second, ... drafted token stood; empty where none did.
    """

    system: str
    batch_size: int
    threads: int
    sentences: int
    tokens: int
    bleu: float
    steps: float
    seconds: float
    p50: float
    p95: float
    differ: int | None
    speedup: dict[str, float]
    parts: dict[str, float]
    by_slot: list[float] = field(default_factory=list)


def time_modules_apart(
    systems: Sequence[tuple[System, Drafter]],
    batches: Sequence[dict[str, Any]],
    wait: Callable[[], object],
) -> None:
    """Counts the time by module anew, on some batches, with ``wait`` at the end of every module."""
    for system, drafter in systems:
        counters = system.counters
        if counters is None:
            continue
        waiting: list[tuple[Any, Any]] = [(part, part.wait) for part in (counters, drafter)]
        for part, _ in waiting:
            part.wait = wait
        counters.seconds = dict.fromkeys(PARTS, 0.0)
        drafter.encoder_seconds = 0.0
        for sample in batches:
            system.decode(sample)
        for part, before in waiting:
            part.wait = before


def shares(counters: Counters | None, drafter: Drafter) -> dict[str, float]:
    """Share of the time by module; ``draft`` is without the drafter's encoder."""
    if counters is None:
        return {}
    encoding = drafter.encoder_seconds
    seconds = counters.seconds | {DRAFTERS_ENCODER: encoding}
    seconds["draft"] -= encoding
    total = sum(seconds.values())
    return {module: seconds[module] / total for module in MODULES}


def speedups(measured: Measurement, baseline: Measurement) -> list[float]:
    """Speed-up of each batch over the same batch of a baseline."""
    pairs = zip(baseline.seconds, measured.seconds, strict=True)
    return [slower / faster for slower, faster in pairs]


def steps_of(measurement: Measurement, counters: Counters | None) -> float:
    """Iterations per sentence, where outputs have all tokens that were counted; stock has one per token."""
    if counters is None or measurement.mean_accepted is None:
        return measurement.tokens / len(measurement.outputs)
    return measurement.tokens / measurement.mean_accepted / len(measurement.outputs)


def compare(
    methods: Sequence[Method],
    baselines: Sequence[str],
    batch_size: int,
    threads: int,
    limit: int | None,
    repeats: int,
) -> tuple[list[Line], str, dict[str, Measurement]]:
    """Times all methods in turn on the same batches.

    Args:
        methods: to be measured; the first one's data set is everybody's.
        baselines: names of methods over which speed-ups are given.
        batch_size: sentences per batch.
        threads: for the record; they are set already.
        limit: sentences, None for all.
        repeats: times each batch is decoded.

    Returns:
        a line per method, sacreBLEU's signature, and by name what was measured.
    """
    built = [method.system() for method in methods]
    systems = [system for system, _ in built]
    batches = methods[0].session.batches(batch_size, limit)
    found = {m.name: m for m in measure(systems, batches, repeats=repeats)}
    steps = [dict(method.steps) for method in methods]
    if methods[0].session.cuda:
        time_modules_apart(built, batches[:: -(-len(batches) // TURN)], torch.cuda.synchronize)
    oracles = {method.models: found[method.name] for method in methods if method.oracle}
    lines, signature = [], ""
    for method, (system, drafter), taken in zip(methods, built, steps, strict=True):
        one = found[method.name]
        value, signature = bleu(method.session, one.outputs)
        oracle = oracles.get(method.models)
        differ = None
        if oracle is not None and not method.stock and method.beam == 1:
            differ = different(one, oracle)
        lines.append(
            Line(
                method.name,
                batch_size,
                threads,
                len(one.outputs),
                one.tokens,
                value,
                sum(taken[sentence] for sentence in one.outputs) / len(one.outputs),
                one.total,
                one.percentile(0.5),
                one.percentile(0.95),
                differ,
                {name: found[name].total / one.total for name in baselines},
                shares(system.counters, drafter),
                [] if system.counters is None else system.counters.by_slot(SLOTS),
            )
        )
    return lines, signature, found


def markdown(lines: Sequence[Line]) -> str:
    """One table per batch size and thread count."""
    parts = []
    for batch_size, threads in dict.fromkeys((line.batch_size, line.threads) for line in lines):
        rows = [line for line in lines if (line.batch_size, line.threads) == (batch_size, threads)]
        names = list(rows[0].speedup)
        columns = [*COLUMNS, *(f"x {cell(name)}" for name in names), "differ from beam 1", TIME]
        parts.append(f"**batch {batch_size}, {threads} thread{'s' if threads > 1 else ''}**\n")
        parts.append("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
        parts += [_row(line, names) for line in rows]
        parts += ["", *_slots([line for line in rows if line.by_slot])]
    return "\n".join(parts)


def _slots(lines: Sequence[Line]) -> list[str]:
    """How far drafts stand, by slot; nothing where no system drafts."""
    if not lines:
        return []
    most = max(len(line.by_slot) for line in lines)
    numbers = range(1, most + 1)
    head = " | ".join(["drafted token that stands, % of steps", *map(str, numbers)])
    rows = (
        " | ".join([cell(line.system), *(f"{100 * share:.0f}" for share in line.by_slot)])
        + " |" * (most - len(line.by_slot))
        for line in lines
    )
    return [f"| {head} |\n|" + "---|" * (most + 1), *(f"| {row} |" for row in rows), ""]


def _row(line: Line, names: Sequence[str]) -> str:
    cells = [
        cell(line.system),
        f"{line.bleu:.2f}",
        f"{line.steps:.2f}",
        f"{line.tokens / line.sentences / line.steps:.2f}",
        f"{1e3 * line.seconds / line.sentences:.1f}",
        f"{1e3 * line.p50:.1f}",
        f"{1e3 * line.p95:.1f}",
        *(f"{line.speedup[name]:.2f}" for name in names),
        "" if line.differ is None else f"{line.differ} of {line.sentences}",
        " / ".join(f"{100 * line.parts[part]:.0f}" for part in MODULES if line.parts),
    ]
    return "| " + " | ".join(cells) + " |"
