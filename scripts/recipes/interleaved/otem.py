"""OTEM and UTEM: what a translation says too often and leaves out (Yang et al. 2018); right half of Zhang's Figure 4.

    python -m scripts.recipes.interleaved.otem --references test.en --system "c = 1=ib.txt" --system "c = 2=sa.txt" \\
        --output docs/results/otem-multi30k

A file of a system holds lines of text, as ``aggdec bench --hypotheses FOLDER`` writes them, or what fairseq-generate
printed (H- lines, with ``--post-process``). Both metrics are in percent, and lower is better. Tokens are those of
sacreBLEU's 13a. OTEM has n-grams up to 2 and UTEM up to 4, as in the authors' script, with one reference.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import check_place, refusals, write_table
from scripts.recipes import tables
from scripts.recipes.text_scores import ScoreError, generated, read_lines

OTEM_ORDER, UTEM_ORDER = 2, 4

Words = Sequence[str]


@dataclass
class Row:
    """Scores of one system, in percent.

    Attributes:
        length_ratio: tokens of the hypotheses over tokens of the references.
    """

    system: str
    sentences: int
    otem: float
    utem: float
    length_ratio: float


def ngrams(words: Words, n: int) -> Counter[tuple[str, ...]]:
    """How often each n-gram occurs."""
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def over_matches(hypothesis: Words, reference: Words, n: int) -> int:
    """n-grams of the hypothesis beyond those of the reference; one that the reference lacks may occur once."""
    wanted = ngrams(reference, n)
    found = ngrams(hypothesis, n).items()
    return sum(max(0, count - max(1, wanted[gram])) for gram, count in found)


def missing_matches(hypothesis: Words, reference: Words, n: int) -> int:
    """n-grams of the reference beyond those of the hypothesis."""
    return (ngrams(reference, n) - ngrams(hypothesis, n)).total()


def _mean(
    pairs: Sequence[tuple[Words, Words]],
    order: int,
    counted: Callable[[Words, Words, int], int],
    side: int,
) -> float:
    """Geometric mean over n of the share of n-grams that ``counted`` counts, of those of ``side`` of the pairs."""
    shares = []
    for n in range(1, order + 1):
        total = sum(max(0, len(pair[side]) - n + 1) for pair in pairs)
        shares.append(sum(counted(*pair, n) for pair in pairs) / max(1, total))
    return math.prod(shares) ** (1 / order)


def _lengths(pairs: Sequence[tuple[Words, Words]]) -> tuple[int, int]:
    return sum(len(hypothesis) for hypothesis, _ in pairs), sum(len(ref) for _, ref in pairs)


def otem(pairs: Sequence[tuple[Words, Words]]) -> float:
    """OTEM of a set, from 0; not of any share, because a set that is too long has a penalty above 1.

    Args:
        pairs: tokens of each hypothesis and of its reference.
    """
    found, wanted = _lengths(pairs)
    penalty = math.exp(1 - wanted / found) if found >= wanted > 0 else 1.0
    return penalty * _mean(pairs, OTEM_ORDER, over_matches, 0)


def utem(pairs: Sequence[tuple[Words, Words]]) -> float:
    """UTEM of a set, from 0; one that is too short has a penalty above 1."""
    found, wanted = _lengths(pairs)
    penalty = math.exp(1 - found / wanted) if wanted >= found and wanted else 1.0
    return penalty * _mean(pairs, UTEM_ORDER, missing_matches, 1)


def scored(name: str, hypotheses: Sequence[str], references: Sequence[str]) -> Row:
    """A row of text, which is tokenised here.

    Raises:
        ScoreError: not as many hypotheses as references.
    """
    if len(hypotheses) != len(references):
        raise ScoreError(f"{name}: {len(hypotheses)} hypotheses for {len(references)} references")
    split = Tokenizer13a()
    pairs = [
        (split(one).split(), split(other).split())
        for one, other in zip(hypotheses, references, strict=True)
    ]
    found, wanted = _lengths(pairs)
    ratio = found / max(1, wanted)
    return Row(name, len(pairs), 100 * otem(pairs), 100 * utem(pairs), ratio)


def lines_of(path: str) -> list[str]:
    """Hypotheses of a file: H- lines of fairseq-generate, else its lines."""
    lines = read_lines(path)
    return generated(path) if any(line.startswith("H-0\t") for line in lines) else lines


def markdown(rows: Sequence[Row]) -> str:
    heads = ["system", "sentences", "OTEM", "UTEM", "length / reference"]
    cells = [
        (row.system, row.sentences, row.otem, row.utem, f"{row.length_ratio:.3f}") for row in rows
    ]
    return tables.table(heads, cells)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--references", required=True, help="a line per sentence")
    parser.add_argument(
        "--system", action="append", required=True, metavar="NAME=FILE", dest="systems"
    )
    parser.add_argument("--output", type=Path, help="OUTPUT.json and .md (default: it is printed)")
    return parser


def main(arguments: Sequence[str]) -> None:
    args = build_parser().parse_args(arguments)
    check_place("--output", args.output, ".json", ".md")
    with refusals():
        references, rows = read_lines(args.references), []
        for item in args.systems:
            name, _, path = item.rpartition("=")
            if not name:
                raise SystemExit(f"error: --system {item}: give NAME=FILE")
            rows.append(scored(name, lines_of(path), references))
    table = markdown(rows)
    print(table)
    if args.output:
        command = machine.command("scripts.recipes.interleaved.otem", arguments)
        title = "Over- and under-translation"
        write_table(args.output, title, command, table, [asdict(row) for row in rows])


if __name__ == "__main__":
    main(sys.argv[1:])
