"""The candidate model: which target tokens may stand at each position, from counts alone.

Deng and Rush 2021, section 3: with latent alignments a,

    P(y_t | x, t) = sum_a P(y_t | x_a, a - t) P(a | S, t)

and the N tokens with the highest P(y_t | x, t) are the candidates of position t. ``smoothing="none"`` is this, by
maximum likelihood. On small data most (source token, offset) pairs were seen once or never; ``interpolated`` mixes in
what does not know the offset or the length:

    P(y | x_a, a - t)   becomes   w P(y | x_a, a - t) + (1 - w) P(y | x_a)
    P(a | S, t)         becomes   v P(a | S, t)       + (1 - v) P(a - t) / sum_a' P(a' - t)

with weights chosen on training sentences that were not counted (``building.choose_weights``). Where a first part is
unknown its weight goes to the second. The paper leaves open what happens without smoothing to a pair (S, t) that was
never seen; here its source positions are equally likely. A position that has no candidate at all is given ``<unk>``.

Source positions are those of words: padding and ``</s>`` are skipped wherever they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_aggdec.lattice import tables
from fairseq_aggdec.lattice.counting import NAMES
from fairseq_aggdec.lattice.lattice import Lattice
from fairseq_aggdec.lattice.length import WINDOW, LengthModel, LengthWindow
from fairseq_aggdec.lattice.settings import POSITIONS
from fairseq_aggdec.lattice.tables import Table
from fairseq_aggdec.windows.transfer import on_host, to_device

Smoothing = Literal["none", "interpolated"]
_SPREAD = 2**24  # (position, source word, entry) triples that are looked up at once


@dataclass(frozen=True)
class Weights:
    """Tells how much the specific part of an interpolation counts, 0 to 1.

    Attributes:
        translation: w, of P(y | x_a, a - t).
        position: v, of P(a | S, t).
    """

    translation: float
    position: float

    def __post_init__(self) -> None:
        for name in ("translation", "position"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"the {name} weight is {getattr(self, name)}; it must be 0 to 1")


@dataclass(frozen=True)
class Special:
    """Ids of the special symbols, of both dictionaries (``pad``, ``eos``) and of the target's (``unk``); ``types``, its
    size."""

    pad: int
    eos: int
    unk: int
    types: int

    @classmethod
    def of(cls, target: Dictionary) -> Special:
        return cls(target.pad(), target.eos(), target.unk(), len(target))


@dataclass(frozen=True)
class CandidateModel:
    """Tables and what is needed to read them.

    Attributes:
        translation, lexicon, position, offset: as :mod:`fairseq_aggdec.lattice.counting` makes them.
        max_offset: the outermost offset that the tables know.
        length: predicts the target length.
        weights: of interpolation.
        special: symbols.
    """

    translation: Table
    lexicon: Table
    position: Table
    offset: Table
    max_offset: int
    length: LengthModel
    weights: Weights
    special: Special

    @classmethod
    def open(cls, folder: Path, source: Dictionary, target: Dictionary) -> CandidateModel:
        """Opens a folder of tables, memory-mapped.

        Raises:
            FileNotFoundError: there are no tables.
            ValueError: they are of another format or were made with other dictionaries.
        """
        header = tables.read_header(folder)
        damaged = f"{folder / tables.HEADER} is damaged (%s); make the tables anew"
        try:
            length = LengthModel.from_record(header["length"])
            weights = Weights(**header["weights"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(damaged % error) from error
        try:
            tables.check_dictionary(folder, header, "source", source)
            tables.check_dictionary(folder, header, "target", target)
            read = {name: tables.load(folder, name, header) for name in NAMES}
            offset, special = header["max_offset"], Special.of(target)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(damaged % f"{type(error).__name__}: {error}") from error
        model = cls(**read, max_offset=offset, length=length, weights=weights, special=special)
        model.check(folder)
        return model

    def check(self, folder: Path) -> None:
        """Raises ``ValueError`` for tables with ids and offsets that there are none of; ``folder`` for the message."""
        offsets = 2 * self.max_offset + 1 if type(self.max_offset) is int else 0
        types = self.special.types
        limits = {"translation": types, "lexicon": types, "position": POSITIONS, "offset": offsets}
        for name, most in limits.items():
            values = getattr(self, name).values
            largest = int(values.max()) if len(values) else 0
            if not 0 < offsets <= 2 * POSITIONS + 1 or largest >= most:
                raise ValueError(
                    f"{folder}: the table {name} is damaged (values of {most} or more); make the tables anew"
                )

    def save(
        self, folder: Path, source: Dictionary, target: Dictionary, about: Mapping[str, Any]
    ) -> None:
        """Writes a folder that :meth:`open` reads.

        Args:
            source, target: the dictionaries of the counted data.
            about: more for the header, such as the command.
        """
        named = {"source": source, "target": target}
        header = {
            **about,
            "dictionaries": {name: tables.describe(one) for name, one in named.items()},
            "max_offset": self.max_offset,
            "length": asdict(self.length),
            "weights": asdict(self.weights),
        }
        tables.save(folder, {name: getattr(self, name) for name in NAMES}, header)

    def to(self, device: torch.device | str) -> CandidateModel:
        """The same with its tables on a device: itself where they are there, else read into memory."""
        if torch.device(device).type == self.translation.keys.device.type:
            return self
        return replace(self, **{name: getattr(self, name).to(device) for name in NAMES})

    def lattice(
        self,
        source: Tensor,
        candidates: int,
        smoothing: Smoothing = "none",
        lengths: LengthWindow | None = None,
        window: int = WINDOW,
    ) -> Lattice:
        """The lattice of a batch.

        Args:
            source: (B, S) int64, padded on either side, with or without ``</s>``.
            candidates: N, ``</s>`` and padding counted where they are allowed; at least 3, which leaves room for a
                word, or 1 when every row has one length only.
            smoothing: ``none`` is the paper's.
            lengths: the allowed lengths, on the host; None predicts them.
            window: dL of the prediction.

        Raises:
            ValueError: a sentence that is too long.
        """
        if lengths is None:
            host = on_host(source)
            known = (host != self.special.pad) & (host != self.special.eos)
            lengths = self.length.window(known.sum(1), window)
        # No position has more: every type once, or </s> and padding.
        candidates = min(candidates, self.special.types + 2)
        words, source_lengths = gather_words(source, self.special)
        positions = int(lengths.longest.max()) + 1  # the last for ``</s>``
        if max(positions, source.size(1)) >= POSITIONS:
            raise ValueError(f"sentences must be shorter than {POSITIONS} tokens")
        tokens, probabilities = self.words(words, source_lengths, positions, candidates, smoothing)
        return _with_ends(tokens, probabilities, lengths.to(source.device), self.special)

    def words(
        self,
        words: Tensor,
        source_lengths: Tensor,
        positions: int,
        candidates: int,
        smoothing: Smoothing = "none",
    ) -> tuple[Tensor, Tensor]:
        """The N most likely words of each position, ``</s>`` and padding apart.

        Args:
            words: (B, S) int64, words from the left, padding after them.
            source_lengths: (B,) int64.
            positions: T.
            candidates: N.

        Returns:
            Tokens (B, T, N) int64, most likely first, of equally likely ones the lowest id, ``pad`` where there are
            fewer; probabilities (B, T, N) float32, 0 there.
        """
        rows, longest = words.shape
        width = self.translation.width + self.lexicon.width
        at_once = max(1, _SPREAD // (rows * max(1, longest) * width))
        places = torch.arange(positions, device=words.device)
        parts_of_rows = [
            self._words_at(words, source_lengths, part, candidates, smoothing)
            for part in places.split(at_once)
        ]
        tokens, probabilities = (torch.cat(parts, 1) for parts in zip(*parts_of_rows, strict=True))
        return tokens.masked_fill(probabilities == 0, self.special.pad), probabilities

    def _words_at(
        self, words: Tensor, lengths: Tensor, positions: Tensor, count: int, smoothing: Smoothing
    ) -> tuple[Tensor, Tensor]:
        prior = self._prior(words, lengths, positions, smoothing)  # (B, T, S)
        at = torch.arange(words.size(1), device=words.device)
        offset = self._offset(at, positions)  # (T, S)
        keys = words.unsqueeze(1) * (2 * self.max_offset + 1) + offset  # (B, T, S)
        tokens, chances, seen = self.translation.look_up(keys)  # (B, T, S, K), (B, T, S)
        if smoothing == "interpolated":
            weight = seen * chances.new_tensor(self.weights.translation)  # (B, T, S)
            free_tokens, free_chances, _ = self.lexicon.look_up(words)  # (B, S, K)
            shape = (*prior.shape, free_tokens.size(-1))
            rest = (1 - weight).unsqueeze(-1) * free_chances.unsqueeze(1)
            tokens = torch.cat([tokens, free_tokens.unsqueeze(1).expand(shape)], -1)
            chances = torch.cat([weight.unsqueeze(-1) * chances, rest], -1)
        joint = chances * prior.unsqueeze(-1)  # (B, T, S, K)
        return most_likely(tokens.flatten(2), joint.flatten(2), count, self.special.types)

    def _offset(self, at: Tensor, positions: Tensor) -> Tensor:
        """Number (T, S) of the offset from target positions (T,) to source positions (S,)."""
        offset = at - positions.unsqueeze(1)
        return offset.clamp(-self.max_offset, self.max_offset) + self.max_offset

    def _prior(
        self, words: Tensor, source_lengths: Tensor, positions: Tensor, smoothing: Smoothing
    ) -> Tensor:
        """P(a | S, t): (B, T, S) float32, 0 behind a row's last word."""
        keys = source_lengths.unsqueeze(1) * POSITIONS + positions  # (B, T)
        at, chances, seen = self.position.look_up(keys)  # (B, T, K), (B, T)
        specific = chances.new_zeros(*keys.shape, words.size(1))
        specific.scatter_add_(2, at.long(), chances)
        source = torch.arange(words.size(1), device=words.device)
        inside = (source < source_lengths.unsqueeze(1)).unsqueeze(1)  # (B, 1, S)
        known = seen.unsqueeze(2)
        if smoothing == "none":
            return torch.where(known, specific, _normalised(inside.float(), inside))
        relative = self._offset_chances(words.device)[self._offset(source, positions)]  # (T, S)
        weight = known * specific.new_tensor(self.weights.position)
        return weight * specific + (1 - weight) * _normalised(relative, inside)

    def _offset_chances(self, device: torch.device) -> Tensor:
        """P(a - t) of every offset, (offsets,)."""
        only = torch.zeros(1, dtype=torch.int64, device=device)
        values, chances, _ = self.offset.look_up(only)  # (1, K)
        table = chances.new_zeros(1, 2 * self.max_offset + 1)
        return table.scatter_add_(1, values.long(), chances).squeeze(0)


