"""Tells how much is drafted, of what and how: what the options say, checked against the models."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fairseq_aggdec.budget.copy_length import CopyLength, FixedCopyLength
from fairseq_aggdec.budget.draft_length import (
    AUTO_NODES,
    AdaptiveDraftLength,
    DraftLength,
    NodeBudget,
)
from fairseq_aggdec.engine.int8 import int8_available
from fairseq_aggdec.engine.plain.support import decoder_gap
from fairseq_aggdec.engine.precision import computes_bf16, precision_name
from fairseq_aggdec.kernels.library import reads
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder

logger = logging.getLogger(__name__)

# The tree that --acceptance top-beta takes where nothing is said of one; the longest path where its length is chosen.
RELAXED_NODES, MOST_NODES = 8, 64


def blockwise_size(cfg: Settings, models: Sequence[Any]) -> int:
    """The block size of ``--decoding blockwise``, checked against the model."""
    if len(models) > 1:
        raise ValueError(
            "--decoding blockwise drafts with the heads of one model, --path names several"
        )
    decoder = models[0].decoder
    if not isinstance(decoder, HeadedDecoder):
        raise ValueError(
            "--decoding blockwise needs a model with block heads (--arch blockwise_transformer); that of --path has "
            "none"
        )
    if gap := decoder_gap(decoder):
        raise ValueError(
            f"--decoding blockwise needs the decoder of a stock Transformer, not {gap}"
        )
    return _size(cfg, int(decoder.heads.block_size), "the model was trained with {} heads", 0)


def drafted_size(cfg: Settings, drafter: Any) -> DraftLength:
    """Tells how many tokens a non-autoregressive drafter drafts at once."""
    trained = int(drafter.decoder.block_size)
    size = _size(cfg, trained, "the drafter was trained with blocks of {} tokens", 1)
    return choosing(cfg, size, drafter)


def _size(cfg: Settings, trained: int, reason: str, beside: int) -> int:
    """Tokens of a block; ``beside``: those that an iteration yields beside a drafted block."""
    text, size = cfg.draft_tokens, trained
    if text is not None and text not in ("all", "auto"):
        if not text.isdecimal() or not 1 <= int(text) <= trained:
            said = cfg.as_given("draft_tokens")
            raise ValueError(f"{said}: {reason.format(trained)}, choose 1 to {trained}")
        size = int(text)
    if cfg.acceptance.min_block_size > size + beside:
        raise ValueError(
            f"--acceptance {cfg.acceptance}: an iteration yields at most {size + beside} tokens"
        )
    return size


def with_what_pays(cfg: Settings, models: Sequence[Any]) -> Settings:
    """The options of a method whose model drafts, where nothing was said of how much.

    Only on CPU, where a call costs more the more it reads. Where the output does not depend on the amount: with the
    compiled kernels as much as pays, in 8 bits. In other half precision rounding depends on it, so every
    iteration drafts a whole block. With ``--acceptance top-beta`` the output depends on it as well: a small tree, of
    whose paths the verifier prefers its own, changes fewer sentences than a chain (docs/gad.md).
    """
    said = cfg.draft_tokens is not None or cfg.draft_tree is not None or cfg.strict
    if said or cfg.always_draft or cfg.eval_bleu or cfg.acceptance.min_block_size > 1:
        return cfg
    weights = [weight.detach() for model in models for weight in model.parameters()]
    if not all(weight.device.type == "cpu" for weight in weights):
        return cfg
    compiled = int8_available() and not cfg.low_memory
    compiled = compiled and (all(map(reads, weights)) or all(map(computes_bf16, weights)))
    int8 = cfg.int8 or ("drafts" if compiled else None)
    if cfg.acceptance.kind == "top-beta":
        chosen = replace(cfg, draft_tree=str(RELAXED_NODES), int8=int8)
    elif compiled and cfg.acceptance.kind == "exact":
        chosen = replace(cfg, draft_tree="auto", int8=int8)
    else:
        return cfg
    options = {"--draft-tree": chosen.draft_tree, "--int8": chosen.int8}
    words = " ".join(f"{name} {value}" for name, value in options.items() if value)
    logger.info("nothing is said of how much is drafted, so: %s", words)
    return chosen


def on_gpu(model: Any) -> bool:
    return bool(next(model.parameters()).is_cuda)


def choosing(cfg: Settings, most: int, model: Any) -> DraftLength:
    """Tells how many of at most so many tokens are drafted: all, or with an option ``auto`` none where that does not
    pay.

    What iterations cost has a say on a CPU, not on a GPU, which goes on without the host and where a wider window costs
    next to nothing. In half precision, which rounds by what is drafted, it is weighed once for a batch.
    """
    if not most or "auto" not in (cfg.draft_tokens, cfg.draft_tree):
        return DraftLength(most)
    return AdaptiveDraftLength(most, not on_gpu(model), per_batch=precision_name(model) != "fp32")


def drafts_in_int8(cfg: Settings) -> bool:
    """Tells whether a model computes its drafts in 8 bits."""
    if cfg.int8 == "drafts" and not int8_available():
        logger.warning("--int8 drafts has no effect without the compiled kernels")
        return False
    return cfg.int8 in ("drafts", "all")


def drafted_nodes(cfg: Settings, model: Any) -> NodeBudget | None:
    """Tells how many tokens the tree of a draft has, or how many of a block are worth their cost; None for all of a
    block.

    On a GPU ``auto`` is about whole blocks: a tree is grown on the host, which takes longer there than it saves.
    """
    text, gpu = cfg.draft_tree, on_gpu(model)
    if text is None:
        stops = cfg.draft_tokens == "auto" and not gpu
        return NodeBudget(MOST_NODES, stops=True, branches=False) if stops else None
    if text == "auto":
        return None if gpu else NodeBudget(AUTO_NODES, stops=True)
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{cfg.as_given('draft_tree')}: it must be at least 1, or auto")
    return NodeBudget(int(text))


def copied_length(cfg: Settings) -> Callable[[], CopyLength]:
    """Makes what says how long copied drafts are."""
    text = cfg.draft_tokens or "auto"
    if text == "auto":
        return CopyLength
    if text != "all" and (not text.isdecimal() or int(text) < 1):
        raise ValueError(f"{cfg.as_given('draft_tokens')}: it must be at least 1, or all, or auto")
    limit = None if text == "all" else int(text)
    return lambda: FixedCopyLength(limit)
