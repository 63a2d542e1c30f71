"""Which generation options a method can honour: everything else is refused before a sentence is decoded."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.decoding.acceptance import Acceptance, at_least, distance, exact, top_beta
from fairseq_aggdec.decoding.block_size import (
    MOST_NODES,
    BlockSize,
    FixedBlockSize,
    LearnedBlockSize,
    NodeBudget,
)
from fairseq_aggdec.decoding.config import DecodingConfig
from fairseq_aggdec.decoding.draft import Proposing
from fairseq_aggdec.decoding.int8 import int8_available
from fairseq_aggdec.decoding.support import decoder_gap
from fairseq_aggdec.drafters.draft_length import DraftLength, FixedDraftLength
from fairseq_aggdec.kernels.library import reads
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder
from fairseq_aggdec.models.lattice_transformer import MarkovDecoder

logger = logging.getLogger(__name__)


def refuse_unsupported(args: Any, extra: Mapping[str, Any], decoding: str) -> None:
    """Raises ``ValueError`` with one sentence for an option that ``decoding`` cannot honour.

    Args:
        args: fairseq's generation options (any of them may be missing, as with ``--eval-bleu-args``).
        extra: what ``fairseq-generate`` hands to the generator beside them (the language model).
        decoding: the method.
    """

    def given(name: str, default: Any) -> Any:
        return getattr(args, name, default)

    refused = {
        "--nbest": given("nbest", 1) > 1,
        "--sampling": given("sampling", False),
        "--diverse-beam-groups": given("diverse_beam_groups", -1) > 0,
        "--diversity-rate": given("diversity_rate", -1.0) > -1,
        "--constraints": bool(given("constraints", None)),
        "--lm-path": given("lm_path", None) is not None or extra.get("lm_model") is not None,
        "--retain-dropout": given("retain_dropout", False),
        "prefix_allowed_tokens_fn": given("prefix_allowed_tokens_fn", None) is not None,
    }
    for option, wanted in refused.items():
        if wanted:
            raise ValueError(
                f"{option} does not go with --decoding {decoding}, which finds one greedy hypothesis: "
                "use --decoding stock"
            )
    size = given("no_repeat_ngram_size", 0)
    if size < 0:
        raise ValueError(f"--no-repeat-ngram-size {size}: it must be at least 0")
    if given("match_source_len", False) and given("unkpen", 0) < 0:
        option = "--unkpen below 0 with --match-source-len"
        reason = "it lets <unk> outgrow the source in stock; use --decoding stock"
        raise ValueError(refusal(option, decoding, reason))


def beam_gap(args: Any, extra: Mapping[str, Any], models: Sequence[Any]) -> str | None:
    """What keeps beam search over trees from giving what stock gives, None when nothing does.

    Args:
        args: fairseq's generation options (any of them may be missing, as with ``--eval-bleu-args``).
        extra: what the caller hands to the generator beside them.
        models: those of ``--path``.
    """
    given = {
        "--sampling": getattr(args, "sampling", False),
        "--diverse-beam-groups": getattr(args, "diverse_beam_groups", -1) > 0,
        "--diversity-rate": getattr(args, "diversity_rate", -1.0) > -1,
        "--constraints": bool(getattr(args, "constraints", None)),
        "--lm-path": getattr(args, "lm_path", None) is not None or extra.get("lm_model"),
        "--retain-dropout": getattr(args, "retain_dropout", False),
        "tokens_to_suppress": extra.get("tokens_to_suppress"),
    }
    for option, wanted in given.items():
        if wanted:
            return option
    for model in models:
        decoder = model.decoder
        if gap := decoder_gap(decoder):
            return gap
        if getattr(args, "beam", 5) >= len(decoder.dictionary) - 1:
            # Where </s> may come first, stock then goes on with the hypothesis that it ended.
            return "a beam as large as the vocabulary"
        if getattr(decoder, "geometry", Geometry()) != Geometry():
            return "a model that writes several words per step"
        if getattr(decoder, "attention_span", None) is not None:
            return "local attention"
    return None


def refuse_slots(models: Sequence[Any], decoding: str) -> None:
    """Raises ``ValueError`` where a model was not trained to write word by word, which only its own search can read.

    Such a model writes several words per step, or scores the edges of a lattice.
    """
    for model in models:
        if isinstance(model.decoder, MarkovDecoder):
            raise ValueError(
                f"a model of --arch lattice_transformer does not go with --decoding {decoding}: use --decoding lattice"
            )
        geometry = getattr(model.decoder, "geometry", Geometry())
        if geometry != Geometry():
            raise ValueError(
                f"a model with --directions {geometry.directions} --words-per-direction "
                f"{geometry.words_per_direction} does not go with --decoding {decoding}: use --decoding interleaved"
            )


def refusal(option: str, decoding: str, reason: str) -> str:
    return f"{option} does not go with --decoding {decoding}: {reason}"


def refuse(decoding: str, reasons: Mapping[str, str], args: Any, extra: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` with one sentence for the first option that a search of another kind cannot honour.

    Args:
        decoding: the method.
        reasons: name of an option -> why not.
        args: fairseq's generation options (any of them may be missing, as with ``--eval-bleu-args``).
        extra: what ``fairseq-generate`` hands to the generator beside them (the language model).
    """
    unset = {"diverse_beam_groups": -1, "diversity_rate": -1.0}
    for name, reason in reasons.items():
        value = getattr(args, name, None)
        if value and value != unset.get(name):
            raise ValueError(refusal("--" + name.replace("_", "-"), decoding, reason))
    if extra.get("lm_model") is not None:
        raise ValueError(refusal("--lm-path", decoding, reasons["lm_path"]))