class Shortlist:
    """``--shortlist``: the types that a batch may be translated into, likely words of every position and special ones.

    Args:
        model: proposes words; moved to the device of the first source.
        count: words for each target position.
        smoothing: of their probabilities.
    """

    def __init__(self, model: CandidateModel, count: int, smoothing: Smoothing):
        self.model, self.count, self.smoothing = model, count, smoothing

    def __call__(self, source: Tensor) -> Tensor:
        """Ids (M,) int64, sorted, for sources (B, S)."""
        self.model = self.model.to(source.device)
        # `</s>` and padding are candidates, too, and take two places.
        words = self.model.lattice(source, self.count + 2, self.smoothing).tokens
        special = self.model.special
        always = to_device([special.pad, special.eos, special.unk], words.device)
        return torch.cat([words.flatten(), always]).unique()


def gather_words(source: Tensor, special: Special) -> tuple[Tensor, Tensor]:
    """Moves the words of every row to the left, padding behind them.

    Args:
        source: (B, S) int64, padded on either side, with or without ``</s>``.

    Returns:
        Words (B, S) and how many there are (B,).
    """
    is_word = (source != special.pad) & (source != special.eos)
    order = torch.sort(~is_word, stable=True, dim=1).indices
    lengths = is_word.sum(1)
    words = source.gather(1, order)
    behind = torch.arange(source.size(1), device=source.device) >= lengths.unsqueeze(1)
    return words.masked_fill(behind, special.pad), lengths


