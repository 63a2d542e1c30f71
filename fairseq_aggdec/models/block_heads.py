"""The extra heads of blockwise parallel decoding: k predictions from one decoder position (Stern et al., section 6)."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import TransformerDecoderLayer
from torch import Tensor, nn

DENSE, PER_HEAD = "dense", "per-head"


class BlockHeads(nn.Module):
    """A multi-output feed-forward layer between decoder and vocabulary projection.

    Head i of k (counted from 0) predicts the token i + 1 positions ahead. Its output is the decoder's feature vector
    plus a correction computed by one hidden layer; head 0 may be the feature vector itself.

    Args:
        block_size: k, the number of heads.
        dim: C, size of a feature vector.
        hidden_dim: hidden units per head.
        layout: ``dense`` as in the paper (k * hidden units, every output reads all of them) or ``per-head`` (each
            output reads its own hidden units only: a k-th of the second product).
        identity_first: head 0 has no correction, so that it is the base model (the paper's footnote 1).
        dropout: on the hidden units and on the corrections.
    """

    def __init__(
        self,
        block_size: int,
        dim: int,
        hidden_dim: int,
        layout: str = DENSE,
        identity_first: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.block_size, self.dim, self.hidden_dim = block_size, dim, hidden_dim
        self.dense, self.identity_first, self.dropout = layout == DENSE, identity_first, dropout
        corrected = block_size - identity_first
        self.expand = nn.Linear(dim, corrected * hidden_dim)
        read = corrected * hidden_dim if self.dense else hidden_dim
        # Rows head after head. Zero at first, so that every head begins as the base model.
        self.contract = nn.Linear(read, corrected * dim)
        nn.init.zeros_(self.contract.weight)
        nn.init.zeros_(self.contract.bias)

    def forward(self, features: Tensor, heads: Sequence[int]) -> Tensor:
        """Outputs of consecutive heads: features (..., C) -> (..., len(heads), C)."""
        outputs = []
        corrected = [head for head in heads if not self.is_identity(head)]
        if len(corrected) < len(heads):
            outputs.append(features.unsqueeze(-2))
        if corrected:
            correction = self._correct(features, corrected[0], corrected[-1] + 1)
            outputs.append(features.unsqueeze(-2) + self._drop(correction))
        return torch.cat(outputs, dim=-2)

    def is_identity(self, head: int) -> bool:
        return self.identity_first and head == 0

    def weights(self, first: int, last: int) -> tuple[slice, slice]:
        """Rows of ``expand`` and of ``contract`` that heads ``first`` to ``last - 1`` use."""
        offset = int(self.identity_first)
        hidden = slice((first - offset) * self.hidden_dim, (last - offset) * self.hidden_dim)
        output = slice((first - offset) * self.dim, (last - offset) * self.dim)
        return slice(None) if self.dense else hidden, output

    def _correct(self, features: Tensor, first: int, last: int) -> Tensor:
        """(..., C) -> (..., last - first, C)."""
        read, write = self.weights(first, last)
        hidden = F.linear(features, self.expand.weight[read], self.expand.bias[read]).relu()
        hidden = self._drop(hidden)
        weight, bias = self.contract.weight[write], self.contract.bias[write]
        if self.dense:
            return F.linear(hidden, weight, bias).unflatten(-1, (last - first, self.dim))
        grouped = hidden.unflatten(-1, (last - first, self.hidden_dim))
        weight = weight.unflatten(0, (last - first, self.dim))  # (heads, C, hidden)
        return torch.einsum("...gh,gch->...gc", grouped, weight) + bias.view(-1, self.dim)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class HeadLayers(nn.Module):
    """``--head-layers``: decoder layers over the heads of one position, as if they were a sentence of k - 1 places.

    A head alone reads the features of one position. Here it also reads which token head 1 chose there (which a verifier
    knows before anything is drafted), the heads before its own, and the source: what a non-autoregressive drafter's
    slots read (Ge et al., section 3.2), but for the prefix, of which the features of the position tell.

    Args:
        args: options of the decoder, whose layers these are like.
        layers: how many.
        embedding: E, of token embeddings.

    Attributes:
        opening: (C,), learned: the features of a position before the first, whose token is ``</s>``. From there heads 2
            to k draft how an output begins, before the decoder has run.
    """

    def __init__(self, args: Any, layers: int, embedding: int):
        super().__init__()
        width = int(args.decoder_embed_dim)
        self.opening = nn.Parameter(torch.empty(width).normal_(0, width**-0.5))
        self.read_token = nn.Linear(embedding, width, bias=False)
        self.layers = nn.ModuleList(TransformerDecoderLayer(args) for _ in range(layers))
        self.layer_norm = nn.LayerNorm(width) if args.decoder_normalize_before else None

    def forward(self, heads: Tensor, chosen: Tensor, encoder_out: dict[str, Any]) -> Tensor:
        """Outputs of heads 2 to H + 1 (B, T, H, C) and embeddings of head 1's tokens (B, T, E) -> (B, T, H, C)."""
        rows, positions, count, width = heads.shape
        x = heads + self.read_token(chosen).unsqueeze(2)
        x = x.permute(1, 2, 0, 3).reshape(positions * count, rows, width)
        hidden = other_heads(positions, count, x.device)
        padding = encoder_out["encoder_padding_mask"]
        for layer in self.layers:
            x, _, _ = layer(
                x,
                encoder_out["encoder_out"][0],
                padding[0] if len(padding) > 0 else None,
                self_attn_mask=hidden,
            )
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x.view(positions, count, rows, width).permute(2, 0, 1, 3)

    def opened(self, features: Tensor) -> Tensor:
        """With the position before the first: (B, T, C) -> (B, 1 + T, C)."""
        opening = self.opening.expand(len(features), 1, -1).type_as(features)
        return torch.cat([opening, features], dim=1)


def other_heads(positions: int, count: int, device: torch.device) -> Tensor:
    """Mask of what a head does not see, bool (T H, T H): heads of other positions and those after its own."""
    there = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    return ~torch.block_diag(*[there] * positions)
