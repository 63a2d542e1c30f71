"""BLEU on Moses tokens with compounds split, which Vaswani et al. and many after them report for English-German."""

from __future__ import annotations

import re
from collections.abc import Sequence

import sacrebleu

COMPOUND = re.compile(r"(\S)-(\S)")


def split_compounds(tokens: str) -> str:
    """``a-b`` becomes three tokens, as in fairseq's ``compound_split_bleu.sh``.

    Matches do not overlap: of ``a-b-c`` only the first hyphen is split.
    """
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", tokens)


def compound_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """BLEU without smoothing on tokens with compounds split, as ``multi-bleu.perl`` counts it; the signature.

    Args:
        hypotheses: tokens of Moses, a line per sentence.
        references: as many.
    """
    split = [[split_compounds(line) for line in lines] for lines in (hypotheses, references)]
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    score = metric.corpus_score(split[0], [split[1]]).score
    return score, f"{metric.get_signature()}, compounds split"
