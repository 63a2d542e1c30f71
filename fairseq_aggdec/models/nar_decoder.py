"""The decoder of ``--arch nar_drafter``: a prefix of the target and k mask slots in, all k tokens at once out."""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerConfig, TransformerDecoder
from torch import Tensor, nn

from fairseq_aggdec.models.slot_chain import ChainedDecoder, SlotChain

BIDIRECTIONAL, CAUSAL = "bidirectional", "causal"  # --prefix-attention
ITSELF, NEXT = "itself", "next"  # --slot-predicts


class NarDecoder(ChainedDecoder, TransformerDecoder):
    """Predicts a block: target prefix and mask slots in, logits of the slots out.

    Call :meth:`slot_features`; stock ``forward``, a causal pass over plain tokens, has no use here.

    Attributes:
        block_size: k.
        mask_index: the token of a mask slot in the input, one past the dictionary.
        shift: 1 if a position predicts the token after it, 0 if the one in its own place.
        causal_prefix: a prefix position sees only positions to its left, so it can be cached; slots see all.
        mask_embedding: (C,), what a mask slot reads instead of a token's embedding, scaled like one.
        copy_query: W of the source copy, None without it.
        published: the form of the authors' models: positions are added before every layer instead of once, a mask slot
            is the source copy alone, and so is ``<unk>``, which is their mask.
    """

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding):
        cfg = TransformerConfig.from_namespace(args)
        self.block_size = int(cfg.block_size)
        longest = cfg.max_target_positions
        # The slots after the longest prefix have positions too.
        cfg.max_target_positions = longest + self.block_size
        super().__init__(cfg, dictionary, embed_tokens)
        cfg.max_target_positions = self.max_target_positions = longest
        self.published = bool(cfg.published_form)
        self.mask_index = len(dictionary)
        self.shift = int(cfg.slot_predicts == NEXT)
        self.causal_prefix = cfg.prefix_attention == CAUSAL
        self.attention_heads = cfg.decoder.attention_heads
        width = embed_tokens.embedding_dim
        self.mask_embedding = nn.Parameter(torch.empty(width).normal_(0, width**-0.5))
        self.mask_embedding.requires_grad_(not self.published)
        self.copy_query = None
        if cfg.src_embedding_copy:
            self.copy_query = nn.Linear(self.embed_dim, width, bias=False)
        self.chain = SlotChain(self.output_embed_dim, width) if cfg.slot_chain else None

    def max_positions(self) -> int:
        """Length of the longest target; the slots of a block have positions beyond it."""
        return int(self.max_target_positions)

    def slot_features(
        self,
        prefix_and_slots: Tensor,
        encoder_out: dict[str, Any],
        source_keys: Tensor | None,
        block_size: int,
    ) -> Tensor:
        """Features of the slots, (B, k, C), before the vocabulary projection (``output_layer``).

        Args:
            prefix_and_slots: (B, P + k) int64: prefixes without their ``</s>``, padded at the left, then the slots,
                each ``mask_index`` or (glancing) the token that it reveals.
            encoder_out: fairseq's encoder output.
            source_keys: (B, S, C) of :meth:`NarDrafterModel.source_keys`.
            block_size: k, at most the attribute of this name.
        """
        tokens = self._shifted(prefix_and_slots) if self.shift else prefix_and_slots
        x, positions = self._embed(tokens, encoder_out, source_keys)  # (B, P + k, C)
        padding = tokens.eq(self.padding_idx)
        hidden = self._hidden(padding, block_size) if self.causal_prefix else None
        x = x.transpose(0, 1)  # (P + k, B, C), as fairseq's layers have it
        memory_padding = encoder_out["encoder_padding_mask"]
        for layer in self.layers:
            if self.published:
                x = self.dropout_module(x + positions.transpose(0, 1))
            x, _, _ = layer(
                x,
                encoder_out["encoder_out"][0],
                memory_padding[0] if len(memory_padding) > 0 else None,
                self_attn_mask=hidden,
                self_attn_padding_mask=None if self.causal_prefix else padding,
            )
        x = x[-block_size:].transpose(0, 1)  # (B, k, C)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x

    def _shifted(self, prefix_and_slots: Tensor) -> Tensor:
        """One place to the right, behind ``</s>``, as a verifier reads its output: (B, P + k), the last slot unread."""
        # All padding is at the left.
        padding = prefix_and_slots.eq(self.padding_idx).sum(1, keepdim=True)
        tokens = F.pad(prefix_and_slots[:, :-1], (1, 0), value=self.padding_idx)
        return tokens.scatter(1, padding, self.dictionary.eos())

    def embed_slots(
        self, positions: Tensor | None, encoder_out: dict[str, Any], source_keys: Tensor | None
    ) -> Tensor:
        """Embeddings that mask slots read in place of a token's embedding, before positions are added.

        Args:
            positions: (B, W, C) position embeddings of the slots; only source copy reads them.
            encoder_out, source_keys: as for :meth:`slot_features`.

        Returns:
            (B, W, C), or (C,) without source copy.
        """
        mask = self.embed_scale * self.mask_embedding
        if self.copy_query is None:
            return mask
        assert positions is not None and source_keys is not None
        scores = torch.bmm(self.copy_query(positions), source_keys.transpose(1, 2)).float()
        padding = encoder_out["encoder_padding_mask"]
        if len(padding) > 0:
            scores = scores.masked_fill(padding[0].unsqueeze(1), -torch.inf)
        weights = scores.softmax(-1).type_as(source_keys)  # (B, W, S)
        copied = torch.bmm(weights, encoder_out["encoder_embedding"][0])
        return copied if self.published else mask + copied

    def _embed(
        self, tokens: Tensor, encoder_out: dict[str, Any], source_keys: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(B, T) -> what the first layer reads and the positions, (B, T, C) each."""
        masked = tokens.eq(self.mask_index)
        if self.published:
            masked |= tokens.eq(self.dictionary.unk())
        positions = self.embed_positions(tokens)
        x = self.embed_scale * self.embed_tokens(tokens.masked_fill(masked, self.padding_idx))
        slots = self.embed_slots(positions, encoder_out, source_keys)
        x = torch.where(masked.unsqueeze(-1), slots, x)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.published:
            return x, positions
        x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x), positions

    def _hidden(self, padding: Tensor, block_size: int) -> Tensor:
        """Mask of what each position does not see under a causal prefix: bool (B * heads, P + k, P + k)."""
        width = padding.size(1)
        place = torch.arange(width, device=padding.device)
        future = place > place.unsqueeze(1)
        future[width - block_size :] = False
        itself = torch.eye(width, dtype=torch.bool, device=padding.device)
        # Padding sees itself: a position that sees nothing would be NaN.
        hidden = (future | padding.unsqueeze(1)) & ~itself
        return hidden.repeat_interleave(self.attention_heads, dim=0)
