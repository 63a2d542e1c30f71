"""Decoders whose layers :class:`~fairseq_aggdec.engine.cached_decoder.CachedDecoder` cannot represent."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.engine.encoder import EncoderOut
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.window import Window


class PrefixDecoder:
    """Any fairseq decoder, by recomputing the whole prefix of every row: slow, general, the same interface.

    It keeps tokens where :class:`CachedDecoder` keeps keys and values. The decoder must be causal: what stands right of
    a position (rejected drafts of an earlier window) must not change it.
    """

    reads_trees = False

    def __init__(self, model: Any):
        self.model = model

    def start(self, encoder_out: EncoderOut, rows: int, capacity: int) -> None:
        self.encoder_out = encoder_out
        self.pad = self.model.decoder.dictionary.pad()
        device = next(self.model.parameters()).device
        self.tokens = torch.full((rows, capacity), self.pad, device=device)

    def features(self, window: Window) -> Tensor:
        """Tokens (N,) -> what the decoder's output layer gives for them, (N, V) logits unless the softmax is
        adaptive."""
        if window.end > self.tokens.size(1):
            self.tokens = F.pad(self.tokens, (0, window.end), value=self.pad)
        self.tokens[window.row_of, window.positions] = window.tokens
        # A stock decoder keeps its causal mask, which training needs again: it must not be an inference tensor.
        with torch.inference_mode(False), torch.no_grad():
            output: Any = self.model.decoder(
                self.tokens[:, : window.end], encoder_out=self.encoder_out
            )
        return output[0][window.row_of, window.positions]

    def logits(self, features: Tensor, temperature: float) -> Tensor:
        """(N, ...) -> (N, V) log-probabilities; the temperature divides the decoder's output, as in stock."""
        output = ((features / temperature).unsqueeze(0), None)
        return self.model.get_normalized_probs(output, log_probs=True, sample=None)[0]

    def move(self, places: Sequence[tuple[int, int, int]]) -> None:
        raise ValueError("a decoder that recomputes its prefix reads no trees")

    def propose(self, features: Tensor, block_size: int, *how: Any) -> tuple[Tensor, Tensor]:
        raise ValueError("a decoder that recomputes its prefix has no block heads")

    def keep_rows(self, rows: Sequence[int]) -> None:
        order = to_device(rows, self.tokens.device)
        self.tokens = self.tokens.index_select(0, order)
        self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, order)
