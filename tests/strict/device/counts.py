"""What decoding asks of a GPU, counted on the strict device: kernels, views, copies, and what the host waits for.

    python -m tests.strict.device.counts --output docs/results/device-counts
    python -m tests.strict.device.counts greedy "gad, chain" --places

A method is chosen by the beginning of its name. --places lists every line that asks for something, not only those where
the host waits. Models are random, of 6+6 layers.

A batch has three parts. *Start*: until the first window is verified, the first iteration included. *Iterations*: from
the second to the last. *End*: what follows the last, when the hypotheses are made. What models need once (weights side
by side, tables of positions, captured graphs) is done in batches before, of the same sentences.

No clock decides what is drafted, so two counts of a case have the same host waits. Measured times only decide how far
the host runs ahead: whether one iteration is launched in vain, and when rows move to a smaller grid.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import fairseq_aggdec  # noqa: F401  (registers the models)
from fairseq_aggdec.engine.graphs.capture import made
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import write_table
from scripts.recipes import tables
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES, Case, Prepared
from tests.strict.device.recorder import BLOCKING, KINDS, Event, Recorder
from tests.strict.device.strict_device import DEVICE, strict_device

START, ITERATIONS, END = "start", "iterations", "end"
PARTS = (START, ITERATIONS, END)
LAYERS, ROWS, SEED = 6, 4, 2
# Batches before the one that is counted. A size of window is captured when it comes again, and beam search learns what
# to read ahead. So there are BEFORE batches, and more until one captures nothing, at most MOST_BEFORE in all.
BEFORE, MOST_BEFORE = 3, 12
SIZES = {"encoder_layers": LAYERS, "decoder_layers": LAYERS}
# Options change counts little; these rows are what a table has room for. Learned lengths are other ones with every
# model.
COUNTED = [
    case
    for case in CASES
    if case.decoding in ("gad", "nar", "blockwise", "interleaved", "lattice")
    or case.name.startswith(("greedy", "iad", "shortlist", "no repeated", "beam"))
    if "learned" not in case.name
    if "alignment" not in case.name  # a second pass, over every finished hypothesis
]


@dataclass
class Counts:
    """What a batch asked for.

    Attributes:
        iterations: decoder calls of the batch.
        means: part -> kind -> number; of the iterations the mean of one.
        most_blocking: the most that one iteration of ``ITERATIONS`` waited.
        places: what the host waited for: (part, operator, ``file:line``) -> times in the whole batch.
        streams: calls of streams and events.
        lines: everything: (kind, operator, ``file:line``) -> times in the whole batch.
    """

    iterations: int
    means: dict[str, dict[str, float]]
    most_blocking: int
    places: dict[tuple[str, str, str], int]
    streams: dict[str, int]
    lines: dict[tuple[str, str, str], int]

    def blocking(self, part: str) -> int:
        """How often the host waits, at most: in the start, in one iteration, in the end."""
        return self.most_blocking if part == ITERATIONS else round(self.means[part][BLOCKING])

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "iterations": self.iterations,
            "counts": self.means,
            "blocking": {part: self.blocking(part) for part in PARTS},
            "places": [
                {"part": part, "what": what, "where": where, "times": times}
                for (part, what, where), times in sorted(self.places.items())
            ],
            "streams": self.streams,
        }


def count(case: Case, folder: Path, rows: int = ROWS, sizes: Any = None) -> Counts:
    """Decodes one batch of a case on the strict device, after the same one has made everything that is kept.

    Args:
        folder: for files that the case needs.
        rows: sentences of the batch.
        sizes: options of all models, 6+6 layers unless told otherwise.

    Raises:
        RuntimeError: every batch up to the one after ``MOST_BEFORE`` captured a graph.
    """
    models, drafter = device_cases.random_models(case, sizes or SIZES)
    with strict_device() as recorder:
        ready = device_cases.prepared(case, models, drafter, folder, DEVICE)
        sample = device_cases.batch(SEED, rows)
        prefix = device_cases.prefix_of(case, rows)
        if prefix is not None:
            prefix = prefix.to(DEVICE)
        for _ in range(BEFORE):
            ready.decode(sample, prefix)
        for _ in range(BEFORE, MOST_BEFORE + 1):
            graphs = made.graphs
            iterations = recorded(ready, sample, prefix, recorder)
            if made.graphs == graphs:
                return summed(recorder, iterations)
    raise RuntimeError(f"{case.name}: batch {MOST_BEFORE + 1} still captured a graph")


def recorded(
    ready: Prepared, sample: dict[str, Any], prefix: Tensor | None, recorder: Recorder
) -> int:
    """Decodes a batch of the host. The recorder then has its events alone, each with the iterations done before.

    Returns:
        the decoder calls of the batch.
    """
    on_device = device_cases.moved(
        sample, ready.device
    )  # this copy is fairseq's, and is not counted
    counters, calls = ready.task.counters, ready.task.counters.calls
    recorder.moment = lambda: counters.calls - calls
    recorder.events.clear()
    recorder.streams.clear()
    ready.decode(on_device, prefix)
    return int(counters.calls - calls)


def summed(recorder: Recorder, iterations: int) -> Counts:
    """The counts of a batch whose events were noted with the number of iterations done before."""
    by_part: dict[str, list[Event]] = {part: [] for part in PARTS}
    waits: Counter[int] = Counter()
    for event in recorder.events:
        part = START if event.moment == 0 else END if event.moment >= iterations else ITERATIONS
        by_part[part].append(event)
        if part == ITERATIONS and event.kind == BLOCKING:
            waits[event.moment] += 1
    means = {}
    for part, events in by_part.items():
        found = Counter(event.kind for event in events)
        rounds = max(1, iterations - 1) if part == ITERATIONS else 1
        means[part] = {kind: found[kind] / rounds for kind in KINDS}
    places = Counter(
        (part, event.operator, event.place)
        for part, events in by_part.items()
        for event in events
        if event.kind == BLOCKING
    )
    most = max(waits.values(), default=0)
    lines = Counter((event.kind, event.operator, event.place) for event in recorder.events)
    return Counts(iterations, means, most, dict(places), dict(recorder.streams), dict(lines))


def table(counted: dict[str, Counts]) -> str:
    """Markdown: a row per case."""
    waits = ["host waits", "at the start", "at the end"]
    head = ["method", "kernels", "in graphs", "views", "copies", *waits]
    lines = []
    for name, counts in counted.items():
        means = counts.means[ITERATIONS if counts.iterations > 1 else START]
        cells = [f"{means[kind]:.0f}" if kind != BLOCKING else None for kind in KINDS[:-1]]
        lines.append([name, *cells, *map(counts.blocking, (ITERATIONS, START, END))])
    return tables.table(head, lines)


def waits(counted: dict[str, Counts]) -> str:
    """Markdown: every place where the host waits, and for which methods."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for name, counts in counted.items():
        for key in counts.places:
            users.setdefault(key, []).append(name)
    rows = []
    for (part, what, where), names in sorted(users.items(), key=lambda item: item[0][::-1]):
        methods = "all" if len(names) == len(counted) else "; ".join(names)
        rows.append([part, f"`{where}`", what, methods])
    return tables.table(["part", "where", "what", "methods"], rows)


