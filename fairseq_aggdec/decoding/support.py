"""What the fast layers can represent: checks that name the first thing they can not."""

from collections.abc import Sequence
from typing import Any

from fairseq.modules import LearnedPositionalEmbedding, MultiheadAttention
from torch import nn


def overridden(module: nn.Module, base: type, methods: Sequence[str]) -> str | None:
    """Names the first of ``methods`` that the class of ``module`` defines anew over ``base``, None if none."""
    for method in methods:
        if getattr(type(module), method) is not getattr(base, method):
            return f"{type(module).__name__} has a {method}() of its own"
    return None


def can_read(encoder: Any, length: int) -> bool:
    """Whether sources of ``length`` tokens have positions in ``encoder``; sinusoids have no last one."""
    positions = getattr(encoder, "embed_positions", None)
    return (
        not isinstance(positions, LearnedPositionalEmbedding) or length <= encoder.max_positions()
    )


def attention_gap(attention: Any) -> str | None:
    """What keeps a fairseq attention module from being computed as plain softmax(QK/sqrt(d))V, None if nothing."""
    if not isinstance(attention, MultiheadAttention):
        return f"attention of type {type(attention).__name__}"
    if gap := overridden(attention, MultiheadAttention, ("forward",)):
        return gap
    if attention.bias_k is not None or attention.add_zero_attn:
        return "attention with extra key positions (add_bias_kv, add_zero_attn)"
    if getattr(attention, "use_xformers", False):
        return "xformers attention"
    for projection in (
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.out_proj,
    ):
        if type(projection) is not nn.Linear:
            return f"attention projections of type {type(projection).__name__}"
    return None