def set_greedy_beam(args: Any, decoding: str) -> None:
    """Sets ``--beam`` to 1, which is what the method gives, and says so once."""
    beam = getattr(args, "beam", 5)
    if beam != 1:
        logger.info(
            "--decoding %s is greedy: --beam %d is taken as --beam 1; --decoding beam searches and drafts as well "
            "(--draft-from)",
            decoding,
            beam,
        )
    args.beam = 1


def announce_ngram_blocking(args: Any) -> None:
    size = getattr(args, "no_repeat_ngram_size", 0)
    if size > 0:
        logger.info(
            "--no-repeat-ngram-size %d is enforced here; stock fairseq without its CUDA extension ignores it, "
            "so outputs may differ from --decoding stock",
            size,
        )


HEADS = "beam over block heads"
# Options that only some methods read: name -> (what it is when it was not given, the methods).
USED_BY: dict[str, tuple[Any, tuple[str, ...]]] = {
    "block_size": (None, ("gad", "nar", "blockwise", HEADS)),
    "draft_nodes": (None, ("gad", "blockwise")),
    "draft_vocabulary": (0, ("gad", "blockwise", HEADS)),
    "draft_int8": (False, ("gad", "blockwise", HEADS)),
    "strict": (0, ("greedy", "iad", "gad", "blockwise", "beam")),
    "int8": (False, ("greedy", "iad", "gad", "nar", "blockwise", "beam")),
    "drafter_path": (None, ("gad", "nar", "iad", "beam")),
    "acceptance": ("exact", ("iad", "gad", "blockwise")),
    "min_block_size": (1, ("iad", "gad", "blockwise")),
    "iad_draft_length": ("auto", ("iad", "gad", "blockwise")),
    "draft_from": ("auto", ("iad", "gad", "blockwise", "beam")),
    "draft_file": (None, ("iad", "gad", "blockwise", "beam")),
    "end_condition": ("first", ("interleaved",)),
    "stop_rule": ("stock", ("interleaved",)),
    "length_penalty": ("fairseq", ("interleaved",)),
    "dedup": (0, ("interleaved",)),
}


