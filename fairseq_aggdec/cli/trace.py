"""Tells how single sentences were decoded, iteration by iteration: in the terminal and as a page.

    aggdec trace DATA --path verifier.pt --decoding gad --drafter-path drafter.pt --cpu
    aggdec trace DATA --path model.pt --decoding blockwise --sentences 4 17 --acceptance top-k:2

takes every flag of fairseq-generate. With --decoding gad each iteration is a line D of the drafter and a line V of the
verifier (Ge et al., Table 17); with iad it is one line; with blockwise it is a call of the decoder, token by token:
tokens gained, then proposals that were thrown away (Stern et al., section 7.4). Without --sentences some of middling
length are shown, from the fewest iterations to many.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fairseq_aggdec import installing
from fairseq_aggdec.api.session import (
    Session,
    generation_parser,
    refuse_beam_of_greedy,
)
from fairseq_aggdec.bench import systems, table
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.bench.timing import measure
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.report import choosing, report, trace
from fairseq_aggdec.report.report import Page

COLUMNS = ("tokens gained", "iterations", "share of iterations")
SHOWS = "This page shows which words each call of the decoder accepted from a draft, and where it wrote its own. "
METHODS = {
    "iad": (
        "Input-guided aggressive decoding",
        f"{SHOWS}Input-guided aggressive decoding guesses that the output goes on as the input does, and the verifier "
        "checks the guess in one call.",
    ),
    "gad": (
        "Generalized aggressive decoding",
        f"{SHOWS}In every iteration the drafter (D) proposes a block of tokens in one call, and the verifier (V) "
        "checks all of them in one call.",
    ),
    "blockwise": (
        "Blockwise parallel decoding",
        f"{SHOWS}In blockwise parallel decoding one call checks the block that the heads proposed in the call before, "
        "and proposes the next one.",
    ),
}


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    add = parser.add_argument_group("trace").add_argument
    numbers = "their numbers in the set, from 0"
    add("--sentences", type=int, nargs="+", metavar="N", help=numbers)
    most = "sentences to decode and choose from, of all lengths (default: 100)"
    add("--limit", type=int, default=100, help=most)
    add("--count", type=int, default=3, help="sentences to choose (default: 3)")
    place = "the page (default: report.html, or report-2.html, ... where there is one already)"
    add("--report", type=Path, metavar="FILE", help=place)
    add("--overwrite", action="store_true", help="replace the page that --report names")
    untimed = "do not time the method against stock fairseq"
    add("--no-speed", action="store_true", help=untimed)
    return parser


def wanted(session: Session) -> dict[int, dict[str, Any]]:
    """The sentences that were asked for in their order, or some of all lengths, each a batch, by number."""
    args = session.args
    batches = session.batches(1, None if args.sentences else args.limit)
    by_number = {sample["id"].item(): sample for sample in batches}
    for number in args.sentences or ():
        if number not in by_number:
            last = len(session.dataset) - 1
            raise SystemExit(f"error: --sentences {number}: the set has sentences 0 to {last} only")
    return {number: by_number[number] for number in args.sentences or by_number}


def histogram(records: Sequence[Record]) -> list[list[str]]:
    """Rows of the report's table: how often an iteration gained so many tokens."""
    gained = Counter(len(step.emitted) for record in records for step in record.iterations)
    rows = [
        [str(n), str(gained[n]), f"{100 * gained[n] / gained.total():.0f} %"]
        for n in sorted(gained)
    ]
    tokens = sum(n * calls for n, calls in gained.items())
    return [*rows, [f"mean {tokens / gained.total():.2f}", str(gained.total()), ""]]


def place(args: argparse.Namespace) -> Path:
    """Chooses where the page goes: nothing that is there is replaced unasked."""
    if args.report is None:
        return results.unused(Path("report.html"))
    if args.report.is_file() and not args.overwrite:
        raise SystemExit(
            f"error: --report {args.report} is there already: name another file, or add --overwrite"
        )
    results.check_place("--report", args.report)
    return args.report


def show_drafts(session: Session, method: str) -> Page:
    """The iterations of some sentences, in the terminal and for a page."""
    args, batches = session.args, list(wanted(session).values())
    records = systems.record(method, session, batches)
    if not records:
        raise SystemExit(
            "error: stock fairseq decodes this model here, call by call (aggdec doctor says why): nothing is drafted"
        )
    words = session.task.source_dictionary, session.task.target_dictionary
    if args.sentences:
        chosen = sorted(records, key=lambda record: args.sentences.index(record.sentence))
    else:
        worth = choosing.worth_showing(*words, choosing.references_of(session, records))
        chosen = choosing.choose(records, args.count, worth)
    told = trace.trace_beside if method == "gad" else trace.trace
    more = {"apart": True} if method == "blockwise" else {}
    traces = [told(record, *words, **more) for record in chosen]
    trace.show(Console(), traces)
    name, introduction = METHODS[method]
    page = Page(f"{name}, step by step", introduction, traces=traces)
    page.table, page.columns = "Tokens gained in each call", COLUMNS
    page.rows = histogram(records)
    finish(session, method, batches, page)
    return page


def against_stock(
    session: Session, method: str, batches: Sequence[dict[str, Any]]
) -> list[table.Line]:
    """Times stock, our greedy search and a ``--decoding``, in turn, on batches of one sentence."""
    stock = "fairseq beam 1"
    wanted = {stock: "stock", "ours, greedy": "greedy", systems.label(method): method}
    timed = [systems.of_session(name, session, how, 1) for name, how in wanted.items()]
    return table.lines(timed, measure(timed, batches), 1, torch.get_num_threads(), [stock])


def finish(session: Session, method: str, batches: list[dict[str, Any]], page: Page) -> None:
    """Adds the speed on some sentences, and what was measured on what."""
    args = session.args
    if not args.no_speed:
        page.timed = against_stock(session, method, batches)
    data, models = session.cfg.task.data, session.cfg.common_eval.path
    threads = torch.get_num_threads()
    page.context = (
        f"Model {machine.near(models)}; {args.gen_subset} set of {machine.near(data)}; "
        f"{machine.count(len(batches), 'sentences')}, one at a time (batch size 1); "
        f"{machine.count(threads, 'threads')}; {session.precision}."
    )


@results.refusals()
def main(given: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if given is None else given
    if not {"-h", "--help"} & {*arguments}:
        installing.need("aggdec trace", "report", "jinja2")
    session = Session(build_parser(), arguments, reads=["beam"])
    args, method = session.args, str(session.task.cfg.decoding)
    refuse_beam_of_greedy(args, method)
    results.check_counts(args, "limit", "count")
    path = place(args)
    if method not in METHODS:
        raise SystemExit(
            f"error: --decoding {method} drafts nothing that could be shown: use {', '.join(METHODS)}"
        )
    page = show_drafts(session, method)
    page.command = machine.command("trace", arguments)
    report.write(path, page)
    print(f"\nThe same as a page: {path}")
