"""Random models, options and methods against stock fairseq, from the repository root; the same command resumes.

    python -m tests.fuzz.run --cases 10000 --output docs/results/audit-random
    python -m tests.fuzz.run --first 259 --cases 1

Every case (models, sentences, options, methods, batch size) is made from its number. With --output a line of JSON is
appended to OUTPUT.jsonl for each case; a second run with the same options decodes the cases that are missing. At the
end the table is written to OUTPUT.json and OUTPUT.md. --first and --step split the work, each part with an --output of
its own; --report makes one table of their joined OUTPUT.jsonl files. Small cases have a few sentences and some of the
methods; --large ones have up to 1,000 sentences and all methods. With --real every fourth case has a trained model and
sentences of its test set. Exit status 1 on a BUG.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shlex
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tqdm import tqdm

from fairseq_aggdec.audit import equality
from fairseq_aggdec.audit.equality import Audit
from fairseq_aggdec.jobs.options import positive
from fairseq_aggdec.records import machine, results
from tests.fuzz import slow_references
from tests.fuzz.audits import StockFailsError, audits
from tests.fuzz.cases import Case

REAL_EVERY = 4
Record = dict[str, Any]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.fuzz.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=positive, default=1000, help="how many (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--step", type=positive, default=1, help="between two cases' numbers")
    parser.add_argument("--large", action="store_true", help="many sentences, all methods")
    parser.add_argument(
        "--real",
        nargs=2,
        action="append",
        default=[],
        metavar=("DATA", "CHECKPOINT"),
        help="decode this trained model, too, in turn with others given",
    )
    parser.add_argument("--report", action="store_true", help="decode nothing, write the table")
    parser.add_argument("--output", type=Path, help="OUTPUT.jsonl, OUTPUT.json and OUTPUT.md")
    return parser


def read(path: Path) -> list[Record]:
    """The finished cases of a file; a last line that was cut short is removed from it."""
    if not path.exists():
        return []
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        os.truncate(path, len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def case_of(seed: int, large: bool, real: Sequence[Sequence[str]]) -> Case:
    """The case with this number; ``real`` are pairs of data and checkpoint."""
    case, (turn, own) = Case.of(seed, large), divmod(seed, REAL_EVERY)
    if not real or own != REAL_EVERY - 1:
        return case
    data, checkpoint = real[turn % len(real)]
    return replace(case, real=(data, checkpoint))


def decode(case: Case) -> Record:
    """What each method found; an exception is a result, too."""
    record: Record = {"case": asdict(case), "methods": {}}
    try:
        for name, audit in [*audits(case), *slow_references.audits(case)]:
            record["methods"][name] = found(audit)
    except StockFailsError as error:
        record["stock fails"] = str(error)
    except Exception:
        record["error"] = traceback.format_exc()
    return record


def found(audit: Audit) -> dict[str, Any]:
    numbers = {"bugs": audit.bugs, "ties": audit.ties}
    return asdict(audit) | numbers


def decodings(records: Sequence[Record]) -> int:
    return sum(one["sentences"] for record in records for one in record["methods"].values())


def bugs(record: Record) -> int:
    return ("error" in record) + sum(one["bugs"] for one in record["methods"].values())


def command(case: Case) -> str:
    """What decodes this case again."""
    large = " --large" if case.large else ""
    real = "" if case.real is None else f" --real {shlex.join(case.real)}"
    return f"python -m tests.fuzz.run --first {case.seed} --cases 1{large}{real}"


def table(records: Sequence[Record]) -> str:
    """A row for each method, and every difference with its margin."""
    rows = [
        f"| {name} | {n['sentences']:,} | {n['equal']:,} | {n['ties']} | {n['bugs']} |"
        for name, n in totals(records).items()
    ]
    real = sum(bool(record["case"].get("real")) for record in records)
    kinds = f" ({real} of them of trained models)" if real else ""
    head = (
        f"{decodings(records):,} decodings in {len(records):,} cases{kinds}: "
        f"{sum(map(bugs, records))} BUGs."
    )
    text = [
        head,
        "",
        "| method | decodings | equal | ties | BUGs |",
        "|---|---|---|---|---|",
        *rows,
    ]
    if listed := list(differences(records)):
        text += ["", "| case | method | sentence | margin, nats | |", "|---|---|---|---|---|"]
        text += listed
    return "\n".join(text)


def totals(records: Sequence[Record]) -> dict[str, Counter[str]]:
    """Counts of each method over all cases."""
    totals: dict[str, Counter[str]] = {}
    for record in records:
        for name, one in record["methods"].items():
            counts = {key: one[key] for key in ("sentences", "equal", "ties", "bugs")}
            totals.setdefault(name, Counter()).update(counts)
    return totals


def differences(records: Sequence[Record]) -> Iterator[str]:
    """A row of Markdown for each sentence that differs, and for each case that ended with an exception."""
    for record in sorted(records, key=lambda record: record["case"]["seed"]):
        seed = record["case"]["seed"]
        for name, one in record["methods"].items():
            for item in one["differences"]:
                margin, verdict = item["margin"], item["verdict"]
                yield f"| {seed} | {name} | {item['sentence']} | {margin:.1e} | {verdict} |"
            if one["score_errors"]:
                yield f"| {seed} | {name} | scores | {one['score_error']:.1e} | BUG |"
            if one["missing"]:
                yield f"| {seed} | {name} | missing: {one['missing']} | | BUG |"
        if "stock fails" in record:
            yield f"| {seed} | stock | {results.cell(record['stock fails'])} | | fails itself |"
        if "error" in record:
            said = results.cell(record["error"].strip().splitlines()[-1])
            yield f"| {seed} | error | {said} | | BUG |"


def conclude(records: Sequence[Record], output: Path | None) -> int:
    """Prints and writes the table; 1 where there is a BUG."""
    text = table(records)
    print(text)
    for record in records:
        if "error" in record:
            print(f"case {record['case']['seed']}: {record['error']}")
    if output is not None:
        described = machine.describe()
        line = shlex.join(["python", "-m", "tests.fuzz.run", *sys.argv[1:]])
        page = f"# Random cases against stock fairseq\n\n`{line}`\n\n{text}\n\n"
        results.write_text(results.named(output, ".md"), page + machine.sentence(described) + "\n")
        kept = {
            "command": line,
            "cases": len(records),
            "decodings": decodings(records),
            "bugs": sum(map(bugs, records)),
            "methods": totals(records),
            "seconds": sum(record.get("seconds", 0.0) for record in records),
            "machine": described,
        }
        results.write_text(results.named(output, ".json"), json.dumps(kept, indent=1) + "\n")
    return int(any(map(bugs, records)))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """One thread, no progress bars of a case, and nothing of what every case would log again."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    try:
        with mock.patch.object(equality, "tqdm", lambda items, **_: items):
            yield
    finally:
        logging.disable(logging.NOTSET)
        torch.set_num_threads(threads)


def main(arguments: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    results.check_place("--output", args.output, ".jsonl", ".json", ".md")
    for _, checkpoint in args.real:
        if not Path(checkpoint).is_file():
            raise SystemExit(f"error: --real: {checkpoint} does not exist")
    state = args.output and results.named(args.output, ".jsonl")
    records = read(state) if state else []
    wanted = [args.first + args.step * number for number in range(args.cases)]
    done = {record["case"]["seed"] for record in records}
    missing = [] if args.report else [seed for seed in wanted if seed not in done]
    if state:
        state.parent.mkdir(parents=True, exist_ok=True)
    shown = tqdm(missing, initial=len(records), total=len(records) + len(missing), unit="case")
    with quietly():
        for seed in shown:
            start = time.perf_counter()
            record = decode(case_of(seed, args.large, args.real))
            record["seconds"] = round(time.perf_counter() - start, 3)
            records.append(record)
            if state:
                with state.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    return conclude(records, args.output)


if __name__ == "__main__":
    sys.exit(main())
