"""``aggdec trace``: shows how single sentences were decoded, iteration by iteration."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from fairseq_aggdec.api.session import (
    Session,
    refuse_beam_of_greedy,
)
from fairseq_aggdec.bench import systems
from fairseq_aggdec.cli.parsers import whole_parser
from fairseq_aggdec.records import results
from fairseq_aggdec.report import choosing, trace

METHODS = ("iad", "gad", "blockwise")


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
    traced = trace.trace_beside if method == "gad" else trace.trace
    more = {"apart": True} if method == "blockwise" else {}
    return [traced(record, *words, **more) for record in chosen]


@results.refusals()
def main(words: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if words is None else words
    session = Session(whole_parser("trace"), arguments, reads=["beam"])
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
