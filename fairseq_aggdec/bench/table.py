"""Tables of measurements: speed, ratios, steps, quality and equality with stock of every system."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rapidfuzz.distance import Levenshtein

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench import lengths
from fairseq_aggdec.bench.systems import label
from fairseq_aggdec.bench.timing import Measurement, System, different
from fairseq_aggdec.records.results import cell
from fairseq_aggdec.search.counters import PARTS, Counters
from fairseq_aggdec.search.drafter import Drafter

DRAFTERS_ENCODER = "drafter's encoder"
MODULES = ("encoder", DRAFTERS_ENCODER, *PARTS[1:])
SLOTS = 10
BASELINES = ("beam5", "beam1", "greedy")


@dataclass
class Line:
    """One system at one batch size and number of threads. Times in seconds; p50 and p95 are of batches.

    Attributes:
        mean_accepted: tokens per iteration, None where they are not counted.
        steps: iterations per sentence; a decoder call for each token with stock; None for other engines.
        differ: sentences that are not those of stock with the same model and beam; None where that was not timed.
        speedup: name of a baseline -> its time over this one.
        quality: BLEU or F0.5, in points; None without references.
        parts: share of the time by module (Ge et al., Table 15), warm-up included; empty for stock. On a GPU it is
            measured apart, and every module is waited for.
        by_slot: share of the iterations in which the first, second, ... drafted token was accepted.
        by_length: speed by source length, shortest first; empty for batches of several sentences.
    """

    system: str
    batch_size: int
    threads: int
    sentences: int
    tokens: int
    seconds: float
    p50: float
    p95: float
    differ: int | None
    speedup: dict[str, float]
    mean_accepted: float | None = None
    steps: float | None = None
    quality: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    by_slot: list[float] = field(default_factory=list)
    by_length: list[lengths.Span] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        """Milliseconds of a sentence."""
        return 1e3 * self.seconds / self.sentences


def lines(
    systems: Sequence[System],
    measured: Sequence[Measurement],
    batch_size: int,
    threads: int,
    baselines: Sequence[str] = BASELINES,
) -> list[Line]:
    """A line for each system of one run; ``measured`` is in the order of ``systems``."""
    by_name = {one.name: one for one in measured}
    return [
        Line(
            one.name,
            batch_size,
            threads,
            len(one.outputs),
            one.tokens,
            one.total,
            one.percentile(0.5),
            one.percentile(0.95),
            differing(system, systems, by_name),
            {name: by_name[name].total / one.total for name in baselines if name in by_name},
            one.mean_accepted,
            steps_of(system, one),
            parts=shares(system.counters, system.drafter),
            by_slot=[] if system.counters is None else system.counters.by_slot(SLOTS),
        )
        for system, one in zip(systems, measured, strict=True)
    ]


def steps_of(system: System, measured: Measurement) -> float | None:
    """Iterations per sentence, None where the system does not say."""
    if not system.steps:
        return None
    return sum(system.steps[sentence] for sentence in measured.outputs) / len(measured.outputs)


def differing(
    system: System, systems: Sequence[System], by_name: Mapping[str, Measurement]
) -> int | None:
    """Sentences on which a system differs from stock with the same model and beam.

    Stock of the same precision is taken where it was timed. None for stock itself, and without any.
    """
    if system.stock:
        return None
    oracles = [s for s in systems if s.stock and (s.models, s.beam) == (system.models, system.beam)]
    oracles.sort(key=lambda oracle: oracle.precision != system.precision)
    return different(by_name[system.name], by_name[oracles[0].name]) if oracles else None


def add_lengths(
    rows: Sequence[Line],
    measured: Sequence[Measurement],
    batches: Sequence[dict[str, Any]],
    count: int,
) -> None:
    """Adds to the lines of a run with batches of one sentence the speed in ``count`` bins of source length."""
    by_name, tokens = {one.name: one for one in measured}, lengths.source_tokens(batches)
    for row in rows:
        row.by_length = [
            lengths.span(by_name, row.system, list(row.speedup), tokens, indices)
            for indices in lengths.bins(tokens, count)
        ]


def time_modules_apart(
    systems: Sequence[System],
    batches: Sequence[dict[str, Any]],
    wait: Callable[[], object],
) -> None:
    """Counts the time by module anew, on some batches, with ``wait`` at the end of every module."""
    for system in systems:
        counters, drafter = system.counters, system.drafter
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
    return {module: seconds[module] / total for module in MODULES} if total else {}


def speedups(measured: Measurement, baseline: Measurement) -> list[float]:
    """Speed-up of each batch over the same batch of a baseline."""
    pairs = zip(baseline.seconds, measured.seconds, strict=True)
    return [slower / faster for slower, faster in pairs]


# -- Markdown

# Heading of a column -> its cell; None leaves it empty, and a column without any cell is left out.
COLUMNS: dict[str, Callable[[Line], str | None]] = {
    "steps / sentence": lambda line: _number(line.steps, 2),
    "tokens / step": lambda line: _number(tokens_per_step(line), 2),
    "ms / sentence": lambda line: f"{line.milliseconds:.1f}",
    "p50 ms": lambda line: f"{1e3 * line.p50:.1f}",
    "p95 ms": lambda line: f"{1e3 * line.p95:.1f}",
    "sentences / s": lambda line: f"{line.sentences / line.seconds:.1f}",
    "tokens / s": lambda line: f"{line.tokens / line.seconds:.0f}",
}
DIFFER = "differ from stock"
TIME = " / ".join(MODULES) + ", %"


def _number(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def tokens_per_step(line: Line) -> float | None:
    if line.mean_accepted is not None:
        return line.mean_accepted
    return line.tokens / line.sentences / line.steps if line.steps else None


def markdown(rows: Sequence[Line], quality: str = "BLEU") -> str:
    """One table per batch size and number of threads; ``quality`` names the measure."""
    parts = []
    columns: dict[str, Callable[[Line], str | None]] = {
        quality: lambda line: _number(line.quality, 2)
    }
    columns |= COLUMNS
    for name in dict.fromkeys(name for row in rows for name in row.speedup):
        columns[f"x {cell(label(name))}"] = lambda line, name=name: _number(  # type: ignore[misc]
            line.speedup.get(name), 2
        )
    columns[DIFFER] = lambda line: (
        None if line.differ is None else f"{line.differ} of {line.sentences}"
    )
    columns[TIME] = lambda line: " / ".join(f"{100 * x:.0f}" for x in line.parts.values()) or None
    used = {head: of for head, of in columns.items() if any(of(row) is not None for row in rows)}
    for size, threads in dict.fromkeys((row.batch_size, row.threads) for row in rows):
        some = [row for row in rows if (row.batch_size, row.threads) == (size, threads)]
        parts.append(f"**batch {size}, {threads} thread{'s' if threads > 1 else ''}**\n")
        parts.append("| " + " | ".join(["system", *used]) + " |\n|" + "---|" * (1 + len(used)))
        for row in some:
            cells = [cell(label(row.system)), *(of(row) or "" for of in used.values())]
            parts.append("| " + " | ".join(cells) + " |")
        parts += ["", *_slots([row for row in some if row.by_slot])]
        parts += lengths.markdown({row.system: row.by_length for row in some if row.by_length})
    return "\n".join(parts)


def _slots(rows: Sequence[Line]) -> list[str]:
    """Tells how often drafted tokens are accepted, by slot; nothing where no system drafts."""
    if not rows:
        return []
    most = max(len(row.by_slot) for row in rows)
    head = " | ".join(["accepted drafted token, % of steps", *map(str, range(1, most + 1))])
    body = (
        " | ".join([cell(label(row.system)), *(f"{100 * share:.0f}" for share in row.by_slot)])
        + " |" * (most - len(row.by_slot))
        for row in rows
    )
    return [f"| {head} |\n|" + "---|" * (most + 1), *(f"| {row} |" for row in body), ""]


# -- edits


def edit_ratio(source: Sequence[str], output: Sequence[str]) -> float:
    """Edit distance between input and output symbols over input length (both without ``</s>``)."""
    return Levenshtein.distance(source, output) / max(1, len(source))


def edit_ratios(session: Session, measurement: Measurement, limit: int | None) -> list[float]:
    """The edit ratio of each sentence, in the order in which they were timed."""
    source, target = session.task.source_dictionary, session.task.target_dictionary
    return [
        edit_ratio(
            [source[token] for token in session.dataset[sentence]["source"].tolist()[:-1]],
            [target[token] for token in measurement.outputs[sentence][:-1]],
        )
        for sentence in session.sentences(limit)
    ]
