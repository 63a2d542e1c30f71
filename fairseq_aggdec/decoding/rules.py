"""The generation options of stock fairseq, applied to every position of a window as stock applies them to one.

Order and scope follow ``SequenceGenerator._generate``: padding is never chosen, ``unk`` is penalised, ``</s>`` is
forced at the maximum length, prefix tokens are forced before it, else ``</s>`` is banned before the minimum length,
and repeated n-grams are banned last.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.decoding.state import DecodeState, Row
from fairseq_aggdec.decoding.window import Window


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

    @contextmanager
    def applied(self, logits: Tensor, window: Window, state: DecodeState) -> Iterator[None]:
        """While this holds, what a position must not emit has the logit -inf; (N, V) as before afterwards.

        Where the output is forced, nothing but the forced token is left. So choices and relaxed acceptance keep the
        rules without knowing them.
        """
        forced, banned = self._forced(window, state), self._banned(window, state)
        kept = []

        def hide(where: Any, value: float | Tensor = -torch.inf) -> None:
            kept.append((where, logits[where].clone()))
            logits[where] = value

        hide((slice(None), self.pad))
        if self.unk_penalty:
            hide((slice(None), self.unk), logits[:, self.unk] - self.unk_penalty)
        if banned:
            hide(torch.tensor(banned, device=logits.device).unbind(1))
        if forced:
            at, tokens = torch.tensor(forced, device=logits.device).unbind(1)
            hide(at)
            logits[at, tokens] = 0.0
        yield
        for where, values in reversed(kept):
            logits[where] = values

    def scores(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities, in nats, of emitted tokens: logits (M, V), tokens (M,) -> (M,)."""
        scores = logits.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
        if self.unk_penalty:
            scores = scores - self.unk_penalty * (tokens == self.unk)
        return scores

    def free_forced_ends(
        self, scores: Tensor, emitted: Sequence[Sequence[int]], state: DecodeState
    ) -> Tensor:
        """With ``free_end``, sets the scores (M,) of ``</s>`` to 0 where the length forced it; before the commit."""
        if self.free_end:
            last = -1
            for row, tokens in zip(state.rows, emitted, strict=True):
                last += len(tokens)
                if row.position + len(tokens) > row.end:
                    scores[last] = 0.0
        return scores

    def _forced(self, window: Window, state: DecodeState) -> list[tuple[int, int]]:
        """(index, token) of every position of the window whose output is not the model's to choose."""
        forced = []
        first = 0
        for row, start, width in zip(state.rows, window.starts, window.widths, strict=True):
            if start < len(row.prefix) or start + width > row.end:
                forced += [
                    (first + slot, token)
                    for slot in range(width)
                    if (token := self._forced_token(row, start + slot)) is not None
                ]
            first += width
        return forced

    def _forced_token(self, row: Row, position: int) -> int | None:
        if position >= row.end:
            return self.eos
        if position < len(row.prefix) and row.prefix[position] != self.pad:
            return row.prefix[position]
        return None

    def _banned(self, window: Window, state: DecodeState) -> list[tuple[int, int]]:
        """(index, token) pairs that the window's positions must not choose."""
        banned = []
        first = 0
        # Tokens are needed on the host only to look for repeated n-grams.
        tokens = window.tokens.tolist() if self.no_repeat_ngram_size else []
        for row, start, width in zip(state.rows, window.starts, window.widths, strict=True):
            # A prefix column lifts the minimum length for every row, also where that row's own prefix is free.
            for position in range(start, min(start + width, max(row.floor, row.strict_floor))):
                if position < row.strict_floor or position >= len(row.prefix):
                    banned.append((first + position - start, self.eos))
            if self.no_repeat_ngram_size:
                drafted = tokens[first + 1 : first + width]
                output = row.tokens[1:] + drafted
                for index, token in repeats(output, start, self.no_repeat_ngram_size):
                    banned.append((first + index - start, token))
            first += width
        return banned


def repeats(output: Sequence[int], first: int, size: int) -> list[tuple[int, int]]:
    """Tokens that would complete an n-gram which occurred before.

    Args:
        output: output tokens without the start symbol.
        first: output index from which on to look.
        size: the n of the n-grams.

    Returns:
        (output index i, token) for every token that must not stand at i after ``output[:i]``, where
        first <= i <= len(output).
    """
    seen: dict[tuple[int, ...], set[int]] = {}
    found = []
    for index in range(size - 1, len(output) + 1):
        context = tuple(output[index - size + 1 : index])
        followers = seen.setdefault(context, set())
        if index >= first:
            found += [(index, token) for token in followers]
        if index < len(output):
            followers.add(output[index])
    return found
