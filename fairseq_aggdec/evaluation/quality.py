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
    texts, references = [], []
    for sentence, tokens in outputs.items():
        texts.append(dictionary.string(as_tensor(tokens), process))
        reference: Any = session.dataset[sentence]["target"]
        references.append(dictionary.string(reference, process, escape_unk=True))
    metric = sacrebleu.BLEU()
    return metric.corpus_score(texts, [references]).score, str(metric.get_signature())
