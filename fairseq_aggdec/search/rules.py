"""The generation rules of stock fairseq on the board, at every position of a window as stock has them at one.

A rule is a small class: it tells by how much it changes which logits, and nobody else knows it. The compiled library
has the same rules in ``kernels/source/search/rules.h``. A rule from outside the package inherits from :class:`OwnRule`.

Order and scope follow ``SequenceGenerator._generate``: padding is never chosen, ``unk`` is penalised, ``</s>`` is
forced at the maximum length, prefix tokens are forced before it, else ``</s>`` is banned before the minimum length,
and repeated n-grams are banned last.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Spots(NamedTuple):
    """Places of a window as rules read them on a device: R rows of W slots.

    Attributes:
        outputs: (R, W) int64, the output index of the token that is chosen.
        written: (R, T) int64, what each row begins with, start symbol and draft included: up to ``outputs``, the tokens
            before the one that is chosen. None where no rule reads it.
        end, floor, strict_floor: limits of the rows, as :class:`~fairseq_aggdec.search.state.Row` has them; numbers, or
            tensors that broadcast to (R, W).
        free_from: the length of the longest forced prefix, behind which the floor holds.
        forced: (R, W) bool, a token is forced; None: nowhere. No ban counts there, and no rule of a user's own.
    """

    outputs: Tensor
    written: Tensor | None = None
    end: Any = 0
    floor: Any = 0
    strict_floor: Any = 0
    free_from: int = 0
    forced: Tensor | None = None


class Change(NamedTuple):
    """Change of logits.

    Attributes:
        tokens: a token, or (R, W, J) int64.
        nats: what is added to their logits; -inf bans a token. A number, or a tensor that broadcasts to (R, W), with
            ``tokens`` to (R, W, J).
    """

    tokens: int | Tensor
    nats: float | Tensor


class OwnRule:
    """A generation rule from outside the package, put into ``own_rules`` of a generator.

    Its numbers count in the scores, as those of ``--unkpen`` do. The compiled library asks :meth:`changes` at every
    place of a window; the board asks :meth:`on_device`, and does not decode where that is not written.
    """

    def changes(self, line: Sequence[int]) -> Iterable[tuple[int, float]]:
        """Tokens and the nats that are added to their logits behind a line, which begins with the start symbol."""
        raise NotImplementedError

    def on_device(self, spots: Spots) -> Change:
        """Changes at all places of a window, in tensors and without the host; ``spots.written`` is there."""
        raise NotImplementedError

    @property
    def in_tensors(self) -> bool:
        """Tells whether :meth:`on_device` is written."""
        return type(self).on_device is not OwnRule.on_device


class UnknownWord(NamedTuple):
    """``unk`` scores less, or more (``--unkpen``)."""

    unk: int
    penalty: float

    def on_device(self, spots: Spots) -> Change:
        return Change(self.unk, -self.penalty)


class MaximumLength(NamedTuple):
    """``</s>`` is forced at the maximum length (``--max-len-a``, ``--max-len-b``, ``--match-source-len``)."""

    eos: int

    @staticmethod
    def holds(spots: Spots) -> Tensor:
        """Tells at which places it is forced, (R, W) bool."""
        held: Tensor = spots.outputs >= spots.end
        return held

    def forced(self, spots: Spots, others: Tensor) -> Tensor:
        """The tokens that are forced (R, W), which are ``others`` at lesser lengths."""
        return others.masked_fill(self.holds(spots), self.eos)


class ForcedPrefix(NamedTuple):
    """The caller's tokens are forced, P of them at most (``--prefix-size``)."""

    size: int

    def forced(self, outputs: Tensor, prefixes: Tensor) -> Tensor:
        """The tokens at output indices (R, W) of prefixes (R, P + 1), which end with padding."""
        return prefixes.gather(1, outputs.clamp(max=self.size))


class MinimumLength(NamedTuple):
    """``</s>`` is banned before the minimum length (``--min-len``, ``--match-source-len``)."""

    eos: int

    @staticmethod
    def holds(spots: Spots) -> Any:
        """Tells at which places it is banned, (R, W) bool."""
        return end_banned(spots.outputs, spots.floor, spots.strict_floor, spots.free_from)

    def on_device(self, spots: Spots) -> Change:
        banned = self.holds(spots)
        nats = torch.zeros_like(banned, dtype=torch.float32)
        return Change(self.eos, nats.masked_fill_(banned, -torch.inf))


