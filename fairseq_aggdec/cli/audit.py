"""``aggdec audit``: compares a fast method with stock fairseq, batch size by batch size."""

import argparse
import functools
import itertools
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_aggdec.api.session import (
    GREEDY_OR_DEFAULT,
    Session,
    refuse_beam_of_greedy,
)
from fairseq_aggdec.audit import equality, nbest_equality
from fairseq_aggdec.bulk.relevant import sha256
from fairseq_aggdec.cli.parsers import whole_parser
from fairseq_aggdec.methods.options.kinds import VERIFIED
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.records import machine, results


def row(name: str, comparison: dict[str, Any]) -> str:
    """One table row."""
    error = comparison["score_error"]
    error_text = "not a number" if error is None else f"{error:.1e}"
    return (
        f"| {name} | {comparison['sentences']} | {comparison['equal']} | {comparison['ties']} | {comparison['bugs']} | "
        f"{len(comparison['missing'])} | {error_text} |"
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


@dataclass(frozen=True)
class Oracle:
    """Reference of an audit: ``margin`` nats below which a difference is a tie, ``tolerance`` for scores."""

    decoding: str
    words: str
    precision: str
    margin: float = 0.0
    tolerance: float = 0.0


def oracle_of(session: Session, ours: str = "greedy") -> Oracle:
    """The reference of an audit; ``ours`` stands for stock with ``--int8``, which stock has not."""
    precision, margin = session.precision, session.args.tie_margin
    if read_settings(session.cfg.task).int8_all:
        return Oracle(ours, "our own search in 8 bits", "int8")
    if session.args.strict:
        return Oracle("greedy", "our own greedy decoding", precision)
    margin = equality.TIE_MARGIN[precision] if margin is None else margin
    tolerance = equality.SCORE_TOLERANCE[precision]
    return Oracle("stock", "stock fairseq", precision, margin, tolerance)


class Findings:
    """The comparisons of an audit; with ``--output`` each is written to OUTPUT.partial.json when it is there.

    After a kill the same command goes on with what is missing, if program, machine, models and data are the same.
    """

    def __init__(self, session: Session, oracle: Oracle):
        self.output: Path | None = session.args.output
        self.reference = oracle.words
        self.record: dict[str, Any] = {
            "command": machine.command("audit", sys.argv[1:]),
            "machine": machine.describe(),
            "data_set_size": len(session.dataset),
            "inputs": fingerprints(session),
        }
        self.results: dict[str, Any] = self._earlier()

    @property
    def _partial(self) -> Path | None:
        return self.output and results.named(self.output, ".partial.json")

    def _earlier(self) -> dict[str, Any]:
        """Reads what the same command found before it was ended."""
        if self._partial is None:
            return {}
        with suppress(OSError, ValueError, AttributeError):
            earlier = json.loads(self._partial.read_text(encoding="utf-8"))
            results: dict[str, Any] = earlier.pop("results", {})
            if earlier == self.record:
                print(f"goes on behind the {len(results)} comparisons in {self._partial}")
                return results
        return {}

    def __contains__(self, name: str) -> bool:
        return name in self.results

    def add(self, name: str, result: equality.Audit) -> None:
        numbers = {"bugs": result.bugs, "ties": result.ties}
        self.results[name] = asdict(result) | numbers
        show_differences(result)
        if self._partial is not None:
            self._write(self._partial)

    def conclude(self) -> int:
        """Prints and writes the table; returns the exit status."""
        print(self._table())
        if self.output is not None:
            self._write(results.named(self.output, ".json"))
            text = f"`{self.record['command']}`\n\n{self._table()}\n"
            text = f"# Equality with {self.reference}\n\n{text}\n{machine.sentence(self.record['machine'])}\n"
            results.write_text(results.named(self.output, ".md"), text)
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)
        return int(any(result["bugs"] for result in self.results.values()))

    def _table(self) -> str:
        return "\n".join(
            [HEADER, *(row(name, comparison) for name, comparison in self.results.items())]
        )

    def _write(self, path: Path) -> None:
        record = results.finite(self.record | {"results": self.results})
        text = json.dumps(record, indent=1, ensure_ascii=False)
        results.write_text(path, text + "\n")


