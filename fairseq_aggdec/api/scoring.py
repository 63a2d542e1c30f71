"""Given outputs through the models in one pass each: their log-probabilities and their attention, as stock has them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq.data import data_utils
from fairseq.sequence_scorer import SequenceScorer
from torch import Tensor

from fairseq_aggdec.api.calls import Call
from fairseq_aggdec.api.languages import Languages
from fairseq_aggdec.options.stopping import check


def score_batch(
    task: Any,
    models: Sequence[Any],
    sample: Mapping[str, Any],
    targets: Sequence[Tensor],
    start: int,
) -> list[dict[str, Any]]:
    """Finds what ``fairseq-generate --score-reference`` finds.

    Args:
        sample: a batch of sources.
        targets: (T,) int64 with ``</s>``, one for each row of the sample.
        start: the token before them.

    Returns:
        per row fairseq's hypothesis: ``tokens`` (T,), ``score`` (mean log-probability in nats), ``positional_scores``
        (T,), and ``attention`` (T, S): of every target token over the source tokens, None where a model has none.
    """
    words, device = task.target_dictionary, sample["net_input"]["src_tokens"].device
    whole = data_utils.collate_tokens(targets, words.pad(), words.eos())
    shifted = data_utils.collate_tokens(
        targets, words.pad(), words.eos(), move_eos_to_beginning=True
    )
    shifted[:, 0] = start
    targets_of = {
        **sample,
        "target": whole.to(device),
        "net_input": {**sample["net_input"], "prev_output_tokens": shifted.to(device)},
    }
    with torch.no_grad():
        scored = SequenceScorer(words).generate(models, targets_of)
    sources = sample["net_input"]["src_tokens"].cpu()
    for (one,), target, source in zip(scored, targets, sources, strict=True):
        if one["attention"] is not None:
            kept = source.ne(task.source_dictionary.pad())
            one["attention"] = one["attention"][: len(target)].float().cpu()[:, kept]
    return [one for (one,) in scored]


def add_attention(
    task: Any,
    speech: Languages,
    call: Call,
    sample: Mapping[str, Any],
    nbest: Sequence[Sequence[Any]],
) -> None:
    """Gives the hypotheses of a batch their attention (T, S): what stock's search saw, here from one pass."""
    for rank in range(max(map(len, nbest), default=0)):
        check()
        rows = [row for row, ranked in enumerate(nbest) if rank < len(ranked)]
        inputs = {
            name: value[rows] if isinstance(value, Tensor) else value
            for name, value in sample["net_input"].items()
        }
        targets = [nbest[row][rank]["tokens"].long().cpu() for row in rows]
        start, _ = speech.started(targets[0])
        scored = score_batch(task, speech.models(call), {"net_input": inputs}, targets, start)
        for row, one in zip(rows, scored, strict=True):
            nbest[row][rank]["attention"] = one["attention"]
