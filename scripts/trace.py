"""How single sentences were decoded, iteration by iteration: in the terminal and as a page.

    python scripts/trace.py DATA --path verifier.pt --decoding gad --drafter-path drafter.pt --cpu
    python scripts/trace.py DATA --path model.pt --decoding blockwise --sentences 4 17 --acceptance top-k --top-k 2

takes every flag of fairseq-generate. With --decoding gad each iteration is a line D of the drafter and a line V of the
verifier (Ge et al., Table 17); with iad it is one line; with blockwise it is a call of the decoder, token by token:
tokens gained, then proposals that were thrown away (Stern et al., section 7.4). Without --sentences some of middling
length are shown, from the fewest iterations to many.
"""

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.evaluation import report, systems, trace
from fairseq_aggdec.evaluation.recording import Record
from fairseq_aggdec.evaluation.session import Session, generation_parser

COLUMNS = ("tokens gained", "iterations", "share of iterations")
METHODS = {
    "iad": (
        "Input-guided aggressive decoding",
        "Input-guided aggressive decoding: the output is guessed to go on as the input does, and the verifier checks "
        "the guess in one call. Its own token follows what is accepted.",
    ),
    "gad": (
        "Generalized aggressive decoding",
        "Generalized aggressive decoding: in every iteration the drafter (D) proposes a block of tokens in one call, "
        "and the verifier (V) checks all of them in one call. Its own token follows what is accepted.",
    ),
    "blockwise": (
        "Blockwise parallel decoding",
        "Blockwise parallel decoding: one call of the decoder checks the block that the heads proposed in the call "
        "before and proposes the next one. The verifier's own token follows what is accepted; the first call has no "
        "proposals.",
    ),
}


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("trace")
    group.add_argument(
        "--sentences", type=int, nargs="+", metavar="N", help="their numbers in the set, from 0"
    )
    group.add_argument(
        "--limit",
        type=int,
        default=100,
        help="sentences to decode and choose from, of all lengths (default: %(default)s)",
    )
    group.add_argument("--count", type=int, default=3, help="sentences to choose (default: 3)")
    group.add_argument("--report", type=Path, default=Path("report.html"), metavar="FILE")
    return parser


def decode(method: str, session: Session) -> list[Record]:
    """Records of the sentences that were asked for, or of some of all lengths."""
    args = session.args
    if args.sentences is None:
        return systems.record(method, session, session.batches(1, args.limit))
    size = len(session.dataset)
    for number in args.sentences:
        if not 0 <= number < size:
            raise SystemExit(
                f"error: --sentences {number}: the set has sentences 0 to {size - 1} only"
            )
    by_number = {sample["id"].item(): sample for sample in session.batches(1)}
    found = systems.record(method, session, [by_number[n] for n in set(args.sentences)])
    return sorted(found, key=lambda record: args.sentences.index(record.sentence))


def histogram(records: Sequence[Record]) -> list[list[str]]:
    """Rows of the report's table: how often an iteration gained so many tokens."""
    gained = Counter(len(step.emitted) for record in records for step in record.iterations)
    rows = [
        [str(n), str(gained[n]), f"{100 * gained[n] / gained.total():.0f} %"]
        for n in sorted(gained)
    ]
    tokens = sum(n * calls for n, calls in gained.items())
    return [*rows, [f"mean {tokens / gained.total():.2f}", str(gained.total()), ""]]


def put_into_words(method: str, session: Session, record: Record) -> trace.Trace:
    dictionaries = session.task.source_dictionary, session.task.target_dictionary
    if method == "gad":
        return trace.trace_beside(record, *dictionaries)
    return trace.trace(record, *dictionaries, apart=method == "blockwise")


def main(arguments: Sequence[str]) -> None:
    session = Session(build_parser(), arguments)
    args, method = session.args, str(session.task.cfg.decoding)
    if args.limit < 1 or args.count < 1:
        raise SystemExit("error: --limit and --count must be at least 1")
    if method not in METHODS:
        raise SystemExit(
            f"error: --decoding {method} drafts nothing that could be shown: use {', '.join(METHODS)}"
        )
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    records = decode(method, session)
    chosen = records if args.sentences else trace.choose(records, args.count)
    traces = [put_into_words(method, session, record) for record in chosen]
    trace.show(Console(), traces)
    name, introduction = METHODS[method]
    title = f"{name}, step by step"
    report.write(args.report, title, introduction, COLUMNS, histogram(records), traces, {})
    print(f"\nThe same as a page: {args.report}")


if __name__ == "__main__":
    main(sys.argv[1:])