def lines(counted: dict[str, Counts]) -> str:
    """Markdown: every line that asks the device for something, per method, in a whole batch."""
    rows = [
        [name, kind, what, f"`{where}`", times]
        for name, counts in counted.items()
        for (kind, what, where), times in sorted(counts.lines.items())
    ]
    return tables.table(["method", "kind", "what", "where", "times"], rows)


def chosen(names: Sequence[str]) -> list[Case]:
    """The counted cases whose names begin with one of those given; all where none is.

    Raises:
        ValueError: a name that no case has.
    """
    for name in names:
        if not any(case.name.startswith(name) for case in COUNTED):
            raise ValueError(
                f"no method {name!r}; there are: {'; '.join(case.name for case in COUNTED)}"
            )
    return [case for case in COUNTED if not names or case.name.startswith(tuple(names))]


MEANING = f"""Random models of {LAYERS}+{LAYERS} layers, {ROWS} sentences.
Kernels that the host launches (a captured graph counts as one), those in graphs, views, copies between host and
device: the mean of an iteration from the second on (of the whole batch where
there is one iteration). Host waits: the most in one of these iterations, in the start (what comes before the first
iteration, and that iteration itself), and in the end (behind the last iteration)."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", help="how their names begin (default: all)")
    parser.add_argument("--rows", type=int, default=ROWS, help="sentences in a batch")
    parser.add_argument("--places", action="store_true", help="list every line")
    parser.add_argument("--output", type=Path, help="OUTPUT.json and OUTPUT.md")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.rows < 1:
        parser.error(f"--rows {args.rows}: it must be at least 1")
    try:
        cases = chosen(args.methods)
    except ValueError as error:
        parser.error(str(error))
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        counted = {case.name: count(case, Path(folder), args.rows) for case in cases}
    parts = [MEANING, table(counted), "## Where the host waits"]
    parts.append(waits(counted))
    if args.places:
        parts += ["## Every line", lines(counted)]
    text = "\n\n".join(parts)
    print(text)
    if args.output:
        given = sys.argv[1:] if arguments is None else arguments
        command = machine.command("tests.strict.device.counts", given)
        title = "What decoding asks of a GPU, counted on the strict device"
        results = {name: counts.record() for name, counts in counted.items()}
        write_table(args.output, title, command, text, results)


if __name__ == "__main__":
    main()
