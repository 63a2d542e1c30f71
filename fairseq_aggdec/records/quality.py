"""Quality of what was decoded: sacreBLEU on detokenised text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sacrebleu
from torch import Tensor, as_tensor

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.records.compounds import compound_bleu


def bleu(
    session: Session, outputs: Mapping[int, Tensor | Sequence[int]], compound: bool = False
) -> tuple[float, str]:
    """sacreBLEU of decoded sentences against the session's set, and its signature.

    Args:
        session: its ``--post-process``, ``--bpe`` and ``--tokenizer`` make text of both sides.
        outputs: sentence -> tokens.
        compound: the set was tokenised by Moses: count these tokens, with compounds split (see ``compounds.py``).
    """
    dictionary, process = session.task.target_dictionary, session.cfg.common_eval.post_process
    references = []
    for sentence in sorted(outputs):
        reference: Any = session.dataset[sentence]["target"]
        references.append(
            session.codec.decode(dictionary.string(reference, process, escape_unk=True))
        )
    hypotheses = texts(session, outputs)
    if compound:
        return compound_bleu(hypotheses, references)
    metric = sacrebleu.BLEU()
    score = metric.corpus_score(hypotheses, [references]).score
    return score, str(metric.get_signature())


def texts(session: Session, outputs: Mapping[int, Tensor | Sequence[int]]) -> list[str]:
    """Decoded sentences as text, in the order of the set; arguments as for :func:`bleu`."""
    dictionary, process = session.task.target_dictionary, session.cfg.common_eval.post_process
    return [
        session.codec.decode(dictionary.string(as_tensor(outputs[sentence]), process))
        for sentence in sorted(outputs)
    ]
