"""Equality audit: is a fast method exactly what stock fairseq gives with --beam 1?

    python scripts/audit.py DATA --path model.pt --gen-subset test --decoding iad --batch-sizes 1 8 32

takes every flag of fairseq-generate, decodes the set with stock fairseq and with the method at each batch size, and
reports how many sentences are equal and how the others differ. Exit status 1 on any BUG, a missing sentence included.
--reference names another checkpoint for stock fairseq: that on which block heads were trained, for example. With
--decoding greedy --drafts wrong the loop verifies drafts that are made to break it instead of a drafter's.
"""

import argparse
import itertools
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.evaluation import equality, machine
from fairseq_aggdec.evaluation.forced_drafts import KINDS, ForcedDrafter
from fairseq_aggdec.evaluation.session import Session, generation_parser


def build_parser():
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("audit")
    group.add_argument("--batch-sizes", type=int, nargs="+", default=[32], metavar="B")
    group.add_argument(
        "--stock-batch-size",
        type=int,
        metavar="B",
        help="of the reference (default: as the method's)",
    )
    group.add_argument(
        "--reference", metavar="FILE", help="checkpoint of the reference (default: that of --path)"
    )
    group.add_argument(
        "--drafts",
        nargs="+",
        choices=KINDS,
        default=[],
        help="draft this instead of what the method drafts: right, wrong or random tokens, or </s> at once",
    )
    group.add_argument(
        "--draft-lengths", type=int, nargs="+", default=[10], metavar="K", help="of such drafts"
    )
    group.add_argument("--limit", type=int, help="sentences to decode (default: all)")
    group.add_argument(
        "--tie-margin", type=float, help="nats below which a difference is a tie (fp32: 1e-4)"
    )
    group.add_argument(
        "--output", type=Path, help="result files to write: OUTPUT.json and OUTPUT.md"
    )
    return parser


def report(name: str, result: equality.Audit) -> str:
    """One table row."""
    return (
        f"| {name} | {result.sentences} | {result.equal} | {result.ties} | {result.bugs} | {len(result.missing)} | "
        f"{result.score_error:.1e} |"
    )


def show_differences(result: equality.Audit) -> None:
    for item in result.differences[:SHOWN]:
        print(
            f"  sentence {item.sentence}, token {item.position}: stock {item.stock!r}, method {item.method!r}, "
            f"margin {item.margin:.2e} nats: {item.verdict}"
        )
    for sentence in result.missing[:SHOWN]:
        print(f"  sentence {sentence}: not decoded exactly once: {equality.BUG}")
    if result.score_errors:
        print(f"  {result.score_errors} sentences with scores that differ: {equality.BUG}")


def variants(
    session: Session, decoding: str, expected: dict[int, list[equality.Hypothesis]]
) -> Iterator[tuple[str, ForcedDrafter | None]]:
    """What is audited at a batch size: the method, or the loop with every kind and length of draft asked for."""
    args = session.args
    if not args.drafts:
        yield decoding, None
    outputs = {sentence: found[0]["tokens"].tolist() for sentence, found in expected.items()}
    types = len(session.task.target_dictionary)
    for kind, length in itertools.product(args.drafts, args.draft_lengths):
        drafter = ForcedDrafter(kind, length, types, outputs)
        yield f"{decoding}, {kind} drafts of {length}", drafter


VERIFIED = ("greedy", "iad", "gad", "blockwise")
SHOWN = 20  # differences listed per comparison; the JSON has all
HEADER = (
    "| method | sentences | equal | ties | BUGs | missing | largest score difference (nats) |\n"
    "|---|---|---|---|---|---|---|"
)


def check(args: argparse.Namespace, decoding: str) -> None:
    if args.drafts and decoding not in VERIFIED:
        raise SystemExit(
            f"error: --drafts: --decoding {decoding} verifies none, give one of {', '.join(VERIFIED)}"
        )
    if min(args.draft_lengths) < 1:
        raise SystemExit(f"error: --draft-lengths {min(args.draft_lengths)}: at least 1 is needed")


def main() -> int:
    session = Session(build_parser())
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    args, decoding = session.args, str(session.cfg.task.decoding)
    check(args, decoding)
    reference = session
    if args.reference:
        if not Path(args.reference).is_file():
            raise SystemExit(f"error: --reference {args.reference}: there is no such file")
        reference = Session(build_parser(), [*sys.argv[1:], "--path", args.reference])
    tie_margin = args.tie_margin or equality.TIE_MARGIN[session.precision]
    tolerance = equality.SCORE_TOLERANCE[session.precision]
    rows, results, references = [], {}, {}
    for batch_size in args.batch_sizes:
        stock_size = args.stock_batch_size or batch_size
        if stock_size not in references:
            references[stock_size] = equality.decode_all(reference, "beam", stock_size, args.limit)
        expected = references[stock_size]
        for variant, drafter in variants(session, decoding, expected):
            found = equality.decode_all(session, decoding, batch_size, args.limit, drafter)
            result = equality.audit(
                reference, session.sentences(args.limit), expected, found, tie_margin, tolerance
            )
            name = f"{variant}, batch {batch_size}, {session.precision}"
            results[name] = asdict(result) | {"bugs": result.bugs, "ties": result.ties}
            rows.append(report(name, result))
            show_differences(result)
    print(HEADER, *rows, sep="\n")
    if args.output:
        write(args.output, rows, results, len(session.dataset))
    return int(any(result["bugs"] for result in results.values()))


def write(output: Path, rows: list[str], results: dict, size: int) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    command = machine.command("audit", sys.argv[1:])
    here = machine.describe()
    record = {"command": command, "machine": here, "data_set_size": size, "results": results}
    output.with_suffix(".json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    text = f"# Equality with stock fairseq --beam 1\n\n`{command}`\n\n" + "\n".join([HEADER, *rows])
    output.with_suffix(".md").write_text(text + f"\n\n{machine.sentence(here)}\n")


if __name__ == "__main__":
    sys.exit(main())
