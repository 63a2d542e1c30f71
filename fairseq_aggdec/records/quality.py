"""Quality of what was decoded: sacreBLEU on detokenised text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sacrebleu
from torch import Tensor, as_tensor

from fairseq_aggdec.api.session import Session


def sacre_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """sacreBLEU with its defaults, and its signature."""
    metric = sacrebleu.BLEU()
    return metric.corpus_score(hypotheses, [references]).score, str(metric.get_signature())


def bleu(
    session: Session,
    outputs: Mapping[int, Tensor | Sequence[int]],
    score: Callable[[list[str], list[str]], tuple[float, str]] = sacre_bleu,
) -> tuple[float, str]:
    """BLEU of decoded sentences against the session's set, and its signature.

    Args:
        session: its ``--post-process``, ``--bpe`` and ``--tokenizer`` make text of both sides.
        outputs: sentence -> tokens.
        score: hypotheses and references -> BLEU and signature.
    """
    dictionary, process = session.task.target_dictionary, session.cfg.common_eval.post_process
    references = []
    for sentence in sorted(outputs):
        reference: Any = session.dataset[sentence]["target"]
        references.append(
            session.codec.decode(dictionary.string(reference, process, escape_unk=True))
        )
    return score(texts(session, outputs), references)


def texts(session: Session, outputs: Mapping[int, Tensor | Sequence[int]]) -> list[str]:
    """Decoded sentences as text, in the order of the set; arguments as for :func:`bleu`."""
    dictionary, process = session.task.target_dictionary, session.cfg.common_eval.post_process
    return [
        session.codec.decode(dictionary.string(as_tensor(outputs[sentence]), process))
        for sentence in sorted(outputs)
    ]
