"""The neural scores of a lattice's edges: log P(y_t | y_{t-1}, t, x) for all pairs of candidates (section 3)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.member import Member
from fairseq_aggdec.engine.plain.support import parts_gap
from fairseq_aggdec.engine.plain.walk import probabilities_gap
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.lattice.lattice import Lattice
from fairseq_aggdec.windows.window import NodeWindow

Normalise = Literal["candidates", "vocabulary"]
ROWS = 256  # projected to the whole vocabulary at a time


class ScorerMember(Member):
    """A model whose decoder scores nodes: its layers in their fast form, whatever order it was trained with."""

    def _decoder_gap(self) -> str | None:
        return parts_gap(self.model.decoder)


def _refuse(gap: str | None) -> None:
    if gap is not None:
        raise ValueError(f"--decoding lattice cannot run this model: {gap}")


class EdgeScorer(Verifier):
    """Scores of one model or of several, whose probabilities are averaged.

    Args:
        models: of ``--arch lattice_transformer``, in evaluation mode.
        normalise: ``candidates``: probabilities of a position's candidates add up to 1, and only these are projected;
            ``vocabulary``: those of all types do.
        precision: how the models compute.
        temperature: divides the logits.

    Raises:
        ValueError: layers that have no fast form.
    """

    member_class = ScorerMember

    def __init__(
        self,
        models: Sequence[nn.Module],
        normalise: Normalise = "candidates",
        precision: Precision = EXACT,
        temperature: float = 1.0,
    ):
        for model in models:
            _refuse(parts_gap(model.decoder) or probabilities_gap(model))
        super().__init__(models, precision, temperature)
        self.normalise = normalise

    def _made_of(self) -> tuple[Any, ...]:
        models = [member.model for member in self.members]
        return models, self.normalise, self.precision, self.temperature

    def start(self, net_input: Mapping[str, Tensor], capacity: int = 1) -> None:
        """Encodes ``src_tokens`` (B, S)."""
        super().start(net_input, capacity)

    def scores(self, lattice: Lattice, start: int) -> tuple[Tensor, Tensor]:
        """Scores of position 0 (B, N), after ``start``; and of the edges (B, T - 1, N, N); both nats, fp32."""
        of_members = [self._of_one(member.decoder, lattice, start) for member in self.members]
        if len(of_members) == 1:
            return of_members[0]
        first, edges = (
            torch.logsumexp(torch.stack(part), 0) - math.log(len(of_members))
            for part in zip(*of_members, strict=True)
        )
        return first, edges

    def _of_one(self, decoder: Any, lattice: Lattice, start: int) -> tuple[Tensor, Tensor]:
        _, positions, count = lattice.tokens.shape
        window, places = history_window(lattice, start)
        features = decoder.features(window)  # (M, C)
        shape = len(lattice.tokens), 1 + (positions - 1) * count
        grid = _scattered(features, places, shape)  # (B, 1 + (T - 1) N, C)
        projection = decoder.decoder.output_projection
        columns = F.embedding(lattice.tokens, projection.weight)  # (B, T, N, C)
        bias = None if projection.bias is None else projection.bias[lattice.tokens]
        # Position 0 has one history, the others N; (B, H, C) x (B, C, N) each.
        first = grid[:, :1] @ columns[:, 0].transpose(1, 2)  # (B, 1, N)
        later = grid[:, 1:].unflatten(1, (positions - 1, count))  # (B, T - 1, N, C)
        edges = later @ columns[:, 1:].transpose(2, 3)  # (B, T - 1, N, N)
        if bias is not None:
            first, edges = first + bias[:, :1], edges + bias[:, 1:].unsqueeze(2)
        first, edges = (scores.float() / self.temperature for scores in (first, edges))
        if self.normalise == "candidates":
            words = lattice.nodes & (lattice.tokens != lattice.pad)
            first = first - _log_sum(first, words[:, :1])
            edges = edges - _log_sum(edges, words[:, 1:].unsqueeze(2))
        else:
            norm = _scattered(self._vocabulary_norm(decoder, features).unsqueeze(1), places, shape)
            first = first - norm[:, :1]
            edges = edges - norm[:, 1:].unflatten(1, (positions - 1, count))
        return first.squeeze(1), edges

    def _vocabulary_norm(self, decoder: CachedDecoder, features: Tensor) -> Tensor:
        """(M, C) -> (M,) log-sum over all types."""
        parts = [
            decoder.logits(part, self.temperature).float().logsumexp(-1)
            for part in features.split(ROWS)
        ]
        return torch.cat(parts)


def history_window(lattice: Lattice, start: int) -> tuple[NodeWindow, Tensor]:
    """Tokens that the scorer reads: ``start`` at position 0 and each word of position t at position t + 1.

    Nothing is scored behind ``</s>`` and padding, so they are not read.

    Returns:
        the window, and the places (M,) that its tokens have in the flat grid of (B, 1 + (T - 1) N).
    """
    tokens = lattice.tokens[:, :-1]  # (B, T - 1, N)
    rows, steps, count = tokens.shape
    words = lattice.nodes[:, :-1] & (tokens != lattice.eos) & (tokens != lattice.pad)
    there = F.pad(words.flatten(1), (1, 0), value=True)
    grid = F.pad(tokens.flatten(1), (1, 0), value=start)
    places = torch.arange(1, steps + 1, device=tokens.device).repeat_interleave(count)
    position = F.pad(places, (1, 0)).expand(rows, -1)
    widths = lattice.histories
    if widths is None:
        widths = there.sum(1).tolist()
    held = places_of(there, sum(widths))
    tokens, position = (x.flatten().index_select(0, held) for x in (grid, position))
    return NodeWindow(tokens, position, widths, steps + 1), held


def _scattered(values: Tensor, places: Tensor, shape: tuple[int, int]) -> Tensor:
    """Values (M, C) at places (M,) of a flat grid, zeros elsewhere: (*shape, C)."""
    grid = values.new_zeros(shape[0] * shape[1], values.size(1))
    return grid.index_copy_(0, places, values).view(*shape, -1)


def places_of(mask: Tensor, count: int) -> Tensor:
    """(``count``,) int64, the places where a mask of any shape holds, of which the host knows how many there are.

    ``nonzero`` would make the host wait for the device.
    """
    flat = mask.flatten()
    number = torch.where(flat, flat.cumsum(0) - 1, count)  # the others go to a place of their own
    places = number.new_empty(count + 1)
    return places.scatter_(0, number, torch.arange(len(flat), device=flat.device))[:count]


def _log_sum(scores: Tensor, there: Tensor) -> Tensor:
    """Log-sum (..., 1) over the candidates that are there; 0 where none is."""
    total = scores.masked_fill(~there, -torch.inf).logsumexp(-1, keepdim=True)
    return total.masked_fill(total == -torch.inf, 0.0)
