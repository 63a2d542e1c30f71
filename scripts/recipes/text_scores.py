"""Scores of the papers: sacreBLEU, BLEU on tokens with split compounds, ROUGE.

    python scripts/recipes/text_scores.py --generated generate.txt --references test.de --metric bleu rouge

reads what fairseq-generate printed with ``--post-process``, or lines of plain text with ``--hypotheses``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
ROUGE = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeLsum"}


class ScoreError(ValueError):
    """A message for the user."""


def read_lines(path: Path | str) -> list[str]:
    """Lines of a text file; only a newline ends one."""
    with open(path, encoding="utf-8", newline="\n") as lines:
        return [line.rstrip("\r\n") for line in lines]


def generated(path: Path | str) -> list[str]:
    """The best hypothesis of each sentence, in the order of the set, from fairseq-generate's H- lines.

    Raises:
        ScoreError: no hypotheses, or one is missing.
    """
    found: dict[int, str] = {}
    for line in read_lines(path):
        if line.startswith("H-"):
            name, _, text = line.split("\t", 2)
            found.setdefault(int(name[2:]), text)
    missing = sorted(set(range(max(found, default=0) + 1)) - set(found))
    if missing:
        raise ScoreError(f"{path} has {len(found)} hypotheses; missing: {missing[:10]}")
    return [found[number] for number in sorted(found)]


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise ScoreError(f"{len(hypotheses)} hypotheses for {len(references)} references")


def sacre_bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str | None = None
) -> tuple[float, str]:
    """BLEU on text as people read it, and sacreBLEU's signature.

    Args:
        hypotheses: a line per sentence.
        references: as many.
        tokenize: sacreBLEU's name; ``"none"`` for text that is tokenised. None: sacreBLEU's default.
    """
    import sacrebleu

    _check(hypotheses, references)
    metric = sacrebleu.BLEU(tokenize=tokenize, force=True)
    score = metric.corpus_score(hypotheses, [references]).score
    return score, str(metric.get_signature())


def split_compounds(tokens: str) -> str:
    """``a-b`` becomes three tokens, as in fairseq's ``compound_split_bleu.sh``.

    Matches do not overlap: of ``a-b-c`` only the first hyphen is split.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokens)


def compound_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """The papers' BLEU without smoothing, as ``multi-bleu.perl`` counts it, and its signature.

    Args:
        hypotheses: tokens of Moses, a line per sentence.
        references: as many.
    """
    import sacrebleu

    _check(hypotheses, references)
    split = [[split_compounds(line) for line in lines] for lines in (hypotheses, references)]
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    score = metric.corpus_score(split[0], [split[1]]).score
    return score, f"{metric.get_signature()}, compounds split"


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Mean F1, in percent, of ROUGE-1, ROUGE-2 and ROUGE-L over sentences of a summary, with Porter's stemmer.

    A sentence ends behind ``.``, ``!`` or ``?`` and a space.
    """
    from rouge_score.rouge_scorer import RougeScorer

    _check(hypotheses, references)
    scorer = RougeScorer(list(ROUGE.values()), use_stemmer=True)
    totals = dict.fromkeys(ROUGE, 0.0)
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        scores = scorer.score(_sentences(reference), _sentences(hypothesis))
        for name, key in ROUGE.items():
            totals[name] += 100 * scores[key].fmeasure
    return {name: total / len(references) for name, total in totals.items()}


def _sentences(summary: str) -> str:
    return "\n".join(SENTENCE_END.split(summary.strip()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    texts = parser.add_mutually_exclusive_group(required=True)
    texts.add_argument("--generated", help="output of fairseq-generate")
    texts.add_argument("--hypotheses", help="plain text")
    parser.add_argument("--references", required=True, help="plain text; for 'compound' tokens")
    parser.add_argument(
        "--metric", nargs="+", choices=("bleu", "compound", "rouge"), default=["bleu"]
    )
    args = parser.parse_args()
    try:
        hypotheses = generated(args.generated) if args.generated else read_lines(args.hypotheses)
        references = read_lines(args.references)
        if "bleu" in args.metric:
            score, signature = sacre_bleu(hypotheses, references)
            print(f"sacreBLEU {score:.2f} ({signature})")
        if "compound" in args.metric:
            print(f"compound-split BLEU {compound_bleu(hypotheses, references)[0]:.2f}")
        if "rouge" in args.metric:
            for name, value in rouge(hypotheses, references).items():
                print(f"{name} {value:.2f}")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
