"""The generation options of stock fairseq on the board, at every position of a window as stock has them at one.

Order and scope follow ``SequenceGenerator._generate``: padding is never chosen, ``unk`` is penalised, ``</s>`` is
forced at the maximum length, prefix tokens are forced before it, else ``</s>`` is banned before the minimum length,
and repeated n-grams are banned last.
"""

import functools
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.search.board import Rows


def end_banned(at: Any, floor: Any, strict_floor: Any, free_from: Any) -> Any:
    """Tells whether ``</s>`` must not be written at an output index; numbers, or tensors that broadcast.

    Args:
        at: the output index.
        floor: the minimum length (``--min-len``). It holds from ``free_from`` on, behind all forced prefix tokens.
        strict_floor: as ``floor``, but it holds within the prefix, too (``--match-source-len``).
    """
    return (at < strict_floor) | ((at >= free_from) & (at < floor))


@dataclass(frozen=True)
class Rules:
    """Generation options that change which token is chosen or what it scores.

    Attributes:
        pad, unk, eos: special symbols of the target dictionary.
        unk_penalty: subtracted from the log-probability of ``unk``, in nats.
        no_repeat_ngram_size: n-grams of this size occur at most once in an output; 0 for no limit.
        free_end: ``</s>`` scores 0 where the length forces it (``--match-source-len`` does that in stock).
    """

    pad: int
    unk: int
    eos: int
    unk_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    free_end: bool = False

    @classmethod
    def of(cls, generator: Any) -> "Rules":
        """The rules of one of our generators, or of its :class:`~fairseq_aggdec.options.options.Options`."""
        return _rules(*_fields(generator))

    def apply_anywhere(self, logits: Tensor) -> None:
        """Applies to logits (..., V), in place, what holds at every position: no padding, the penalty of ``unk``."""
        logits.select(-1, self.pad).fill_(-torch.inf)
        if self.unk_penalty:
            logits.select(-1, self.unk).sub_(self.unk_penalty)

    def apply_on_device(
        self, logits: Tensor, outputs: Tensor, rows: Rows, written: Tensor | None, forced: Tensor
    ) -> None:
        """Applies the rules to the logits of a grid, in place and without the host.

        Args:
            logits: (R W, V) of a grid, changed in place.
            outputs: (R, W) int64, the output index of each position.
            rows: limits of the rows.
            written: (R, T) int64, what each row's output begins with, start symbol and draft included; None where
                n-grams may be repeated.
            forced: (R, W) int64, the prefix token of each output index, padding where there is none; a prefix column
                lifts the minimum length for every row, and is one of the first ``rows.prefix`` output indices.
        """
        end, floor, strict_floor = (
            x.unsqueeze(1) for x in (rows.end, rows.floor, rows.strict_floor)
        )
        self.apply_anywhere(logits)
        banned = end_banned(outputs, floor, strict_floor, rows.prefix)
        logits.select(1, self.eos).masked_fill_(banned.flatten(), -torch.inf)
        if written is not None:
            followers = repeats_on_device(written, outputs, self.no_repeat_ngram_size, self.pad)
            logits.scatter_(1, followers.flatten(0, 1), -torch.inf)
        forced = forced.masked_fill(outputs >= end, self.eos).view(-1, 1)
        given = forced != self.pad
        own = logits.gather(1, forced).masked_fill_(given, 0.0)
        logits.masked_fill_(given, -torch.inf).scatter_(1, forced, own)

    def scores_on_device(
        self, log_probs: Tensor, tokens: Tensor, outputs: Tensor, end: Tensor
    ) -> Tensor:
        """Log-probabilities of a grid's tokens, (R, W).

        Args:
            log_probs: (R W, V). tokens, outputs: (R, W) int64, and the output index of each.
            end: (R,) int64, the output index at which each row is ended.
        """
        scores = log_probs.gather(1, tokens.view(-1, 1)).view_as(tokens)
        scores = self._penalised(scores, tokens)
        return scores.masked_fill_(outputs >= end.unsqueeze(1), 0.0) if self.free_end else scores

    def _penalised(self, scores: Tensor, tokens: Tensor) -> Tensor:
        if self.unk_penalty:
            # No product: an infinite penalty, which bans the word, times 0 would be NaN.
            scores = torch.where(tokens == self.unk, scores - self.unk_penalty, scores)
        return scores


_fields = operator.attrgetter(
    *("pad", "unk", "eos", "unk_penalty", "no_repeat_ngram_size", "match_source_len")
)
_rules = functools.lru_cache(typed=True)(
    Rules
)  # every batch asks, and hardly ever something has changed


def repeats_on_device(written: Tensor, outputs: Tensor, size: int, pad: int) -> Tensor:
    """The tokens that would complete an n-gram which occurred before, (R, W, T - 1) int64, ``pad`` in other places.

    Args:
        written: (R, T) int64, start symbol first.
        outputs: (R, W) int64, which token of ``written`` is the last before the one that is chosen.
        size: the n of the n-grams.
    """
    length, device = written.size(1) - 1, written.device
    places = torch.arange(length, device=device)  # where an earlier context may end
    same = (places < outputs.unsqueeze(2)) & (places >= size - 2)  # (R, W, T - 1)
    for back in range(size - 1):
        earlier = written[:, (places - back).clamp_(min=0)].unsqueeze(1)
        latest = written.gather(1, (outputs - back).clamp_(min=0)).unsqueeze(2)
        same &= earlier == latest
    return torch.where(same, written[:, 1:].unsqueeze(1), pad)
