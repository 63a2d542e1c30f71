"""Input-guided drafting: copy the source (Ge et al., section 3.1)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_aggdec.budget.copy_length import CopyLength
from fairseq_aggdec.budget.price import USUAL_PRICE
from fairseq_aggdec.drafters.copy.copy_on_device import CopyBoard, copy_board
from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED
from fairseq_aggdec.engine.graphs.window_graphs import ROWS, WIDTHS, GraphMemory
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.drafter import DeviceDrafter
from fairseq_aggdec.search.greedy.prices import Prices
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import NO_COPIES, BatchVerdict, Copies
from fairseq_aggdec.windows.transfer import HOST, on_host


class CopyDrafter(DeviceDrafter):
    """Drafts from one text per sentence; a subclass says which text (:meth:`copied`).

    Args:
        eos: end symbol of the target dictionary, with which outputs start too.
        match: see :mod:`~fairseq_aggdec.drafters.copy.copy_text`.

    Attributes:
        new_length: makes a draft length that has learned nothing.

    If hardly any copied token is accepted, most batches are decoded without drafts (``resting``).
    """

    ragged = True

    def __init__(self, eos: int, match: str):
        self.eos, self.match = eos, match
        self.on_device: CopyBoard | None = None
        self.limit_drafts(CopyLength)

    def limit_drafts(self, new_length: Callable[[], CopyLength]) -> None:
        self.new_length = new_length
        self.forget()

    def release(self) -> None:
        self.on_device = None

    def forget(self) -> None:
        """Forgets what was learned from the batches before."""
        self.draft_length = self.new_length()

    @property
    def resting(self) -> bool:
        """Tells whether nothing is drafted in the current batch, see :class:`CopyLength`."""
        return self.draft_length.resting

    def copied(self, sample: Mapping) -> Sequence[Sequence[int]]:
        """The text of each sentence of a batch, ``NEVER_DRAFTED`` where a token must not be drafted."""
        raise NotImplementedError

    def texts_of(self, sample: Mapping, verifier: Verifier) -> Copies:
        """The text of each sentence for beam search."""
        return Copies([[self.eos, *tokens] for tokens in self.copied(sample)], self.match)

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        # Not the device that the models had when this was made: training moves them after that.
        prices = Prices(USUAL_PRICE if self.draft_length.fixed else self.call_price)
        price = prices.of(verifier, state)
        self.draft_length.start(len(state.rows), price, state.device.type == "cpu")
        if not self.resting:
            self.texts = [[self.eos, *tokens] for tokens in self.copied(sample)]

    def copies(self) -> Copies:
        if self.resting:
            return NO_COPIES
        length, total = self.draft_length, self.draft_length.total
        known = length.probing, length.unknown, length.price, total.sum, total.weight
        return Copies(self.texts, self.match, length.fixed, length.most, *known)

    def start_on_device(self, state: DecodeState) -> int | None:
        if self.resting:
            return 0
        most, longest = self.draft_length.most, max(map(len, self.texts)) - 1
        limit = self.draft_length.limit(longest)
        if limit == 0:
            return 0
        if len(self.texts) > ROWS[-1] or (self.draft_length.fixed and limit >= WIDTHS[-1]):
            return None
        # Few sizes; slots that are too many are free on a device for which so long a draft is worth it.
        limit = WIDTHS[bisect_left(WIDTHS, min(limit + 1, WIDTHS[-1]))] - 1
        device = state.device
        if self.on_device is None or self.on_device.device != device:
            self.on_device = copy_board(self.match, device)
        starts = [row.tokens[0] for row in state.rows]
        self.on_device.set(self.texts, starts)
        return min(limit, most)

    def reserve(self, shape: Shape) -> Sequence[GraphMemory]:
        assert self.on_device is not None
        return [self.on_device]

    def block(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        assert self.on_device is not None
        return self.on_device.block(board, owners, rows, shape.width - 1)

    def observe_batch(self, verdict: BatchVerdict) -> None:
        self.draft_length.learn(verdict.drafted, verdict.accepted)


# How fairseq's tasks write the language of a sentence: __de__, [de_DE], <lang:de>, <2de>.
TAG = re.compile(
    r"__[a-z]{2,3}(_[A-Za-z]+)?__|\[[a-z]{2,3}(_[A-Za-z]+)?\]|<lang:[^>]+>|<2[a-z]{2,3}>"
)


class InputCopyDrafter(CopyDrafter):
    """Drafts from the source sentence, whatever the padding side and the dictionaries.

    Args:
        source, target: dictionaries; tokens are mapped by symbol, those that the target lacks are never drafted.
        match: see :mod:`~fairseq_aggdec.drafters.copy.copy_text`.
        eos: that outputs end with; None: the target's. Multilingual models may end them with a tag of a language.
        symbols: of an earlier drafter.
    """

    def __init__(
        self,
        source: Dictionary,
        target: Dictionary,
        match: str,
        eos: int | None = None,
        symbols: Symbols | None = None,
    ):
        super().__init__(target.eos() if eos is None else eos, match)
        self.symbols = Symbols.of(source, target, symbols)
        self.to_target = self.symbols.to_target
        self.source = source
        self.source_pad, self.source_eos = source.pad(), source.eos()

    def copied(self, sample: Mapping) -> list[list[int]]:
        source = on_host(sample["net_input"]["src_tokens"])
        mapped = self.to_target[source].tolist()
        return [
            self._strip(ids, tokens) for ids, tokens in zip(source.tolist(), mapped, strict=True)
        ]

    def _strip(self, ids: list[int], tokens: list[int]) -> list[int]:
        """Cuts off padding, tags of languages and the end symbol; ``tokens`` are ``ids`` in target ids."""
        first, last = 0, len(ids)
        while last > first and ids[last - 1] == self.source_pad:
            last -= 1
        while first < last and ids[first] == self.source_pad:
            first += 1
        if last > first and self._is_tag(ids[last - 1]):
            last -= 1
        if last > first and ids[last - 1] == self.source_eos:
            last -= 1
        if last > first and self._is_tag(ids[first]):
            first += 1
        return tokens[first:last]

    def _is_tag(self, token: int) -> bool:
        """Tells whether a token names the language of its sentence."""
        return TAG.fullmatch(self.source[token]) is not None


def symbol_map(source: Dictionary, target: Dictionary) -> Tensor:
    """(V_source,) target id of every source id by symbol, ``NEVER_DRAFTED`` for special symbols and missing ones.

    ``unk`` maps to ``unk``: the source's unknown words are often unknown in the output too.
    """
    ids, symbols = target.indices, source.symbols
    if symbols == target.symbols and len(ids) == len(symbols):
        mapped = torch.arange(len(symbols), device=HOST)
    else:
        mapped = torch.tensor([ids.get(one, NEVER_DRAFTED) for one in symbols], device=HOST)
    for special in (source.bos(), source.pad(), source.eos()):
        mapped[special] = NEVER_DRAFTED
    return mapped


@dataclass
class Symbols:
    """Knowledge that copying needs of two dictionaries, which takes long to find out.

    Attributes:
        source, target: the dictionaries.
        size: of both together; tasks add symbols to them.
        to_target: :func:`symbol_map`.
    """

    source: Dictionary
    target: Dictionary
    size: int
    to_target: Tensor

    @classmethod
    def of(cls, source: Dictionary, target: Dictionary, known: Symbols | None = None) -> Symbols:
        """``known``, if it is of these dictionaries as they are now, else a new one."""
        size = len(source) + len(target)
        if known and known.source is source and known.target is target and known.size == size:
            return known
        return cls(source, target, size, symbol_map(source, target))