class NoRepeats(NamedTuple):
    """N-grams occur once (``--no-repeat-ngram-size``)."""

    size: int
    pad: int

    def on_device(self, spots: Spots) -> Change:
        assert spots.written is not None
        followers = repeats_on_device(spots.written, spots.outputs, self.size, self.pad)
        return Change(followers, -torch.inf)  # of padding, too, which is never chosen


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
        own_rules: rules from outside the package.
    """

    pad: int
    unk: int
    eos: int
    unk_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    free_end: bool = False
    own_rules: tuple[OwnRule, ...] = ()

    @classmethod
    def of(cls, generator: Any) -> Rules:
        """The rules of one of our generators, or of its :class:`~fairseq_aggdec.options.options.Options`."""
        return _rules(*_fields(generator), tuple(getattr(generator, "own_rules", ())))

    @property
    def reads_written(self) -> bool:
        """Tells whether a rule reads what is written before a place."""
        return self.no_repeat_ngram_size > 0 or bool(self.own_rules)

    def penalties(self, spots: Spots) -> list[Change]:
        """Changes that count in the scores."""
        changes = []
        if self.unk_penalty:
            changes.append(UnknownWord(self.unk, self.unk_penalty).on_device(spots))
        own_rules = [_where_free(rule.on_device(spots), spots.forced) for rule in self.own_rules]
        return changes + own_rules

    def bans(self, spots: Spots) -> list[Change]:
        """Changes that say which words cannot be chosen, and that no score has."""
        changes = []
        if self.no_repeat_ngram_size > 0:
            changes.append(NoRepeats(self.no_repeat_ngram_size, self.pad).on_device(spots))
        return [_where_free(each, spots.forced) for each in changes]

    def choose_from(
        self, logits: Tensor, spots: Spots, penalties: Sequence[Change], forced: Tensor
    ) -> None:
        """Applies the rules to the logits of a grid, in place and without the host.

        Args:
            logits: (R W, V) of a grid, changed in place.
            spots: the places. penalties: of them.
            forced: (R, W) int64, the token that is forced, padding where there is none.
        """
        logits.select(-1, self.pad).fill_(-torch.inf)
        ends = MinimumLength(self.eos).on_device(spots)
        change(logits, [*penalties, *self.bans(spots), ends], forced.shape)
        self.hide_others(logits, forced.view(-1, 1), value=0.0)

    def hide_others(self, logits: Tensor, forced: Tensor, value: float | None = None) -> None:
        """Hides in logits (N, V) all tokens but the forced one of a place, in place.

        Args:
            forced: (N, 1) int64, padding where no token is forced.
            value: what becomes the logit of a forced token; None: it stays.
        """
        is_forced = forced != self.pad
        kept = logits.gather(1, forced)
        if value is not None:
            kept.masked_fill_(is_forced, value)
        logits.masked_fill_(is_forced, -torch.inf).scatter_(1, forced, kept)

    def forced(self, spots: Spots, prefix: Tensor) -> Tensor:
        """(R, W) the token that is forced, padding where there is none: ``</s>`` at the maximum length, else the
        ``prefix`` token (R, W)."""
        return MaximumLength(self.eos).forced(spots, prefix)

    def scores(
        self, log_probs: Tensor, tokens: Tensor, spots: Spots, penalties: Sequence[Change]
    ) -> Tensor:
        """Log-probabilities of a grid's tokens, (R, W).

        Args:
            log_probs: (R W, V). tokens: (R, W) int64.
            spots: the places. penalties: of them.
        """
        scores = log_probs.gather(1, tokens.view(-1, 1)).view_as(tokens)
        for changed, nats in penalties:
            if isinstance(changed, int):
                # No product: an infinite penalty, which bans the word, times 0 would be NaN.
                scores = torch.where(tokens == changed, scores + nats, scores)
            else:
                scores = scores + torch.where(changed == tokens.unsqueeze(2), nats, 0.0).sum(2)
        return scores.masked_fill_(MaximumLength.holds(spots), 0.0) if self.free_end else scores


_fields = operator.attrgetter(
    *("pad", "unk", "eos", "unk_penalty", "no_repeat_ngram_size", "match_source_len")
)
_rules = functools.lru_cache(typed=True)(
    Rules
)  # every batch asks, and hardly ever something has changed


def _where_free(change: Change, forced: Tensor | None) -> Change:
    """The change without the places where a token is forced, (R, W) bool."""
    if forced is None:
        return change
    places = forced if isinstance(change.tokens, int) else forced.unsqueeze(2)
    return change._replace(nats=torch.where(places, 0.0, change.nats).float())


def change(logits: Tensor, changes: Iterable[Change], shape: Sequence[int]) -> None:
    """Applies changes to the logits (R W, V) of a grid of ``shape`` (R, W), in place.

    A ban replaces a logit, as in stock fairseq, where a sum would keep NaN.
    """
    for tokens, nats in changes:
        if isinstance(tokens, int):
            one = logits.select(-1, tokens)
            if not isinstance(nats, Tensor):
                one.add_(nats)
            else:
                by = nats.expand(shape).reshape(-1)
                one.add_(by).masked_fill_(by == -torch.inf, -torch.inf)
            continue
        places = tokens.expand(*shape, -1).flatten(0, 1)
        if not isinstance(nats, Tensor) and nats == -torch.inf:
            logits.scatter_(1, places, -torch.inf)
        elif not isinstance(
            nats, Tensor
        ):  # no copy from the host, which a captured graph cannot hold
            logits.scatter_add_(1, places, logits.new_full(places.shape, nats))
        else:
            by = nats.to(logits.dtype).expand(*shape, places.size(1))
            logits.scatter_add_(1, places, by.flatten(0, 1))


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