def fingerprints(session: Session) -> dict[str, str]:
    """The content of the models and of the data set, by the names of their files."""
    models = [Path(path) for path in session.cfg.common_eval.path.split(os.pathsep)]
    if session.args.reference:
        models.append(Path(session.args.reference))
    subset = session.cfg.dataset.gen_subset
    folders = [Path(folder) for folder in session.cfg.task.data.split(os.pathsep)]
    data = [path for folder in folders for path in sorted(folder.glob(f"{subset}.*"))]
    digests = {}
    for path in (*models, *data):
        if path.is_file():
            digests[path.name] = sha256(path).hexdigest()[:16]
    return digests


SHOWN = 20  # differences listed per comparison; the JSON has all
HEADER = (
    "| method | sentences | equal | ties | BUGs | missing | largest score difference (nats) |\n"
    "|---|---|---|---|---|---|---|"
)


def check(args: argparse.Namespace, decoding: str) -> None:
    """Refuses options that do not go together."""
    results.check_counts(args, "limit", "batch_sizes", "stock_batch_size", "beams", "beam")
    refuse_beam_of_greedy(args, decoding)
    results.check_place("--output", args.output, ".json", ".md")
    other_beam = args.beams and args.beam not in (*args.beams, *GREEDY_OR_DEFAULT)
    by_padding = args.stock_batch_size and args.max_len_a > 0
    strict = "does not go with --strict, which is about the same model in the same batches"
    unverified = args.strict and decoding not in VERIFIED
    refused = {
        f"--beam {args.beam} does not go with --beams: name it there": other_beam,
        "--stock-batch-size does not go with --max-len-a: stock's limit depends on its batch then": by_padding,
        "--reference does not go with --decoding beam": decoding == "beam" and args.reference,
        f"--strict: --decoding must be one of {', '.join(VERIFIED)}": unverified,
        f"--reference {strict}": args.strict and args.reference,
        f"--stock-batch-size {strict}": args.strict and args.stock_batch_size,
    }
    for sentence, is_set in refused.items():
        if is_set:
            raise SystemExit(f"error: {sentence}")


@results.refusals()
def main() -> int:
    session = Session(whole_parser("audit"), reads=["beam", "batch_size"])
    args, decoding = session.args, str(session.cfg.task.decoding)
    check(args, decoding)
    reference, limit = session, args.limit
    if args.reference:
        if not Path(args.reference).is_file():
            raise SystemExit(f"error: --reference {args.reference}: there is no such file")
        words = [*sys.argv[1:], "--path", args.reference]
        reference = Session(whole_parser("audit"), words, reads=["beam", "batch_size"])
    of_beams = decoding == "beam"
    oracle = oracle_of(session, "beam" if of_beams else "greedy")
    findings, bounds = Findings(session, oracle), (oracle.margin, oracle.tolerance)

    @functools.cache
    def expected(size: int, beam: int) -> Any:
        if of_beams:
            return nbest_equality.decode_all(session, size, beam, limit, oracle.decoding)
        return equality.decode_all(reference, oracle.decoding, size, limit)

    # Of beams stock decodes each batch beside ours, where nothing is said of its own.
    beside = of_beams and not args.stock_batch_size and oracle.decoding == "stock"
    runs = itertools.product((args.beams or [args.beam]) if of_beams else [1], args.batch_sizes)
    for beam, size in runs:
        searched = f"beam {beam}" if of_beams else decoding
        name = f"{searched}, batch {size}, {oracle.precision}"
        if name in findings:
            continue
        wanted: Any = None if beside else expected(args.stock_batch_size or size, beam)
        if of_beams:
            result = nbest_equality.audit(session, size, beam, limit, *bounds, wanted)
        else:
            decoded = equality.decode_all(session, decoding, size, limit)
            result = equality.audit(reference, session.sentences(limit), wanted, decoded, *bounds)
        findings.add(name, result)
    return findings.conclude()
