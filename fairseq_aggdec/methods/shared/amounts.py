"""How much is drafted, of what and how: what the options say, checked against the models."""

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

from fairseq_aggdec.budget.account import (
    MOST_NODES,
    Account,
    LearnedAccount,
    NodeBudget,
)
from fairseq_aggdec.budget.batch_account import BatchAccount
from fairseq_aggdec.budget.copy_account import CopyAccount, FixedCopyAccount
from fairseq_aggdec.engine.int8 import int8_available
from fairseq_aggdec.engine.plain.support import decoder_gap
from fairseq_aggdec.kernels.library import reads
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder
from fairseq_aggdec.search.errors import refusal
from fairseq_aggdec.windows.draft import Proposing

logger = logging.getLogger(__name__)

# The tree that --acceptance top-beta takes where nothing is said of one.
RELAXED_NODES = 8


def blockwise_size(cfg: Any, models: Sequence[Any], option: str = "--decoding blockwise") -> int:
    """The block size of what ``option`` asks for, checked against the model.

    Raises:
        ValueError: no model with block heads, several models, or a block that is larger than the trained one.
    """
    if len(models) > 1:
        raise ValueError(f"{option} drafts with the heads of one model, --path names several")
    decoder = models[0].decoder
    if not isinstance(decoder, HeadedDecoder):
        raise ValueError(
            f"{option} needs a model with block heads (--arch blockwise_transformer); that of --path has none"
        )
    if gap := decoder_gap(decoder):
        raise ValueError(f"{option} needs the decoder of a stock Transformer, not {gap}")
    trained = int(decoder.heads.block_size)
    if cfg.block_size == "auto":
        return trained
    size = _size(cfg, trained, "the model was trained with {} heads")
    _check_least(cfg, size)
    return size


def drafted_size(cfg: Any, drafter: Any) -> Account:
    """How many tokens a non-autoregressive drafter drafts at once.

    Raises:
        ValueError: ``--block-size`` is no number and not (``--decoding gad``) ``auto``, or larger than the trained one.
    """
    size = trained = int(drafter.decoder.block_size)
    if cfg.block_size != "auto" or str(cfg.decoding) == "nar":
        size = _size(cfg, trained, "the drafter was trained with blocks of {} tokens")
        _check_least(cfg, size + 1)
    return choosing(cfg, size, on_gpu(drafter))


def with_what_pays(cfg: Any, models: Sequence[Any]) -> Any:
    """The options of a method whose model drafts, where nothing was said of how much.

    Only on CPU, where a call costs more the more it reads. Where the output does not depend on it: with the compiled
    kernels as much as pays, in 8 bits; in half precision, which these do not read, a block as long as pays. With
    ``--acceptance top-beta`` the output depends on it, so that no clock may decide: a small tree, of whose paths the
    verifier prefers its own, changes fewer sentences than a chain (docs/gad.md).
    """
    said = cfg.block_size is not None or cfg.draft_nodes is not None or cfg.strict
    if said or cfg.min_block_size > 1 or copies_first(cfg) or getattr(cfg, "eval_bleu", False):
        return cfg
    weights = [weight.detach() for model in models for weight in model.parameters()]
    if not all(weight.device.type == "cpu" for weight in weights):
        return cfg
    kernels = int8_available() and not cfg.no_weight_packing
    compiled = kernels and all(map(reads, weights))
    chosen = copy.copy(cfg)
    if str(cfg.acceptance) == "top-beta":
        chosen.draft_nodes, chosen.draft_int8 = str(RELAXED_NODES), cfg.draft_int8 or compiled
    elif str(cfg.acceptance) != "exact":
        return cfg
    elif compiled:
        chosen.draft_nodes, chosen.draft_int8 = "auto", True
    elif kernels:
        chosen.block_size = "auto"
    else:
        return cfg
    _say_what_was_chosen(chosen)
    return chosen


def _say_what_was_chosen(cfg: Any) -> None:
    options = {"--draft-nodes": cfg.draft_nodes, "--block-size": cfg.block_size}
    said = [f"{name} {value}" for name, value in options.items() if value]
    said += ["--draft-int8"] * bool(cfg.draft_int8)
    logger.info("nothing is said of how much is drafted, so: %s", " ".join(said))


