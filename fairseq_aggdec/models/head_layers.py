"""``--head-layers``: block heads 2 to k pass through decoder layers of their own before they choose.

A head alone reads the features of one position. Here it also reads which token head 1 chose there (which a verifier
knows before anything is drafted), the heads before its own, and the source: what a non-autoregressive drafter's slots
read (Ge et al., section 3.2), but for the prefix, of which the features of the position tell.
"""

from typing import Any

import torch
from fairseq.modules import TransformerDecoderLayer
from torch import Tensor, nn


class HeadLayers(nn.Module):
    """Decoder layers over the heads of one position, as if they were a sentence of k - 1 places.

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
    """What a head does not see, bool (T H, T H): heads of other positions and those after its own."""
    there = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    return ~torch.block_diag(*[there] * positions)