def announce_unused(cfg: DecodingConfig) -> None:
    """Says which of the given options the method does not read."""
    decoding = str(cfg.decoding)
    kinds = {decoding, HEADS} if str(cfg.draft_from) == "heads" else {decoding}
    for name, (unset, methods) in USED_BY.items():
        value = getattr(cfg, name)
        if kinds.isdisjoint(methods) and value is not None and str(value) != str(unset):
            option = "--" + name.replace("_", "-")
            logger.warning("%s has no effect with --decoding %s", option, decoding)


def acceptance_rule(cfg: DecodingConfig, first_number: int | None) -> Acceptance:
    """The rule that the options ask for; says once when it is not lossless.

    Args:
        cfg: the decoding options.
        first_number: index of the first symbol that is a number, None in a task without numbers.

    Raises:
        ValueError: a value that makes no sense, or ``distance`` without numbers; names the option.
    """
    at_least_one = {"top_beta": 1, "top_k": 1, "min_block_size": 1, "epsilon": 0, "tolerance": 0}
    for name, least in at_least_one.items():
        if getattr(cfg, name) < least:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} {getattr(cfg, name)}: it must be at least {least}")
    kind = str(cfg.acceptance)
    if kind == "distance" and first_number is None:
        raise ValueError(
            "--acceptance distance needs a task whose symbols are numbers, such as super_resolution"
        )
    if str(cfg.decoding) == "nar" and (kind != "exact" or cfg.min_block_size > 1):
        option = "--min-block-size above 1" if kind == "exact" else f"--acceptance {kind}"
        raise ValueError(f"{option} needs a verifier, --decoding nar has none: use gad")
    if str(cfg.decoding) != "greedy" and (kind != "exact" or cfg.min_block_size > 1):
        logger.info(
            "--acceptance %s with --min-block-size %d is not lossless: outputs may differ from --beam 1",
            kind,
            cfg.min_block_size,
        )
    rules = {
        "exact": lambda: exact,
        "top-beta": lambda: top_beta(cfg.top_beta, cfg.tolerance),
        "top-k": lambda: top_beta(cfg.top_k),
        "distance": lambda: distance(cfg.epsilon, first_number or 0),
    }
    return at_least(cfg.min_block_size, rules[kind]())


def blockwise_size(
    cfg: DecodingConfig, models: Sequence[Any], option: str = "--decoding blockwise"
) -> int:
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


def drafted_size(cfg: DecodingConfig, drafter: Any) -> BlockSize:
    """How many tokens a non-autoregressive drafter drafts at once.

    Raises:
        ValueError: ``--block-size`` is no number and not (``--decoding gad``) ``auto``, or larger than the trained one.
    """
    size = trained = int(drafter.decoder.block_size)
    if cfg.block_size != "auto" or str(cfg.decoding) == "nar":
        size = _size(cfg, trained, "the drafter was trained with blocks of {} tokens")
        _check_least(cfg, size + 1)
    return choosing(cfg, size)


def with_what_pays(cfg: DecodingConfig, models: Sequence[Any]) -> DecodingConfig:
    """The options of a method whose model drafts, where nothing was said of how much: as much as pays, in 8 bits.

    Only where the output does not depend on it, and where a call is known to cost more the more it reads: fp32 on CPU
    with the compiled kernels.
    """
    said = cfg.block_size is not None or cfg.draft_nodes is not None or cfg.strict
    relaxed = str(cfg.acceptance) != "exact" or cfg.min_block_size > 1
    if said or relaxed or copies_first(cfg) or getattr(cfg, "eval_bleu", False):
        return cfg
    if cfg.no_weight_packing or not int8_available():
        return cfg
    if not all(reads(weight.detach()) for model in models for weight in model.parameters()):
        return cfg
    chosen = copy.copy(cfg)
    chosen.draft_nodes, chosen.draft_int8 = "auto", True
    return chosen