def most_likely(tokens: Tensor, chances: Tensor, count: int, types: int) -> tuple[Tensor, Tensor]:
    """Sums the chances of equal tokens and picks the largest sums.

    Args:
        tokens: (B, T, M) int32.
        chances: (B, T, M) float32, not negative.
        count: N.
        types: size of the dictionary.

    Returns:
        Tokens (B, T, N) int64, best first, of equal ones the lowest id; sums (B, T, N) float32. Where fewer than N
        tokens have a chance, the rest has 0.
    """
    rows, positions, _ = tokens.shape
    index = tokens.long()
    # Every row has a dictionary of its own: its types in their order, numbered from 0. Sums over these are found much
    # faster than equal tokens are sorted together.
    there = torch.zeros(rows, types, dtype=torch.bool, device=tokens.device)
    there.scatter_(1, index.flatten(1), True)
    number = there.cumsum(1) - 1  # (B, V)
    width = min(types, index.size(1) * index.size(2))
    if tokens.device.type == "cpu":  # elsewhere asking takes longer than the room is worth
        width = int(number[:, -1].max()) + 1 if rows else 0
    width = max(count, width)
    names = torch.zeros(rows, width + 1, dtype=torch.int64, device=tokens.device)
    place = torch.where(there, number, width)  # what is not there goes to a place of its own
    names.scatter_(1, place, torch.arange(types, device=tokens.device).expand_as(place))
    slot = number.gather(1, index.flatten(1)).view_as(index)
    sums = chances.new_zeros(rows, positions, width).scatter_add_(2, slot, chances)
    # Floats that are not negative are in the order of their bits. One number per token is sorted out much faster than
    # a stable sort is.
    lowest_first = torch.arange(width - 1, -1, -1, device=sums.device)
    best = ((sums.view(torch.int32).long() << 32) | lowest_first).topk(count, dim=-1).values
    chosen = width - 1 - (best & 0xFFFFFFFF)  # (B, T, N)
    words = names.gather(1, chosen.flatten(1)).view_as(chosen)
    return words, (best >> 32).int().view(torch.float32)


