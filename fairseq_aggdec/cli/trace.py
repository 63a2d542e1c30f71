"""Tells how single sentences were decoded, iteration by iteration.

    aggdec trace DATA --path verifier.pt --decoding gad --drafter-path drafter.pt --cpu
    aggdec trace DATA --path model.pt --decoding blockwise --sentences 4 17 --acceptance top-k:2

takes every flag of fairseq-generate. With --decoding gad each iteration is a line D of the drafter and a line V of the
verifier (Ge et al., Table 17); with iad it is one line; with blockwise it is a call of the decoder, token by token:
tokens gained, then proposals that were thrown away (Stern et al., section 7.4). Without --sentences some of middling
length are shown, from the fewest iterations to many.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fairseq_aggdec.api.session import (
    Session,
    generation_parser,
    refuse_beam_of_greedy,
)
from fairseq_aggdec.bench import systems
from fairseq_aggdec.records import results
from fairseq_aggdec.report import choosing, trace

METHODS = ("iad", "gad", "blockwise")


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    add = parser.add_argument_group("trace").add_argument
    numbers = "their numbers in the set, from 0"
    add("--sentences", type=int, nargs="+", metavar="N", help=numbers)
    most = "sentences to decode and choose from, of all lengths (default: 100)"
    add("--limit", type=int, default=100, help=most)
    add("--count", type=int, default=3, help="sentences to choose (default: 3)")
    add("--report", type=Path, metavar="FILE", help="the same as a page, in HTML")
    return parser


def wanted(session: Session) -> list[dict[str, Any]]:
    """The sentences that were asked for, or some of all lengths, each a batch."""
    args = session.args
    batches = session.batches(1, None if args.sentences else args.limit)
    by_number = {sample["id"].item(): sample for sample in batches}
    for number in args.sentences or ():
        if number not in by_number:
            last = len(session.dataset) - 1
            raise SystemExit(f"error: --sentences {number}: the set has sentences 0 to {last} only")
    return [by_number[number] for number in args.sentences or by_number]


def traces(session: Session, method: str) -> list[trace.Trace]:
    """The iterations of some sentences."""
    args = session.args
    records = systems.record(method, session, wanted(session))
    if not records:
        raise SystemExit(
            "error: stock fairseq decodes this model here, call by call (aggdec doctor says why): nothing is drafted"
        )
    words = session.task.source_dictionary, session.task.target_dictionary
    if args.sentences:
        chosen = sorted(records, key=lambda record: args.sentences.index(record.sentence))
    else:
        chosen = choosing.choose(records, args.count)
    told = trace.trace_beside if method == "gad" else trace.trace
    more = {"apart": True} if method == "blockwise" else {}
    return [told(record, *words, **more) for record in chosen]


@results.refusals()
def main(given: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if given is None else given
    session = Session(build_parser(), arguments, reads=["beam"])
    args, method = session.args, str(session.task.cfg.decoding)
    refuse_beam_of_greedy(args, method)
    results.check_counts(args, "limit", "count")
    results.check_place("--report", args.report)
    if method not in METHODS:
        raise SystemExit(
            f"error: --decoding {method} drafts nothing that could be shown: use {', '.join(METHODS)}"
        )
    console = Console(record=args.report is not None)
    trace.show(console, traces(session, method))
    if args.report is not None:
        results.write_text(args.report, console.export_html())
        print(f"\nThe same as a page: {args.report}")