def choosing(cfg: DecodingConfig, most: int) -> BlockSize:
    """How many of at most so many tokens are drafted: all, or with an option ``auto`` what pays, which may be none."""
    if most and cfg.block_size == "auto":
        return LearnedBlockSize(most)
    if most and cfg.draft_nodes == "auto":
        return LearnedBlockSize(most, whole=True)
    return FixedBlockSize(most)


def _check_least(cfg: DecodingConfig, most: int) -> None:
    """``--min-block-size`` cannot ask for more tokens than an iteration yields at most."""
    if cfg.min_block_size > most:
        raise ValueError(
            f"--min-block-size {cfg.min_block_size}: an iteration yields at most {most} tokens"
        )


def copies_first(cfg: DecodingConfig) -> bool:
    """Whether a method whose model drafts is to copy a text where that goes further.

    Raises:
        ValueError: a text that a second model would have to write.
    """
    kind = str(cfg.draft_from)
    if kind in ("interleaved", "lattice") or (kind == "heads" and str(cfg.decoding) == "gad"):
        reason = "its drafts are the model's own; source and file go with it"
        raise ValueError(refusal(f"--draft-from {kind}", str(cfg.decoding), reason))
    return kind in ("source", "file") or bool(cfg.draft_file)


def proposing(cfg: DecodingConfig) -> Proposing:
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


def strict_width(cfg: DecodingConfig) -> int:
    """Slots of every row in every window, 0 where windows are as large as what they hold.

    Raises:
        ValueError: fewer than a window with a draft needs, or an option that shapes windows otherwise.
    """
    if cfg.strict and cfg.strict < 2:
        raise ValueError(f"--strict {cfg.strict}: it must be at least 2, or 0")
    if cfg.strict and cfg.int8:
        raise ValueError("--strict does not go with --int8, whose outputs agree without it")
    return int(cfg.strict)


def drafted_nodes(cfg: DecodingConfig) -> NodeBudget | None:
    """How many tokens the tree of a draft has, None where drafts do not branch.

    Raises:
        ValueError: no positive number and not ``auto``, or a method whose drafts are its output.
    """
    if cfg.draft_nodes is None:
        return None
    given = str(cfg.draft_nodes)
    if str(cfg.decoding) == "nar":
        raise ValueError("--draft-nodes needs a verifier, --decoding nar has none: use gad")
    if given == "auto":
        return NodeBudget(MOST_NODES, learned=True)
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"--draft-nodes {given}: it must be at least 1, or auto")
    return NodeBudget(int(given))


def copied_length(cfg: DecodingConfig) -> Callable[[], DraftLength]:
    """Makes what says how long drafts of ``--decoding iad`` are.

    Raises:
        ValueError: ``--iad-draft-length`` is no positive number, not ``all`` and not ``auto``.
    """
    given = str(cfg.iad_draft_length)
    if given == "auto":
        return DraftLength
    if given != "all" and (not given.isdecimal() or int(given) < 1):
        raise ValueError(f"--iad-draft-length {given}: it must be at least 1, or all, or auto")
    limit = None if given == "all" else int(given)
    return lambda: FixedDraftLength(limit)


def announce_int8(cfg: DecodingConfig) -> None:
    """Says once what ``--int8`` means."""
    if cfg.int8:
        logger.info(
            "--int8: the output is that of the model in 8 bits, which says something else in some sentences"
        )
        if not int8_available():
            logger.warning("--int8 is slow here: the compiled kernels were not built")


def _size(cfg: DecodingConfig, trained: int, reason: str) -> int:
    if cfg.block_size in (None, "all"):
        return trained
    given = str(cfg.block_size)
    if not given.isdecimal() or not 1 <= int(given) <= trained:
        raise ValueError(f"--block-size {given}: {reason.format(trained)}, choose 1 to {trained}")
    return int(given)
