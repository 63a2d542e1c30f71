"""How fast are the decoders? All systems in turn in one process, equality checked beside each speed.

    aggdec benchmark DATA --path model.pt --gen-subset test --limit 300 --output docs/results/iad-ua_gec

takes every flag of fairseq-generate. Nothing but decoding is timed: models are loaded and sentences collated before.
Plots of the first thread count are written beside the tables.

    --record FILE     decodes with IAD, or as --decoding says, and writes what it did, draft by draft
    --replay FILE     instead of DATA and --path: a model of --size with random weights, forced to do what was recorded;
                      with --systems gad a drafter of that size runs as well, with options of fairseq-train that
                      --drafter-flags="..." names; with --systems blockwise heads do
    --step-cost       instead: time of one decoder call against the number of tokens it reads
    --overhead        instead: share of the loop's time outside the decoder's matrix products (batch 1, CPU)
    --memory          instead: peak memory of stock beam 1 and of IAD with and without packed weights
"""

import argparse
import logging
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

import torch

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import (
    Session,
    generation_parser,
    refuse_decoding_beside,
)
from fairseq_aggdec.bench import benchmark, comparison, memory, profile, recording, replay
from fairseq_aggdec.bench import systems as all_systems
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.bench.recording_drafters import ReplayDrafter
from fairseq_aggdec.bench.sizes import SIZES
from fairseq_aggdec.bench.timing import Measurement, System, measure
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import check_counts, check_place, refusals

MODULE = "fairseq_aggdec.cli.benchmark"
DEFAULT_SYSTEMS = ["beam5", "beam1", "greedy", "iad"]


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--systems", nargs="+", default=DEFAULT_SYSTEMS, metavar="NAME")
    group.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32], metavar="B")
    group.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="T")
    group.add_argument(
        "--limit", type=int, help="sentences (default: all), spread over all lengths"
    )
    group.add_argument(
        "--repeats", type=int, default=1, help="times each batch is decoded; medians"
    )
    group.add_argument(
        "--output", type=Path, help="result files: OUTPUT.json, OUTPUT.md, OUTPUT-*.svg"
    )
    group.add_argument("--record", type=Path, metavar="FILE")
    group.add_argument("--replay", type=Path, metavar="FILE")
    group.add_argument("--size", choices=list(SIZES), default="base")
    group.add_argument("--drafter-flags", type=shlex.split, default=[], metavar="FLAGS")
    group.add_argument("--step-cost", action="store_true")
    group.add_argument("--overhead", action="store_true")
    group.add_argument("--memory", action="store_true")
    group.add_argument("--memory-of", metavar="SYSTEM", help=argparse.SUPPRESS)
    return parser


