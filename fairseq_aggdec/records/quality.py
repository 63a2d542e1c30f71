"""Quality of what was decoded: sacreBLEU on detokenised text."""

from collections.abc import Callable, Mapping, Sequence

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
    references = {sentence: session.dataset[sentence]["target"] for sentence in outputs}
    return score(texts(session, outputs), texts(session, references, escape_unk=True))


def texts(
    session: Session, tokens: Mapping[int, Tensor | Sequence[int]], escape_unk: bool = False
) -> list[str]:
    """Sentences of the target side as text, in the order of the set.

    Args:
        tokens: sentence -> tokens.
        escape_unk: ``<unk>`` of a reference is written so that it matches no ``<unk>`` of an output.
    """
    dictionary, process = session.task.target_dictionary, session.cfg.common_eval.post_process
    return [
        session.codec.decode(dictionary.string(as_tensor(row), process, escape_unk=escape_unk))
        for _, row in sorted(tokens.items())
    ]
