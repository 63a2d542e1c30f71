"""``--print-alignment``: hypotheses with the attention of the model that wrote them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.options.hypotheses import Hypothesis
from fairseq_aggdec.search.generator import CachedGenerator


class WithAttention(CachedGenerator):
    """Mixed in before a generator: adds the attention that stock gathers step by step, from one forced pass."""

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        hypotheses = super()._generate(sample, prefix_tokens, constraints, bos_token)
        flat = [hypothesis for ranked in hypotheses for hypothesis in ranked]
        if all(hypothesis["attention"].numel() for hypothesis in flat):
            return hypotheses  # of stock fairseq
        _, _, previous, _ = self._prepare_batch_for_alignment(sample, hypotheses)
        if bos_token is not None:
            previous[:, 0] = bos_token
        for hypothesis, weights in zip(flat, self._attention(sample, previous), strict=True):
            length = len(hypothesis["tokens"])
            hypothesis["attention"] = weights[:length].transpose(0, 1).clone()
        return hypotheses

    def _attention(self, sample: dict[str, Any], previous: Tensor) -> Tensor:
        """(B * beam, T, S): as each step of stock decoding has it, the last layer's, averaged over heads and models.

        A model with an alignment layer of its own (``transformer_align``) shows that to a pass of the whole model only.
        """
        batch = len(sample["net_input"]["src_tokens"])
        order = torch.arange(batch, device=previous.device).repeat_interleave(self.beam_size)
        encoder_outs = self.model.forward_encoder(sample["net_input"])
        encoder_outs = self.model.reorder_encoder_out(encoder_outs, order)
        models = self.model.models
        outputs = [
            model.decoder(previous, encoder_out=encoder_out)
            for model, encoder_out in zip(models, encoder_outs, strict=True)
        ]
        attentions = [
            attention for attention in map(_attention_in, outputs) if attention is not None
        ]
        # A model that shows none counts as zeros in stock, unless none shows any.
        return torch.stack(attentions or [attention_of(models[0], outputs[0])]).sum(0) / len(
            outputs
        )


def _attention_in(output: Sequence[Any]) -> Tensor | None:
    """(B, T, S) in what a model or its decoder returns: a tensor, or under ``attn`` a tensor or a list of them."""
    attention = output[1] if len(output) > 1 else None
    if isinstance(attention, Mapping):
        attention = attention.get("attn")
    if isinstance(attention, Sequence):
        attention = attention[0] if attention else None
    return attention if isinstance(attention, Tensor) else None


def attention_of(model: Any, output: Sequence[Any]) -> Tensor:
    """(B, T, S) in what a model or its decoder returns.

    Raises:
        ValueError: it holds none.
    """
    attention = _attention_in(output)
    if attention is None:
        raise ValueError(
            f"--print-alignment reads attention to the source, which the {type(model.decoder).__name__} of this model "
            "does not show: leave the option out"
        )
    return attention
