"""Replay: the iterations of a recorded run on models of other sizes with random weights.

    python -m scripts.recipes.gad.replay DATA --path model.pt --gen-subset test --decoding gad ... --record FILE
    python -m scripts.recipes.gad.replay --replay FILE --size base --cpu --systems beam5 beam1 greedy gad --output OUT

--record decodes a set with IAD, or as --decoding says, and writes what it did, draft by draft. --replay takes the place
of DATA and --path, all other options are those of ``aggdec bench``; with gad among the systems a drafter of that size
runs as well, with the options of fairseq-train in --drafter-flags="..."; with blockwise, heads do.

What costs time in decoding is how many tokens each call reads and how many calls there are, not what the weights are.
So a model of Transformer-base or -big size gets sources of the recorded lengths, every system writes as many tokens as
the recorded output had, and the method's drafts are as long and as right as they were (see ``ReplayDrafter``). What
drafts with a model runs, too, at that size: a drafter with the verifier's encoder, or heads on the verifier.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.api.session import Session, generation_parser, spread
from fairseq_aggdec.bench import command_line, systems, table
from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.bench.systems import Entry
from fairseq_aggdec.bench.timing import Measurement, System
from fairseq_aggdec.cli.bench import Bench
from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.copy.input_copy import InputCopyDrafter
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.engine.graphs.window_graphs import ROWS, GraphMemory, grid_end, grid_rows
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.records import results
from fairseq_aggdec.search.acceptance import NO_DRAFT
from fairseq_aggdec.search.board import POSITION, Board, Rows, Shape
from fairseq_aggdec.search.drafter import DeviceDrafter, Drafter, EmptyDrafter
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict
from fairseq_aggdec.windows.transfer import Watch, send_into
from scripts.random_models import SIZES, prepare


class ReplayDrafter(DeviceDrafter):
    """Forces the recorded draft lengths and bifurcations on another model, whose output is known.

    Each draft has as many right tokens as were accepted in the recording, then a wrong one. The output is not
    touched: it stays the model's own, and a verifier that accepted anything else would give another one. On a GPU the
    drafts of a batch are a table on the device, so that the loop there is replayed too.

    Args:
        records: sentence -> recording.
        outputs: sentence -> the model's greedy output, ``</s>`` included, as long as the recorded one.
        wrong: two tokens that are not special; one of them differs from any right token.
        pace: drafts as well, and what it drafts is thrown away: a replay takes its time.

    Attributes:
        table: (S + 1, T, K) int64, the draft behind each position of each sentence, ``NO_DRAFT`` where there is none.
        generation, sources: see :class:`~fairseq_aggdec.engine.graphs.window_graphs.GraphMemory`.
    """

    ragged = True

    def __init__(
        self,
        records: Mapping[int, Record],
        outputs: Mapping[int, Sequence[int]],
        wrong: tuple[int, int],
        pace: Drafter | None = None,
    ):
        self.records, self.outputs, self.wrong = records, outputs, wrong
        self.pace = pace or EmptyDrafter()
        self.starts_beside = self.pace.starts_beside
        self.longest = max(
            (len(i.drafted) for r in records.values() for i in r.iterations), default=0
        )
        self.table, self.generation = torch.empty(0, 0, 0, dtype=torch.long), 0
        self.room = 0, 0  # of the largest board so far
        self.filled: dict[tuple[int, ...], Tensor] = {}

    @property
    def reads_features(self) -> bool:  # type: ignore[override]
        return isinstance(self.pace, DeviceDrafter) and self.pace.reads_features

    @property
    def watches(self) -> Sequence[Watch]:
        return self.pace.watches

    @property
    def sources(self) -> int:
        return self.table.size(1)

    def reads(self, sample: Mapping) -> Sequence[Tensor]:
        return self.pace.reads(sample)

    def prepare(self, verifier: Verifier) -> None:
        self.pace.prepare(verifier)

    def at_the_pace_of(self, drafter: Drafter) -> ReplayDrafter:
        return ReplayDrafter(self.records, self.outputs, self.wrong, drafter)

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.sentences, count = sample["id"].tolist(), len(state.rows)
        rows = 1 + (count if count > ROWS[-1] else grid_rows(count))
        length = grid_end(max(row.end for row in state.rows) + 3)
        self.room = max(self.room[0], rows), max(self.room[1], length)
        self.pace.start(sample, verifier, state)

    def draft(self, state: DecodeState) -> Draft:
        self.pace.draft(state)
        return Draft([self._draft(self.sentences[row.index], row.iterations) for row in state.rows])

    def _draft(self, sentence: int, round_: int) -> list[int]:
        iterations = self.records[sentence].iterations
        if round_ >= len(iterations):  # rounding gave a tie to the other side: finish one by one
            return []
        position = sum(len(iteration.emitted) for iteration in iterations[:round_])
        iteration = iterations[round_]
        right = self.outputs[sentence][position : position + iteration.accepted]
        draft = list(right)
        for offset in range(len(right), len(iteration.drafted)):
            expected = self.outputs[sentence][position + offset : position + offset + 1]
            draft.append(self.wrong[list(expected) == [self.wrong[0]]])
        return draft

    def start_on_device(self, state: DecodeState) -> int | None:
        if not isinstance(self.pace, DeviceDrafter):
            return None
        size = self.pace.start_on_device(state)
        if isinstance(self.pace, EmptyDrafter):
            size = self.longest
        if size:
            self._fill(state, size)
        return size

    def _fill(self, state: DecodeState, size: int) -> None:
        """Writes the drafts of a batch to the table; a captured graph reads it where it is."""
        recorded = [self.records[sentence].iterations for sentence in self.sentences]
        written = max(sum(len(i.emitted) for i in rounds) for rounds in recorded)
        room = self.room[0], max(self.room[1], grid_end(written + 1)), size
        if any(a > b for a, b in zip(room, self.table.shape, strict=True)):
            larger = [max(pair) for pair in zip(room, self.table.shape, strict=True)]
            self.table = torch.empty(larger, dtype=torch.long, device=state.device)
            self.generation += 1
        batch = (*self.sentences, size, *self.table.shape)
        if batch not in self.filled:  # once: it takes time that no drafter takes
            self.filled[batch] = self._laid_out(size)
        send_into(self.table, self.filled[batch])

    def _laid_out(self, size: int) -> Tensor:
        """The table of the batch, on the host."""
        drafts = torch.full(tuple(self.table.shape), NO_DRAFT)
        for place, sentence in enumerate(self.sentences):
            position = 0
            for number, iteration in enumerate(self.records[sentence].iterations):
                draft = self._draft(sentence, number)[:size]
                drafts[place, position, : len(draft)] = torch.tensor(draft, dtype=torch.long)
                position += len(iteration.emitted)
        return drafts

    def reserve(self, shape: Shape) -> Sequence[GraphMemory]:
        assert isinstance(self.pace, DeviceDrafter)
        return [*self.pace.reserve(shape), self]

    def block(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        assert isinstance(self.pace, DeviceDrafter)
        self.pace.block(board, owners, rows, shape)
        base = board.numbers[:, POSITION].index_select(0, owners)  # as few launches as can be
        return self.table[owners, base, : shape.width - 1]

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        self.pace.observe(verdict, state)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.pace.keep_rows(rows)


def lengths(records: Sequence[Record]) -> dict[int, int]:
    """Sentence of the replayed set -> tokens to write, ``</s>`` not counted."""
    return {index: len(record.output) - 1 for index, record in enumerate(records)}


def replay_drafter(session: Session, records: Sequence[Record]) -> ReplayDrafter:
    """The drafter for a session on a prepared folder; decodes the set once with our greedy to know what is right."""
    generator, _ = session.generator("greedy")
    to_write = lengths(records)
    outputs: dict[int, list[int]] = {}
    for sample in session.batches(1):
        sentence = sample["id"].item()
        force_length(generator, to_write[sentence])
        outputs[sentence] = session.decode(generator, sample)[0]["tokens"].tolist()
    first = session.task.target_dictionary.nspecial
    return ReplayDrafter(dict(enumerate(records)), outputs, (first, first + 1))


def force_length(generator: Any, tokens: int) -> None:
    """Makes a generator, or another engine by the options of generation, write exactly so many tokens and ``</s>``."""
    generator.min_len = generator.max_len_b = tokens
    generator.max_len_a = 0


def force_drafts(system: System, drafter: ReplayDrafter, cuda: bool) -> None:
    """Has a method of ours that drafts verify what was recorded; what drafts with a model runs as well."""
    if system.generator is None or isinstance(system.drafter, EmptyDrafter):
        return
    kinds = (NarDrafter, BlockwiseHeadsDrafter, *((InputCopyDrafter,) if cuda else ()))
    paced = isinstance(system.drafter, kinds)
    system.generator.drafter = drafter.at_the_pace_of(system.drafter) if paced else drafter


# -- the command


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    own_options(parser)
    return parser


def own_options(parser: argparse.ArgumentParser) -> None:
    command_line.own_options(parser)
    add = parser.add_argument_group("replay").add_argument
    add("--record", type=Path, metavar="FILE")
    add("--replay", type=Path, metavar="FILE")
    add("--size", default="base", choices=SIZES)
    add("--drafter-flags", type=shlex.split, default=[], metavar="FLAGS")


class Replay(Bench):
    """A benchmark whose systems do what was recorded, one sentence at a time, in one process."""

    def __init__(
        self,
        args: Namespace,
        arguments: Sequence[str],
        entries: Sequence[Entry],
        records: Sequence[Record],
    ):
        super().__init__(args, arguments, entries, {})
        args.batch_sizes, self.apart = [1], False
        self.records, self.lengths = records, lengths(records)
        self.drafter = replay_drafter(self.session, records)

    def load(self, entry: Entry) -> System:
        system = super().load(entry)
        force_drafts(system, self.drafter, self.session.cuda)
        options, decode = self.session.cfg.generation, system.decode

        def decode_forced(sample: dict[str, Any]) -> list[list[int]]:
            forced = options if system.generator is None else system.generator
            force_length(forced, self.lengths[sample["id"].item()])
            return decode(sample)

        system.decode = decode_forced
        return system

    def lines(
        self, running: Sequence[System], measured: Sequence[Measurement], *rest: Any
    ) -> list[table.Line]:
        """Says so where a replay did not do what was recorded (a floating-point tie may break a draft)."""
        found = super().lines(running, measured, *rest)
        rounds = sum(len(record.iterations) for record in self.records)
        recorded = sum(len(record.output) for record in self.records) / rounds
        for row in found:
            replayed = row.mean_accepted if row.system != "greedy" else None
            if replayed is not None and abs(replayed / recorded - 1) > 0.01:
                print(f"warning: {row.system}: {replayed:.2f} tokens / step, not {recorded:.2f}")
        return found

    def distribution(
        self, running: Sequence[System], measured: Sequence[Measurement]
    ) -> dict[str, object]:
        found: Any = super().distribution(running, measured)
        found.get("distribution", {}).pop("edit_ratios", None)  # the words are random
        return found

    def memory(self) -> None:
        tokens = str(sum(self.lengths.values()) // len(self.lengths))
        self.arguments += ["--min-len", tokens, "--max-len-b", tokens]
        super().memory()

    def title(self, what: str) -> str:
        random = f"replay: Transformer-{self.args.size} with random weights, recorded iterations"
        return str(self.args.title or f"{what}, {random}")


def save(path: Path, records: Iterable[Record]) -> None:
    """One JSON object a line."""
    lines = (json.dumps(asdict(record), separators=(",", ":")) for record in records)
    results.write_text(path, "".join(line + "\n" for line in lines))


def load(path: Path) -> list[Record]:
    """The inverse of :func:`save`."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        Record(row["sentence"], row["source"], [Iteration(**i) for i in row["iterations"]])
        for row in rows
    ]


def record(args: Namespace, arguments: Sequence[str]) -> None:
    """Decodes a set and writes what the method did."""
    results.check_place("--record", args.record)
    session = Session(generation_parser(None), arguments, always_draft=False, reads=["batch_size"])
    decoding = str(session.cfg.task.decoding)
    method = "iad" if decoding in ("beam", "stock") else decoding
    save(args.record, systems.record(method, session, session.batches(1, args.limit)))


def main(given: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if given is None else given)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own_options(parser)
    args, rest = parser.parse_known_args(arguments)
    if {"-h", "--help"} & {*rest} or not (args.record or args.replay):
        build_parser().print_help()
        return
    with results.refusals():
        if args.record:
            return record(args, rest)
        names = systems.expanded(args.systems or ["stock", "ours"])
        records = spread(load(args.replay), args.limit)
        with tempfile.TemporaryDirectory(prefix="replay-") as folder:
            drafter = args.drafter_flags if "gad" in names else None
            made = prepare(Path(folder), args.size, records, drafter, "blockwise" in names)
            found = [Entry(name, name) for name in names]
            command_line.check(args, found, rest)
            Replay(args, [*made, *rest], found, records).run()


if __name__ == "__main__":
    main()
