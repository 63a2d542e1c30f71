"""Token-level scores of corrections, and how much of a text is copied from its source.

    python -m scripts.recipes.aggressive.gec_score --source test.src --references test.tgt test.tgt2
        --hypothesis beam5=beam5.txt iad=iad.txt [--subword-model spm.model] [--json]

Files hold one sentence a line, in tokens separated by spaces. Two things are measured:

1. *Corrections.* F0.5 as in :mod:`fairseq_aggdec.records.gec_score`. `m2_score` is the more lenient
   measure for gold that people marked up.
2. *Copying.* The runs of tokens that a hypothesis shares with its source, in order. Drafting from
   the source (input-guided aggressive decoding) is as fast as these runs are long.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

from fairseq_aggdec.records.gec_score import (
    corpus_counts,
    extract_edits,
    read_sentences,
)
from scripts.recipes import tables

LEAST_RUN = 3  # tokens; shorter agreements with the source are as often chance as copying


class ScoreError(ValueError):
    """Files that do not belong together; the message names them."""


class CopyCounts(NamedTuple):
    """What a text shares with its source, in tokens and runs."""

    tokens: int
    copied: int  # tokens in runs of at least LEAST_RUN
    runs: int  # of any length
    in_runs: int  # tokens in runs of any length

    def plus(self, other: CopyCounts) -> CopyCounts:
        return CopyCounts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def share(self) -> float:
        """Fraction (0 to 1) of the tokens that lie in runs of at least LEAST_RUN tokens."""
        return self.copied / self.tokens if self.tokens else 0.0

    @property
    def mean_run(self) -> float:
        """Mean length in tokens of the copied runs, one-token runs included."""
        return self.in_runs / self.runs if self.runs else 0.0


@dataclass(frozen=True)
class GecScore:
    """Scores of one hypothesis file; fractions are 0 to 1, lengths are in tokens."""

    precision: float
    recall: float
    f: float
    correct: int
    proposed: int
    gold: int
    changed_sentences: int
    copied_share: float
    mean_copied_run: float


# -- edits


def m2_block(source: str, references: Sequence[str]) -> str:
    """A sentence and its annotators' corrections in the format of `scripts.recipes.aggressive.m2`."""
    words = source.split()
    lines = ["S " + " ".join(words)]
    for annotator, reference in enumerate(references):
        edits = extract_edits(words, reference.split())
        spans = [(f"{start} {end}", "edit", " ".join(text)) for start, end, text in edits]
        for span, kind, text in spans or [("-1 -1", "noop", "-NONE-")]:
            if "||" in text:
                raise ScoreError(f"M2 cannot hold a correction with '||': {text!r}")
            lines.append(f"A {span}|||{kind}|||{text}|||REQUIRED|||-NONE-|||{annotator}")
    return "\n".join(lines) + "\n\n"


# -- copying


def copied_runs(source: Sequence[str], output: Sequence[str]) -> list[int]:
    """Lengths in tokens of the runs that ``output`` takes over from ``source``, in order.

    Words that are equal by a shortest alignment, so a run moved to another place does not count.
    """
    blocks = Levenshtein.opcodes(source, output).as_matching_blocks()
    return [block.size for block in blocks if block.size]


def copy_counts(source: Sequence[str], output: Sequence[str]) -> CopyCounts:
    """The copied runs of one sentence, counted."""
    runs = copied_runs(source, output)
    long_enough = sum(length for length in runs if length >= LEAST_RUN)
    return CopyCounts(len(output), long_enough, len(runs), sum(runs))


# -- files


def check_lengths(files: dict[str, list[str]]) -> None:
    """Raise ``ScoreError`` unless all files have as many lines as the first."""
    (first, lines), *others = files.items()
    if not lines:
        raise ScoreError(f"{first} is empty")
    for name, other in others:
        if len(other) != len(lines):
            raise ScoreError(f"{name} has {len(other)} lines, but {first} has {len(lines)}")


def score_sentences(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    subword_model: str | None = None,
) -> GecScore:
    """Score lines of text; copied runs are counted over pieces if a sentencepiece model is given."""
    words = [line.split() for line in sources]
    outputs = [line.split() for line in hypotheses]
    corrected = [[line.split() for line in reference] for reference in references]
    counts = corpus_counts(words, outputs, corrected)
    changed = sum(source != output for source, output in zip(words, outputs, strict=True))
    if subword_model is not None:
        words, outputs = _pieces(subword_model, sources), _pieces(subword_model, hypotheses)
    copying = CopyCounts(0, 0, 0, 0)
    for source, output in zip(words, outputs, strict=True):
        copying = copying.plus(copy_counts(source, output))
    return GecScore(
        counts.precision,
        counts.recall,
        counts.f_measure(),
        *counts,
        changed_sentences=changed,
        copied_share=copying.share,
        mean_copied_run=copying.mean_run,
    )


def _pieces(model_file: str, lines: Sequence[str]) -> list[list[str]]:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=model_file)
    return model.encode(list(lines), out_type=str)


def format_table(scores: dict[str, GecScore], unit: str) -> str:
    """Markdown, one row for each hypothesis file; ``unit`` is what copied runs are counted in."""
    columns = ["hypothesis", "P", "R", "F0.5", "right edits", "edits", "gold edits"]
    columns += ["changed sentences", f"copied {unit} (%)", f"mean copied run ({unit})"]
    rows = [
        [
            *(name, *(100 * x for x in (score.precision, score.recall, score.f))),
            *(score.correct, score.proposed, score.gold, score.changed_sentences),
            *(f"{x:.1f}" for x in (100 * score.copied_share, score.mean_copied_run)),
        ]
        for name, score in scores.items()
    ]
    return tables.table(columns, rows) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of token-level precision, recall, F0.5 and copied runs."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.recipes.aggressive.gec_score", description=main.__doc__
    )
    parser.add_argument("--source", required=True, help="uncorrected sentences, one a line")
    parser.add_argument("--hypothesis", required=True, nargs="+", metavar="[NAME=]FILE")
    parser.add_argument(
        "--references", required=True, nargs="+", metavar="FILE", help="one for each annotator"
    )
    parser.add_argument("--subword-model", help="sentencepiece model: count copied runs in pieces")
    parser.add_argument("--write-m2", type=Path, metavar="FILE", help="the references as M2 gold")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(arguments)
    named = [entry.split("=", 1) if "=" in entry else (entry, entry) for entry in args.hypothesis]
    try:
        scores = _score_files(args, dict(named))
    except (ScoreError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    if args.json:
        print(json.dumps({name: asdict(score) for name, score in scores.items()}, indent=1))
    else:
        print(format_table(scores, "pieces" if args.subword_model else "words"), end="")


def _score_files(args: argparse.Namespace, hypotheses: dict[str, str]) -> dict[str, GecScore]:
    """Scores by name; ``hypotheses`` are names and paths."""
    paths = [args.source, *args.references, *hypotheses.values()]
    files = {path: read_sentences(path) for path in paths}
    check_lengths(files)
    references = [files[path] for path in args.references]
    if args.write_m2 is not None:
        rows = zip(files[args.source], *references, strict=True)
        args.write_m2.write_text("".join(m2_block(s, r) for s, *r in rows), encoding="utf-8")
    return {
        name: score_sentences(files[args.source], files[path], references, args.subword_model)
        for name, path in hypotheses.items()
    }


if __name__ == "__main__":
    main()