class Bench:
    """A session and what is to be measured on it.

    Args:
        arguments: the command line, without what only a replay needs.
        records: what to replay; None measures the session's own models and data.
    """

    def __init__(self, arguments: list[str], records: list[Record] | None = None):
        self.arguments = arguments
        self.session = Session(build_parser(), arguments, every=False, reads=["batch_size"])
        self.args = self.session.args
        check_counts(self.args, "limit", "repeats", "batch_sizes", "threads")
        if not self.args.record:
            refuse_decoding_beside(self.args.systems, str(self.session.cfg.task.decoding))
        self.records = records
        self.drafter: ReplayDrafter | None = None
        self.lengths: dict[int, int] | None = None
        logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
        torch.set_num_threads(self.args.threads[0])

    def replay_from(self, records: list[Record]) -> None:
        self.drafter = replay.replay_drafter(self.session, records)
        self.lengths = replay.lengths(records)

    def build(self, name: str) -> System:
        return all_systems.build(name, self.session, self.lengths, self.drafter)

    def title(self, what: str) -> str:
        """Heading of a result; says so where weights are random and drafts forced."""
        if self.records is not None:
            size = self.args.size
            return f"{what}, replay: Transformer-{size} with random weights, recorded iterations"
        folder = PurePath(*Path(self.session.cfg.task.data).parts[-2:])  # "data" says nothing
        return f"{what}, {folder}, {self.session.precision}"

    def run(self) -> None:
        args = self.args
        check_place("--output", args.output, ".json", ".md")
        check_place("--record", args.record)
        if self.records is not None and not args.memory_of:
            self.replay_from(self.records)
        if args.record:
            batches = self.session.batches(1, args.limit)
            decoding = self.session.cfg.task.decoding
            method = "iad" if decoding in ("beam", "stock") else decoding
            recording.save(args.record, all_systems.record(method, self.session, batches))
        elif args.step_cost:
            self.step_cost()
        elif args.overhead:
            self.overhead()
        elif args.memory_of:
            batches = self.session.batches(args.batch_sizes[0], args.limit)
            memory.report(self.build(args.memory_of), batches)
        elif args.memory:
            self.memory()
        else:
            self.speed()

    def speed(self) -> None:
        """The comparison of all systems."""
        args = self.args
        rows: list[benchmark.Line] = []
        single: list[Measurement] = []
        for threads in args.threads:
            torch.set_num_threads(threads)
            running = [self.build(name) for name in args.systems]
            for batch_size in [1] if self.records is not None else args.batch_sizes:
                batches = self.session.batches(batch_size, args.limit)
                measurements = measure(running, batches, repeats=args.repeats)
                rows += benchmark.lines(measurements, batch_size, threads)
                single = single or (measurements if batch_size == 1 else [])
                print(benchmark.markdown(rows[-len(running) :]), flush=True)
        self.check_replay(rows)
        if args.output:
            from fairseq_aggdec.report import redraw  # of the extra `report`

            extra = {"precision": self.session.precision, "replay": self.records is not None}
            extra |= self.single(single)
            title = self.title("Decoding speed")
            redraw.draw(args.output, benchmark.write(args.output, title, command(), rows, extra))

    def single(self, measured: list[Measurement]) -> dict[str, Any]:
        """Speed-up of each sentence by the first method of ours over stock, for the plots; empty without both."""
        by_name = {measurement.name: measurement for measurement in measured}
        methods = [name for name in by_name if name not in (*all_systems.OTHERS, "greedy")]
        if not methods:
            return {}
        same = f"beam{all_systems.OUR_BEAMS.get(methods[0], 1)}"
        base = next((name for name in (same, "beam1", "beam5") if name in by_name), None)
        if base is None:
            return {}
        method = by_name[methods[0]]
        found: dict[str, Any] = {"system": methods[0], "baseline": base}
        found["speedups"] = rounded(comparison.speedups(method, by_name[base]))
        if self.records is None:  # a replay's words are random
            ratios = benchmark.edit_ratios(self.session, method, self.args.limit)
            found["edit_ratios"] = rounded(ratios)
        return {"distribution": found}

    def check_replay(self, rows: list[benchmark.Line]) -> None:
        """Says so where a replay did not do what was recorded (a floating-point tie may break a draft)."""
        if self.records is None:
            return
        rounds = sum(len(record.iterations) for record in self.records)
        recorded = sum(len(record.output) for record in self.records) / rounds
        for row in rows:
            replayed = row.mean_accepted if row.system != "greedy" else None
            if replayed is not None and abs(replayed / recorded - 1) > 0.01:
                print(
                    f"warning: {row.system} replayed {replayed:.2f} tokens per iteration, not {recorded:.2f}"
                )

    def step_cost(self) -> None:
        tables, results = [], {}
        for threads in self.args.threads:
            torch.set_num_threads(threads)
            cost = profile.step_cost(self.session)
            results[threads] = asdict(cost)
            rows = "\n".join(f"| {w} | {1e3 * s:.2f} |" for w, s in cost.seconds.items())
            tables.append(
                f"**{threads} thread(s)**: {1e3 * cost.intercept:.2f} ms + {1e3 * cost.slope:.3f} ms a token; the "
                f"intercept is worth {cost.intercept_in_tokens:.0f} tokens\n\n"
                f"| tokens read | ms |\n|---|---|\n{rows}"
            )
        self.report("Cost of a decoder call", "\n\n".join(tables), results)

    def overhead(self) -> None:
        lines = [
            "| system | threads | iterations | ms / iteration | linear layers | attention | host overhead |",
            "|---|---|---|---|---|---|---|",
        ]
        results = {}
        batches = self.session.batches(1, self.args.limit)
        for threads in self.args.threads:
            torch.set_num_threads(threads)
            for name in (n for n in self.args.systems if n not in all_systems.OTHERS):
                system = self.build(name)
                assert system.counters is not None
                found = profile.overhead(system, system.counters, batches)
                results[f"{name}, {threads} threads"] = asdict(found) | {"share": found.share}
                loop = found.linear + found.attention + found.host
                shares = [found.linear / loop, found.attention / loop, found.share]
                cells = [all_systems.LABELS.get(name, name), threads, found.iterations]
                cells += [f"{1e3 * loop / found.iterations:.2f}"]
                cells += [f"{100 * share:.1f} %" for share in shares]
                lines.append("| " + " | ".join(map(str, cells)) + " |")
        self.report("Time of the loop by part", "\n".join(lines), results)

    def memory(self) -> None:
        arguments = self.arguments_in_child()
        peaks = {
            batch_size: memory.measure_variants(MODULE, arguments, batch_size)
            for batch_size in self.args.batch_sizes
        }
        self.report("Peak memory", memory.markdown(peaks), peaks)

    def arguments_in_child(self) -> list[str]:
        """The command line on the folder of the replay, if it is one, with outputs of the mean length."""
        arguments = [a for a in self.arguments if a != "--memory"]
        if self.records is not None:
            at = arguments.index("--replay")
            del arguments[at : at + 2]
            tokens = sum(replay.lengths(self.records).values()) // len(self.records)
            arguments += ["--min-len", str(tokens), "--max-len-b", str(tokens)]
        return arguments

    def report(self, title: str, table: str, results: dict) -> None:
        """Prints a table; writes it with machine, versions and commit when --output is given."""
        print(table)
        if self.args.output:
            benchmark.write_table(self.args.output, self.title(title), command(), table, results)


def command() -> str:
    return machine.command("benchmark", sys.argv[1:])


def rounded(numbers: Sequence[float]) -> list[float]:
    return [round(number, 4) for number in numbers]


def main(given: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if given is None else given)
    with refusals():
        run(arguments)


def run(arguments: list[str]) -> None:
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--replay", type=Path)
    early.add_argument("--size", default="base")
    early.add_argument("--limit", type=int)
    early.add_argument("--systems", nargs="+", default=DEFAULT_SYSTEMS)
    early.add_argument("--drafter-flags", type=shlex.split, default=[])
    known, _ = early.parse_known_args(arguments)
    if known.drafter_flags and (known.replay is None or "gad" not in known.systems):
        raise SystemExit(
            "error: --drafter-flags is for --replay with --systems gad, which makes a drafter"
        )
    if known.replay is None:
        Bench(arguments).run()
        return
    if known.size not in SIZES:
        raise SystemExit(f"error: --size {known.size}: choose from {', '.join(SIZES)}")
    records = benchmark.spread(recording.load(known.replay), known.limit)
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        drafter = known.drafter_flags if "gad" in known.systems else None
        heads = "blockwise" in known.systems
        prepared = replay.prepare(Path(folder), known.size, records, drafter, heads)
        Bench([*prepared, *arguments], records).run()


if __name__ == "__main__":
    main()
