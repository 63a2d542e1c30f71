"""The hypotheses that a generator returns, as fairseq has them: dictionaries of tensors."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.windows.transfer import in_fp32, in_int64, sent

Hypothesis = dict[str, Any]
NOTHING = torch.empty(0, device="cpu")


def hypothesis(
    tokens: Tensor,
    scores: Tensor,
    score: Tensor,
    steps: int,
    history: Iterable[Sequence[int] | Tensor] = (),
) -> Hypothesis:
    """One output.

    Args:
        tokens: (T,) int64 with the final ``</s>``.
        scores: (T,) their log-probabilities in nats.
        score: () what the output is ranked by.
        steps: iterations that it took.
        history: what every iteration saw, where that was kept (``--retain-iter-history``).
    """
    return {
        "tokens": tokens,
        "score": score,
        "positional_scores": scores,
        "attention": NOTHING,
        "alignment": NOTHING,
        "steps": steps,
        "history": [{"tokens": torch.as_tensor(seen)} for seen in history],
    }


def of_numbers(
    tokens: list[int],
    scores: list[float],
    score: float,
    steps: int,
    history: Iterable[Sequence[int]] = (),
) -> Hypothesis:
    """:func:`hypothesis` of what a search on the host has found."""
    return hypothesis(in_int64(tokens), in_fp32(scores), in_fp32([score])[0], steps, history)


def are_hypotheses(value: Any) -> bool:
    """Tells whether it is what a generator gives, a list of hypotheses for each sentence; a task may make another
    thing."""
    return isinstance(value, list) and all(
        isinstance(ranked, list)
        and len(ranked) > 0
        and isinstance(ranked[0], dict)
        and "positional_scores" in ranked[0]
        for ranked in value
    )


def best_first(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Hypotheses of one sentence by their score; of equal ones the earlier comes first."""
    return sorted(hypotheses, key=lambda one: float(one["score"]), reverse=True)


def send_hypotheses(nbest: list[list[Hypothesis]], device: torch.device) -> None:
    """Moves tokens and scores of a batch's hypotheses from the host to the device (in place), in one copy.

    They share its memory, which is free when the last of them is gone.
    """
    hypotheses = [one for ranked in nbest for one in ranked]
    names = ("tokens", "positional_scores", "score")  # the widest numbers first
    of_name = [torch.cat([one[name].view(-1) for one in hypotheses]) for name in names]
    flat = sent(torch.cat([values.view(torch.uint8) for values in of_name]), device)
    places = flat.split([values.nbytes for values in of_name])
    for name, values, place in zip(names, of_name, places, strict=True):
        parts = place.view(values.dtype).split([one[name].numel() for one in hypotheses])
        for one, part in zip(hypotheses, parts, strict=True):
            one[name] = part.view(one[name].shape)
