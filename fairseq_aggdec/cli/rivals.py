"""What else could decode this model? One checkpoint, one data set: stock fairseq, ours, CTranslate2, transformers.

    scripts/rivals.sh CHECKPOINT DATA --gen-subset test --cpu --limit 160 --output docs/results/rivals-ua_gec

or `aggdec rivals DATA --path CHECKPOINT ...` takes every flag of fairseq-generate. Each system has a process of its
own, bound to the same cores, its threads asleep while others run; they decode the same batches in turn. Beside each
speed: sentences that differ from stock with the same beam, and BLEU or F0.5. A rival that is not installed is left out
with a word below the table. All processes are in memory at once (half a GiB and a model each): --systems takes fewer.

With --drafter-path GAD takes part, with --heads blockwise decoding, with --assistant the speculative decoding of
transformers.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import (
    Session,
    generation_parser,
    refuse_decoding_beside,
)
from fairseq_aggdec.bench import benchmark, rivals, systems
from fairseq_aggdec.bench.engines import ASSISTED
from fairseq_aggdec.bench.timing import Measurement, measure
from fairseq_aggdec.records import gec_score, machine, quality
from fairseq_aggdec.records.results import check_counts, check_place, named, refusals, write_text


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    own_options(parser)
    return parser


def own_options(parser: argparse.ArgumentParser) -> None:
    """What is not fairseq-generate's, and not told to the rivals."""
    group = parser.add_argument_group("rivals")
    group.add_argument("--systems", nargs="+", metavar="NAME", help=", ".join(rivals.DEFAULT))
    group.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32, 128], metavar="B")
    group.add_argument("--threads", type=int, nargs="+", default=[1], metavar="T")
    group.add_argument("--limit", type=int, help="sentences (default: all), of all lengths")
    group.add_argument("--repeats", type=int, default=1, help="times each batch is decoded")
    group.add_argument(
        "--heads", metavar="FILE", help="checkpoint with block heads on the same model"
    )
    group.add_argument(
        "--assistant",
        metavar="FILE",
        help="checkpoint of a smaller Transformer of the same dictionary, which drafts for transformers (batch size 1)",
    )
    group.add_argument(
        "--gec",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="F0.5 instead of BLEU: the source as text, then each annotator's corrections",
    )
    group.add_argument("--output", type=Path, help="OUTPUT.json and OUTPUT.md")


class Contest:
    """A session that says what is decoded, and the rivals' command line."""

    def __init__(self, arguments: Sequence[str]):
        self.session = Session(build_parser(), arguments, every=False, reads=["batch_size"])
        self.args = self.session.args
        check_counts(self.args, "limit", "repeats", "batch_sizes", "threads")
        check_place("--output", self.args.output, ".json", ".md")
        if self.args.gec is not None and len(self.args.gec) < 2:
            raise SystemExit("error: --gec: name the source and the corrections of one annotator")
        self.gec = [gec_score.read_sentences(path) for path in self.args.gec or ()]
        own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        own_options(own)
        _, self.arguments = own.parse_known_args(arguments)
        self.absent: dict[str, str] = {}
        refuse_decoding_beside(self.names, str(self.session.cfg.task.decoding))

    @property
    def names(self) -> list[str]:
        """The systems that are asked for: by default all that the command line has models for."""
        if self.args.systems:
            return list(self.args.systems)
        more = [("gad", self.args.drafter_path), ("blockwise", self.args.heads)]
        drafted = [
            f"{name}{ending}"
            for name, given in more
            if given
            for ending in ("", *systems.PRECISIONS)
        ]
        assisted = [ASSISTED] if self.args.assistant else []
        return [*rivals.DEFAULT, *assisted, *drafted]

    def run(self) -> None:
        rows: list[benchmark.Line] = []
        for threads in self.args.threads:
            running = self.start(threads)
            for size in self.args.batch_sizes:
                entered = [rival for rival in running if rivals.entered(rival.name, size)]
                if not entered:
                    continue
                batches = self.session.batches(size, self.args.limit)
                measured = measure(entered, batches, repeats=self.args.repeats)
                rows += self.lines(measured, size, threads)
                print(benchmark.markdown(rows[-len(entered) :], self.measure_of_quality))
                sys.stdout.flush()
                if self.args.output:  # what took minutes is kept, should the next size be killed
                    self.write(rows, self.notes())
            for rival in running:
                rival.close()
        print("\n".join(self.notes()))

    def start(self, threads: int) -> list[rivals.Rival]:
        """The processes of all that can be measured here."""
        running = []
        for name in self.names:
            wanted, option, given = self.models_of_its_own(name)
            if wanted and not given:
                self.absent[name] = f"it needs {wanted}"
                continue
            more = [option, given] if wanted else []
            try:
                running.append(rivals.Rival(name, [*self.arguments, *more], threads))
            except rivals.AbsentError as absent:
                self.absent[name] = str(absent)
        if not running:
            raise SystemExit(f"error: nothing can be measured: {'; '.join(self.absent.values())}")
        return running

    def models_of_its_own(self, name: str) -> tuple[str, str, str]:
        """Of a system: our option for its own model, that of its process, and the file; empty where it has none."""
        if name.startswith("blockwise"):
            return "--heads", "--path", self.args.heads or ""
        if name == ASSISTED:
            return "--assistant", "--drafter-path", self.args.assistant or ""
        return "", "", ""

    def lines(self, measured: list[Measurement], size: int, threads: int) -> list[benchmark.Line]:
        found = benchmark.lines(measured, size, threads)
        return [
            replace(line, quality=self.quality(one))
            for line, one in zip(found, measured, strict=True)
        ]

    @property
    def measure_of_quality(self) -> str:
        return "F0.5" if self.gec else "BLEU"

    def quality(self, measured: Measurement) -> float | None:
        """Points of what was decoded; None where the data set has no references."""
        if not self.gec:
            if self.session.dataset.tgt is None:
                return None
            return quality.bleu(self.session, measured.outputs)[0]
        source, *references = ([lines[i] for i in sorted(measured.outputs)] for lines in self.gec)
        written = quality.texts(self.session, measured.outputs)
        return 100 * gec_score.score_sentences(source, written, references).f

    def notes(self) -> list[str]:
        """What stands below the tables."""
        absent = [f"{systems.label(name)}: {reason}" for name, reason in self.absent.items()]
        left_out = [f"Not measured: {one}." for one in absent] + [f"{x}." for x in rivals.LEFT_OUT]
        return ["All processes: the same cores, threads passive, in turn.", *left_out]

    def write(self, rows: list[benchmark.Line], notes: list[str]) -> None:
        set_name = "/".join(Path(self.session.cfg.task.data).parts[-2:])
        extra: dict[str, object] = {
            "quality": self.measure_of_quality,
            "notes": notes,
            "absent": self.absent,
        }
        command = machine.command("rivals", sys.argv[1:])
        title = f"Engines on one checkpoint, {set_name}"
        record = benchmark.write(self.args.output, title, command, rows, extra)
        table = benchmark.markdown(rows, self.measure_of_quality)
        page = benchmark.page(record, table) + "\n" + "\n".join(f"- {note}" for note in notes)
        write_text(named(self.args.output, ".md"), page + "\n")


def main(given: Sequence[str] | None = None) -> None:
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    with refusals():
        Contest(list(sys.argv[1:] if given is None else given)).run()


if __name__ == "__main__":
    main()
