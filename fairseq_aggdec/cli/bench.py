"""``aggdec bench``: times and compares ours, stock fairseq and other engines on one model."""

import argparse
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

import torch

from fairseq_aggdec.api.session import (
    Session,
    generation_parser,
    refuse_decoding_beside,
    take_batch_size,
)
from fairseq_aggdec.bench import memory, systems, table
from fairseq_aggdec.bench.agreement import Agreement
from fairseq_aggdec.bench.command_line import check, entries, file_name
from fairseq_aggdec.bench.processes import LEFT_OUT, AbsentError, SystemProcess
from fairseq_aggdec.bench.systems import Entry
from fairseq_aggdec.bench.timing import TURN, Measurement, System, measure
from fairseq_aggdec.cli.parsers import bench as bench_options
from fairseq_aggdec.cli.parsers import whole_parser
from fairseq_aggdec.records import gec_score, machine, quality, results


def own_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    bench_options.add_options(parser)
    return parser


class Bench:
    """A session that says what is decoded, and what is to be measured on it.

    Args:
        args: the tool's own options. arguments: those of fairseq-generate.
        entries: the systems. absent: name of a system that cannot be measured -> why.
    """

    def __init__(
        self,
        args: Namespace,
        arguments: Sequence[str],
        entries: Sequence[Entry],
        absent: dict[str, str],
    ):
        self.args, self.arguments, self.entries = args, list(arguments), entries
        self.absent = absent
        self.named = [entry.name for entry in entries if entry.system is not None]
        self.sessions: dict[Entry, Session] = {}
        if self.named or not entries:
            parser = generation_parser(None)
            self.session = Session(parser, arguments, always_draft=False, reads=["batch_size"])
        else:
            self.load(entries[0])
            self.session = self.sessions[entries[0]]
        args.batch_size = self.session.args.batch_size
        take_batch_size(own_parser(), args)
        if self.named:
            refuse_decoding_beside(self.named, str(self.session.cfg.task.decoding))
        self.gec = [gec_score.read_sentences(path) for path in args.gec or ()]
        self.apart = args.apart or any(entry.external for entry in entries)
        self.measure_of_quality, self.signature = "F0.5" if self.gec else "BLEU", ""
        self.agreement = Agreement(self.measure_of_quality)
        torch.set_num_threads(args.threads[0])

    def run(self) -> None:
        if self.args.memory:
            self.memory()
        else:
            self.speed()

    def load(self, entry: Entry) -> System:
        shared = entry.system is not None and not entry.options
        session = self.session if shared else self.sessions.get(entry)
        self.sessions[entry], system = systems.load(entry, self.arguments, session)
        return system

    def start(self, threads: int) -> list[System]:
        """All systems that can be measured here, loaded."""
        torch.set_num_threads(threads)
        if not self.apart:
            return [self.load(entry) for entry in self.entries]
        running: list[System] = []
        for entry in self.entries:
            tell(f"loading {systems.label(entry.name)}")
            try:
                running.append(SystemProcess(entry, self.arguments, threads))
            except AbsentError as absent:
                self.absent[entry.name] = str(absent)
        if not running:
            raise SystemExit(f"error: nothing can be measured: {'; '.join(self.absent.values())}")
        return running

    def speed(self) -> None:
        """The comparison of all systems."""
        args = self.args
        rows: list[table.Line] = []
        extra: dict[str, object] = {"precision": self.session.precision}
        extra["quality"] = self.measure_of_quality
        for threads in args.threads:
            running = self.start(threads)
            for size in args.batch_sizes:
                batches = self.session.batches(size, args.limit)
                tell(
                    f"timing {len(batches)} x batch {size}, {machine.count(threads, 'threads')}: "
                    f"{machine.count(len(running), 'systems')} in turn"
                )
                measured = measure(running, batches, repeats=args.repeats)
                rows += self.lines(running, measured, size, threads, batches)
                print(table.markdown(rows[-len(running) :], self.measure_of_quality), flush=True)
                if size == 1 and "distribution" not in extra:
                    extra |= self.distribution(running, measured)
                if args.output:  # what took minutes is kept, should the next size be killed
                    self.write(rows, extra)
            for system in running:
                if isinstance(system, SystemProcess):
                    system.close()
        print("\n".join(self.notes()))

    def lines(
        self,
        running: Sequence[System],
        measured: Sequence[Measurement],
        size: int,
        threads: int,
        batches: Sequence[dict[str, Any]],
    ) -> list[table.Line]:
        if self.session.cuda and not self.apart:
            steps = [dict(system.steps) for system in running]
            some = batches[:: -(-len(batches) // TURN)]
            table.time_modules_apart(running, some, torch.cuda.synchronize)
            for system, before in zip(running, steps, strict=True):
                system.steps = before
        baselines = table.BASELINES if self.args.baselines is None else self.args.baselines
        table_lines = table.lines(running, measured, size, threads, baselines)
        if size == 1 and self.args.by_length:
            table.add_lengths(table_lines, measured, batches, self.args.by_length)
        for line, one in zip(table_lines, measured, strict=True):
            line.quality = self.quality(one)
            self.agreement.add(one.name, size, one.outputs, line.quality)
            if self.session.cuda and self.apart:
                line.parts = {}  # nothing waited for a module's end
            if self.args.hypotheses is not None:  # of several batch sizes the last
                texts = quality.texts(self.session, one.outputs)
                path = self.args.hypotheses / file_name(one.name)
                results.write_text(path, "".join(text + "\n" for text in texts))
        return table_lines

    def quality(self, measured: Measurement) -> float | None:
        """Points of what was decoded; None where there are no references."""
        if self.gec:
            source, *corrected = (
                [lines[i].split() for i in sorted(measured.outputs)] for lines in self.gec
            )
            written = map(str.split, quality.texts(self.session, measured.outputs))
            return 100 * gec_score.corpus_counts(source, written, corrected).f_measure()
        if self.session.dataset.tgt is None:
            return None
        value, self.signature = quality.bleu(self.session, measured.outputs)
        return value

    def distribution(
        self, running: Sequence[System], measured: Sequence[Measurement]
    ) -> dict[str, object]:
        """Speed-up of each sentence: of ``--distribution``, else of the first method of ours over stock."""
        by_name = {measurement.name: measurement for measurement in measured}
        if self.args.distribution is not None:
            name, base = self.args.distribution, self.args.baselines[0]
        else:
            ours = [s for s in running if s.counters is not None and s.name in self.named]
            method = next((system for system in ours if system.name != "greedy"), None)
            bases = [f"beam{method.beam}" if method else "", "beam1", "beam5"]
            base = next((name for name in bases if name in by_name), "")
            if method is None or not base:
                return {}
            name = method.name
        columns: dict[str, object] = {"system": name, "baseline": base}
        columns["speedups"] = rounded(table.speedups(by_name[name], by_name[base]))
        if name in self.named:
            ratios = table.edit_ratios(self.session, by_name[name], self.args.limit)
            columns["edit_ratios"] = rounded(ratios)
        return {"distribution": columns}

    def memory(self) -> None:
        """Peaks of all systems, each of which alone is loaded."""
        peaks: dict[int, dict[str, float]] = {}
        for size in self.args.batch_sizes:
            batches = self.session.batches(size, self.args.limit)
            peaks_of_systems = peaks.setdefault(size, {})
            for entry in self.entries:
                tell(f"measuring {systems.label(entry.name)}, batch {size}")
                try:
                    system = SystemProcess(entry, self.arguments, self.args.threads[0])
                    peaks_of_systems[systems.label(entry.name)] = system.peak(batches)
                    system.close()
                except AbsentError as absent:
                    raise SystemExit(f"error: measuring {entry.name} failed: {absent}") from None
        print(text := memory.markdown(peaks))
        if self.args.output:
            title = self.title("Peak memory")
            results.write_table(self.args.output, title, command(), text, peaks)

    # -- what is written

    def title(self, what: str) -> str:
        if self.args.title:
            return str(self.args.title)
        folder = PurePath(*Path(self.session.cfg.task.data).parts[-2:])  # "data" says nothing
        return f"{what}, {folder}, {self.session.precision}"

    def notes(self) -> list[str]:
        """Notes that are written below the tables."""
        notes = ["All processes: the same cores, threads passive, in turn."] if self.apart else []
        absent = [f"{systems.label(name)}: {reason}" for name, reason in self.absent.items()]
        notes += [f"Not measured: {one}." for one in absent]
        external = any(entry.external for entry in self.entries)
        return notes + [f"{one}." for one in LEFT_OUT if external]

    def write(self, rows: Sequence[table.Line], extra: Mapping[str, object]) -> dict[str, object]:
        notes = self.notes()
        text = table.markdown(rows, self.measure_of_quality)
        if self.signature:
            text += f"\nsacreBLEU signature: `{self.signature}`\n"
        text += "\n" + "\n".join(f"- {note}" for note in notes)
        rows_as_json = [asdict(row) for row in rows]
        more = {"sacrebleu": self.signature, "notes": notes, "absent": self.absent, **extra}
        title = self.title("Decoding speed")
        return results.write_table(self.args.output, title, command(), text, rows_as_json, more)


def command() -> str:
    return machine.command("bench", sys.argv[1:])


def tell(line: str) -> None:
    """Progress, beside the tables on stdout."""
    print(line, file=sys.stderr, flush=True)


def rounded(numbers: Sequence[float]) -> list[float]:
    return [round(number, 4) for number in numbers]


def prepared(arguments: Sequence[str]) -> Bench:
    """Loads what a command line asks for."""
    args, rest = own_parser().parse_known_args(list(arguments))
    entries_to_run, absent = entries(args, rest)
    check(args, entries_to_run, rest)
    return Bench(args, rest, entries_to_run, absent)


def run(arguments: Sequence[str]) -> None:
    if {"-h", "--help"} & {*arguments}:
        whole_parser("bench").print_help()
        return
    prepared(arguments).run()


def main(words: Sequence[str] | None = None) -> None:
    with results.refusals():
        run(list(sys.argv[1:] if words is None else words))