def on_gpu(model: Any) -> bool:
    return bool(next(model.parameters()).is_cuda)


def choosing(cfg: Any, most: int, gpu: bool = False) -> Account:
    """How many of at most so many tokens are drafted: all, or with an option ``auto`` none where that does not pay.

    Behind a copy nothing says what an iteration without either would take: there ``auto`` is about how much, on a GPU
    all.
    """
    alone = str(cfg.decoding) == "iad" or not copies_first(cfg)
    learned = most and alone and "auto" in (cfg.block_size, cfg.draft_nodes)
    if not learned:
        return Account(most)
    return BatchAccount(most) if gpu else LearnedAccount(most)


def _check_least(cfg: Any, most: int) -> None:
    """``--min-block-size`` cannot ask for more tokens than an iteration yields at most."""
    if cfg.min_block_size > most:
        raise ValueError(
            f"--min-block-size {cfg.min_block_size}: an iteration yields at most {most} tokens"
        )


def copies_first(cfg: Any) -> bool:
    """Whether a method whose model drafts is to copy a text where that goes further.

    Raises:
        ValueError: a text that a second model would have to write.
    """
    kind = str(cfg.draft_from)
    if kind in ("interleaved", "lattice") or (kind == "heads" and str(cfg.decoding) == "gad"):
        reason = "its drafts are the model's own; source and file go with it"
        raise ValueError(refusal(f"--draft-from {kind}", str(cfg.decoding), reason))
    return kind in ("source", "file") or bool(cfg.draft_file)


def proposing(cfg: Any) -> Proposing:
    """How a model computes its drafts.

    Raises:
        ValueError: a negative number, or a method whose drafts are its output.
    """
    types, int8 = int(cfg.draft_vocabulary), bool(cfg.draft_int8)
    if types < 0:
        raise ValueError(f"--draft-vocabulary {types}: it must be at least 0")
    if (types or int8) and str(cfg.decoding) == "nar":
        option = "--draft-vocabulary" if types else "--draft-int8"
        raise ValueError(f"{option} needs a verifier, --decoding nar has none: use gad")
    if int8 and not int8_available():
        logger.warning("--draft-int8 has no effect without the compiled kernels")
        int8 = False
    return Proposing(types, int8 or bool(cfg.int8))


def drafted_nodes(cfg: Any, gpu: bool = False) -> NodeBudget | None:
    """How many tokens the tree of a draft has, or how many of a block are worth their cost; None for all of a block.

    On a GPU ``auto`` is about whole blocks: a tree is grown on the host, which takes longer there than it saves.

    Raises:
        ValueError: no positive number and not ``auto``, or a method whose drafts are its output.
    """
    if cfg.draft_nodes is None:
        learned = cfg.block_size == "auto" and str(cfg.decoding) in ("gad", "blockwise") and not gpu
        return NodeBudget(MOST_NODES, learned=True, branches=False) if learned else None
    given = str(cfg.draft_nodes)
    if str(cfg.decoding) == "nar":
        raise ValueError("--draft-nodes needs a verifier, --decoding nar has none: use gad")
    if given == "auto":
        return None if gpu else NodeBudget(MOST_NODES, learned=True)
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"--draft-nodes {given}: it must be at least 1, or auto")
    return NodeBudget(int(given))


def copied_length(cfg: Any) -> Callable[[], CopyAccount]:
    """Makes what says how long drafts of ``--decoding iad`` are.

    Raises:
        ValueError: ``--iad-draft-length`` is no positive number, not ``all`` and not ``auto``.
    """
    given = str(cfg.iad_draft_length)
    if given == "auto":
        return CopyAccount
    if given != "all" and (not given.isdecimal() or int(given) < 1):
        raise ValueError(f"--iad-draft-length {given}: it must be at least 1, or all, or auto")
    limit = None if given == "all" else int(given)
    return lambda: FixedCopyAccount(limit)


def _size(cfg: Any, trained: int, reason: str) -> int:
    if cfg.block_size in (None, "all"):
        return trained
    given = str(cfg.block_size)
    if not given.isdecimal() or not 1 <= int(given) <= trained:
        raise ValueError(f"--block-size {given}: {reason.format(trained)}, choose 1 to {trained}")
    return int(given)
