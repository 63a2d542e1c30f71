"""A million decodings of models of many shapes, options together, against stock fairseq.

    scripts/audit_million.sh --state work/audit/cases.jsonl --output docs/results/audit-million

Every case (models, sentences, options, batch size) is made from its number, decoded by stock fairseq and by greedy
decoding, copied drafts, forced drafts and trees, and beam search, and compared as aggdec audit does. A line of JSON is
written for each case. The same command goes on behind the last one; --first and --step split the work. With --real
every fourth case is of a trained model and sentences of its test set; drafts and options are as in the others. Exit
status 1 on a BUG.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fairseq_aggdec.audit.equality import Audit
from fairseq_aggdec.evaluation.random_audits import audits
from fairseq_aggdec.evaluation.random_cases import Case
from fairseq_aggdec.jobs.workers import positive
from fairseq_aggdec.records import machine, results

REAL_EVERY = 4


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "audit_million.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--state", type=Path, required=True, help="JSON lines, one for each case")
    parser.add_argument("--decodings", type=positive, default=1_000_000, help="when to stop")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--step", type=positive, default=1, help="between two cases' numbers")
    parser.add_argument(
        "--real",
        nargs=2,
        action="append",
        default=[],
        metavar=("DATA", "CHECKPOINT"),
        help="decode this too, in turn with others given",
    )
    parser.add_argument("--report", action="store_true", help="decode nothing, only the table")
    parser.add_argument("--output", type=Path, help="the table: OUTPUT.md")
    return parser


def read(path: Path) -> list[dict[str, Any]]:
    """Finished cases; a last line that a kill cut short is none, and is taken away."""
    if not path.exists():
        return []
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        os.truncate(path, len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def case_of(seed: int, real: Sequence[Sequence[str]]) -> Case:
    """The case with this number; ``real`` are pairs of data and checkpoint."""
    case, (turn, own) = Case.of(seed), divmod(seed, REAL_EVERY)
    if not real or own != REAL_EVERY - 1:
        return case
    data, checkpoint = real[turn % len(real)]
    return replace(case, real=(data, checkpoint))


def decode(case: Case) -> dict[str, Any]:
    return {"case": asdict(case), "methods": {name: found(audit) for name, audit in audits(case)}}


def found(audit: Audit) -> dict[str, Any]:
    numbers = {"bugs": audit.bugs, "ties": audit.ties}
    return asdict(audit) | numbers


def decodings(records: Sequence[dict[str, Any]]) -> int:
    return sum(one["sentences"] for record in records for one in record["methods"].values())


def table(records: Sequence[dict[str, Any]]) -> str:
    """A row for each method, and every tie with its margin."""
    totals: dict[str, Counter[str]] = {}
    listed = []
    for record in records:
        for name, one in record["methods"].items():
            total = totals.setdefault(name, Counter())
            total.update({key: one[key] for key in ("sentences", "equal", "ties", "bugs")})
            seed = record["case"]["seed"]
            listed += [
                f"| {seed} | {name} | {item['sentence']} | {item['margin']:.1e} | {item['verdict']} |"
                for item in one["differences"]
            ]
            if one["score_errors"]:
                listed.append(f"| {seed} | {name} | scores | {one['score_error']:.1e} | BUG |")
    rows = [
        f"| {name} | {n['sentences']:,} | {n['equal']:,} | {n['ties']} | {n['bugs']} |"
        for name, n in totals.items()
    ]
    bugs = sum(total["bugs"] for total in totals.values())
    real = sum(bool(record["case"].get("real")) for record in records)
    kinds = f" ({real} of them of trained models)" if real else ""
    head = f"{decodings(records):,} decodings in {len(records):,} cases{kinds}: {bugs} BUGs."
    text = [
        head,
        "",
        "| method | decodings | equal | ties | BUGs |",
        "|---|---|---|---|---|",
        *rows,
    ]
    if listed:
        text += ["", "| case | method | sentence | margin, nats | |", "|---|---|---|---|---|"]
        text += listed
    return "\n".join(text)


def conclude(records: Sequence[dict[str, Any]], output: Path | None) -> int:
    text = table(records)
    print(text)
    if output is not None:
        command = shlex.join(["scripts/audit_million.sh", *sys.argv[1:]])
        sentence = machine.sentence(machine.describe())
        page = f"# Many decodings against stock fairseq\n\n`{command}`\n\n{text}\n\n{sentence}\n"
        results.write_text(results.named(output, ".md"), page)
    return int(any(one["bugs"] for record in records for one in record["methods"].values()))


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    results.check_place("--output", args.output, ".md")
    for _, checkpoint in args.real:
        if not Path(checkpoint).is_file():
            raise SystemExit(f"error: --real: {checkpoint} does not exist")
    records = read(args.state)
    count, done = decodings(records), {record["case"]["seed"] for record in records}
    args.state.parent.mkdir(parents=True, exist_ok=True)
    seed = args.first
    logging.disable(logging.WARNING)  # what every case would say again
    try:
        while count < args.decodings and not args.report:
            if seed not in done:
                records.append(decode(case_of(seed, args.real)))
                count += decodings(records[-1:])
                with args.state.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(records[-1]) + "\n")
            seed += args.step
    finally:
        logging.disable(logging.NOTSET)
    return conclude(records, args.output)


if __name__ == "__main__":
    sys.exit(main())