def _normalised(chances: Tensor, inside: Tensor) -> Tensor:
    """Chances (..., S) with those outside at 0 and the rest adding up to 1; equal ones where all are 0."""
    kept = chances * inside
    kept = torch.where((kept.sum(-1, keepdim=True) > 0) | ~inside, kept, 1.0)
    return kept / kept.sum(-1, keepdim=True).clamp(min=torch.finfo(kept.dtype).tiny)


def _with_ends(
    tokens: Tensor, probabilities: Tensor, lengths: LengthWindow, special: Special
) -> Lattice:
    """The lattice of words (B, T, N) with ``</s>`` and padding before them where they are allowed, N in all."""
    rows, positions, candidates = tokens.shape
    position = torch.arange(positions, device=tokens.device)
    shortest, longest = lengths.shortest.unsqueeze(1), lengths.longest.unsqueeze(1)
    within = position < longest  # (B, T)
    unknown = probabilities[..., 0] == 0
    words = torch.where(unknown.unsqueeze(2), 0, probabilities).log()
    words[..., 0] = words[..., 0].masked_fill(unknown, 0.0)
    tokens = torch.cat([tokens.new_empty(rows, positions, 2), tokens], 2)
    tokens[..., 0], tokens[..., 1] = special.eos, special.pad
    tokens[..., 2] = tokens[..., 2].masked_fill(unknown, special.unk)
    ends = torch.stack([(position >= shortest) & (position <= longest), position > shortest], 2)
    scores = torch.cat(
        [
            words.new_zeros(ends.shape).masked_fill(~ends, -torch.inf),
            words.masked_fill(~within.unsqueeze(2), -torch.inf),
        ],
        2,
    )
    order = torch.sort(scores == -torch.inf, stable=True, dim=2).indices[..., :candidates]
    scores = scores.gather(2, order)
    tokens = tokens.gather(2, order).masked_fill(scores == -torch.inf, special.pad)
    return Lattice(tokens, scores, lengths, special.pad, special.eos)
