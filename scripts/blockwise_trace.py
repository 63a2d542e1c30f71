"""How a blockwise model decodes single sentences, step by step (Stern et al., section 7.4): terminal and HTML.

    python scripts/blockwise_trace.py DATA --path model.pt --gen-subset test --post-process sentencepiece --cpu
    python scripts/blockwise_trace.py DATA --path model.pt --sentences 4 17 --acceptance top-k --top-k 2

takes every flag of fairseq-generate. A line is one call of the decoder: tokens gained, then proposals that were
thrown away. Without --sentences some of middling length are shown, from the fewest calls to many.
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

COLUMNS = ("tokens gained", "calls", "share of calls")
INTRODUCTION = (
    "Blockwise parallel decoding: one call of the decoder checks the block that the heads proposed in the call before "
    "and proposes the next one. The verifier's own token follows what is accepted; the first call has no proposals."
)


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


def decode(session: Session) -> list[Record]:
    """Records of the sentences that were asked for, or of some of all lengths."""
    args = session.args
    if args.sentences is None:
        return systems.record("blockwise", session, session.batches(1, args.limit))
    size = len(session.dataset)
    for number in args.sentences:
        if not 0 <= number < size:
            raise SystemExit(
                f"error: --sentences {number}: the set has sentences 0 to {size - 1} only"
            )
    by_number = {sample["id"].item(): sample for sample in session.batches(1)}
    found = systems.record("blockwise", session, [by_number[n] for n in set(args.sentences)])
    return sorted(found, key=lambda record: args.sentences.index(record.sentence))


def histogram(records: Sequence[Record]) -> list[list[str]]:
    """Rows of the report's table: how often a call gained so many tokens."""
    gained = Counter(len(step.emitted) for record in records for step in record.iterations)
    rows = [
        [str(n), str(gained[n]), f"{100 * gained[n] / gained.total():.0f} %"]
        for n in sorted(gained)
    ]
    tokens = sum(n * calls for n, calls in gained.items())
    return [*rows, [f"mean {tokens / gained.total():.2f}", str(gained.total()), ""]]


def main(arguments: Sequence[str]) -> None:
    session = Session(build_parser(), arguments)
    args = session.args
    if args.limit < 1 or args.count < 1:
        raise SystemExit("error: --limit and --count must be at least 1")
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    records = decode(session)
    chosen = records if args.sentences else trace.choose(records, args.count)
    dictionaries = session.task.source_dictionary, session.task.target_dictionary
    traces = [trace.trace(record, *dictionaries, apart=True) for record in chosen]
    trace.show(Console(), traces)
    title = "Blockwise parallel decoding, step by step"
    report.write(args.report, title, INTRODUCTION, COLUMNS, histogram(records), traces, {})
    print(f"\nThe same as a page: {args.report}")


if __name__ == "__main__":
    main(sys.argv[1:])
