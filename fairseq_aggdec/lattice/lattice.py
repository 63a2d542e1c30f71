"""The lattice of a batch: candidate tokens at every target position, and which of them may follow each other.

All lengths of a row's window are in one lattice, told apart by ``</s>`` and padding (Deng and Rush 2021, section 4, and
its predecessor's code). Worked example, target lengths 1 to 2, N = 3 candidates, T = 3 positions:

    position 0    Hund   Tier   ein         words only: the shortest translation has one
    position 1    </s>   bellt  schläft     the end after one word, or a second
    position 2    </s>   <pad>  -           the end after two words, or padding when it came earlier

Behind a word stands a word or ``</s>``; behind ``</s>`` and padding stands padding, at no cost, so lengths compete by
their scores alone. Padding never follows a word, hence a path of any length ends with one ``</s>`` and fills the grid;
rows of different lengths need nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairseq_aggdec.lattice.length import LengthWindow
from fairseq_aggdec.lattice.viterbi import BestPaths, n_best, viterbi
from fairseq_aggdec.windows.transfer import read


@dataclass(frozen=True)
class Lattice:
    """Candidates of B rows at T positions, N at each.

    Attributes:
        tokens: (B, T, N) int64; ``pad`` also where there is no candidate.
        log_probabilities: (B, T, N) float32, nats, of each candidate by itself; 0 for ``</s>`` and padding, -inf where
            there is no candidate.
        lengths: the allowed target lengths.
        histories: per row (host numbers) how many words another may follow, the start counted; None where nobody has
            asked the device yet.
        pad, eos: ids of the target dictionary.
    """

    tokens: Tensor
    log_probabilities: Tensor
    lengths: LengthWindow
    pad: int
    eos: int
    histories: list[int] | None = None

    @property
    def nodes(self) -> Tensor:
        """(B, T, N) bool: there is a candidate."""
        return self.log_probabilities > -torch.inf

    def pruned(self, least: float) -> Lattice:
        """Without words less likely than ``least``, but for the likeliest of each position; no wider than needed."""
        log_probs = self.log_probabilities
        words = log_probs.masked_fill(self._over, -torch.inf)
        kept = self._over | (words.exp() >= least) | (words == words.amax(2, keepdim=True))
        kept &= self.nodes
        # The one thing that is asked of the device between the source and the paths.
        followed = 1 + (kept & ~self._over)[:, :-1].flatten(1).sum(1)
        width, histories = read([kept.sum(2).amax(), followed])
        order = torch.sort(~kept, stable=True, dim=2).indices[..., : int(width)]
        kept, log_probs = kept.gather(2, order), log_probs.gather(2, order)
        return replace(
            self,
            tokens=self.tokens.gather(2, order).masked_fill(~kept, self.pad),
            log_probabilities=log_probs.masked_fill(~kept, -torch.inf),
            histories=histories.tolist(),
        )

    @property
    def edges(self) -> Tensor:
        """(B, T - 1, N, N) bool: candidate j at position t + 1 may follow candidate i at t."""
        nodes, over = self.nodes, self._over
        padding = self.tokens == self.pad
        pairs = nodes[:, :-1].unsqueeze(3) & nodes[:, 1:].unsqueeze(2)
        return pairs & (over[:, :-1].unsqueeze(3) == padding[:, 1:].unsqueeze(2))

    @property
    def _over(self) -> Tensor:
        """(B, T, N) bool: the translation has ended at or before this candidate."""
        return (self.tokens == self.eos) | (self.tokens == self.pad)

    def scores(
        self, first: Tensor | None = None, edges: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scores that Viterbi searches: a scorer's scores with all that is not allowed at -inf and padding at 0.

        Args:
            first: (B, N) nats, score of each candidate of position 0; None for its log-probability.
            edges: (B, T - 1, N, N) nats, log P(candidate j at t + 1 | candidate i at t); None for the log-probability
                of j by itself.

        Returns:
            Unary scores (B, T, N), which are 0 but at position 0, and edge scores (B, T - 1, N, N).
        """
        log_probs = self.log_probabilities
        first = log_probs[:, 0] if first is None else first
        edges = log_probs[:, 1:].unsqueeze(2) if edges is None else edges
        allowed = self.edges
        padding = (self.tokens == self.pad)[:, 1:].unsqueeze(2)
        unary = torch.zeros_like(log_probs)
        unary[:, 0] = first.to(log_probs.dtype).masked_fill(~self.nodes[:, 0], -torch.inf)
        edges = edges.to(log_probs.dtype).expand(allowed.shape).masked_fill(padding, 0.0)
        return unary, edges.masked_fill(~allowed, -torch.inf)

    def search(
        self,
        first: Tensor | None = None,
        edges: Tensor | None = None,
        count: int | None = None,
    ) -> BestPaths:
        """The best path of every row, or the ``count`` best, over all lengths of its window at once.

        Args:
            first, edges: a scorer's scores, as :meth:`scores` takes them.
        """
        unary, step = self.scores(first, edges)
        return viterbi(unary, step) if count is None else n_best(unary, step, count=count)

    def read(self, choices: Tensor) -> Tensor:
        """Tokens (B, [P,] T) of paths (B, [P,] T): ``</s>`` at the end of each, then ``pad``."""
        rows, positions, _ = self.tokens.shape
        index = choices.reshape(rows, -1, positions).transpose(1, 2)  # (B, T, P)
        return self.tokens.gather(2, index).transpose(1, 2).reshape(choices.shape)
