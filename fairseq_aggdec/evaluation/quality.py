"""Quality of what was decoded: sacreBLEU on detokenised text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sacrebleu
from torch import Tensor, as_tensor

from fairseq_aggdec.evaluation.session import Session


def bleu(session: Session, outputs: Mapping[int, Tensor | Sequence[int]]) -> tuple[float, str]:
    """sacreBLEU of decoded sentences against the session's set, and its signature.

    Args:
        session: its ``--post-process`` joins subwords on both sides.
        outputs: sentence -> tokens.
    """
    dictionary, process = session.task.target_dictionary, session.cfg.common_eval.post_process
    references = []
    for sentence in sorted(outputs):
        reference: Any = session.dataset[sentence]["target"]
        references.append(dictionary.string(reference, process, escape_unk=True))
    metric = sacrebleu.BLEU()
    score = metric.corpus_score(texts(session, outputs), [references]).score
    return score, str(metric.get_signature())


def texts(session: Session, outputs: Mapping[int, Tensor | Sequence[int]]) -> list[str]:
    """Decoded sentences as text, in the order of the set; arguments as for :func:`bleu`."""
    dictionary, process = session.task.target_dictionary, session.cfg.common_eval.post_process
    return [
        dictionary.string(as_tensor(outputs[sentence]), process) for sentence in sorted(outputs)
    ]
