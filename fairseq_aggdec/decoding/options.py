"""Which generation options a method can honour: everything else is refused before a sentence is decoded."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_aggdec.decoding.acceptance import Acceptance, at_least, distance, exact, top_beta
from fairseq_aggdec.decoding.block_size import BlockSize, FixedBlockSize, LearnedBlockSize
from fairseq_aggdec.decoding.config import DecodingConfig
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder

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
                "use --decoding beam"
            )
    if given("match_source_len", False) and given("unkpen", 0) < 0:
        option = "--unkpen below 0 with --match-source-len"
        reason = "it lets <unk> outgrow the source in stock; use --decoding beam"
        raise ValueError(refusal(option, decoding, reason))


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
        logger.info("--decoding %s is greedy: --beam %d is taken as --beam 1", decoding, beam)
    args.beam = 1


def announce_ngram_blocking(args: Any) -> None:
    size = getattr(args, "no_repeat_ngram_size", 0)
    if size > 0:
        logger.info(
            "--no-repeat-ngram-size %d is enforced here; stock fairseq without its CUDA extension ignores it, "
            "so outputs may differ from --decoding beam",
            size,
        )


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
    if str(cfg.decoding) == "nar" and kind != "exact":
        raise ValueError(f"--acceptance {kind} needs a verifier, --decoding nar has none: use gad")
    if kind != "exact" or cfg.min_block_size > 1:
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


def blockwise_size(cfg: DecodingConfig, models: Sequence[Any]) -> int:
    """The block size of ``--decoding blockwise``, checked against the model.

    Raises:
        ValueError: no model with block heads, several models, or a block that is larger than the trained one.
    """
    if len(models) > 1:
        raise ValueError(
            "--decoding blockwise drafts with the heads of one model, --path names several"
        )
    decoder = models[0].decoder
    if not isinstance(decoder, HeadedDecoder):
        raise ValueError(
            "--decoding blockwise needs a model with block heads (--arch blockwise_transformer); that of --path "
            "has none"
        )
    return _size(cfg, decoder.heads.block_size, "the model was trained with {} heads")


def drafted_size(cfg: DecodingConfig, drafter: Any) -> BlockSize:
    """How many tokens a non-autoregressive drafter drafts at once.

    Raises:
        ValueError: ``--block-size`` is no number and not (``--decoding gad``) ``auto``, or larger than the trained one.
    """
    trained = drafter.decoder.block_size
    if cfg.block_size == "auto" and str(cfg.decoding) == "gad":
        return LearnedBlockSize(trained)
    return FixedBlockSize(_size(cfg, trained, "the drafter was trained with blocks of {} tokens"))


def draft_types(cfg: DecodingConfig) -> int:
    """Among how many first types of the dictionary a model drafts; 0: all.

    Raises:
        ValueError: a negative number, or a method whose drafts are its output.
    """
    types = int(cfg.draft_vocabulary)
    if types < 0:
        raise ValueError(f"--draft-vocabulary {types}: it must be at least 0")
    if types and str(cfg.decoding) == "nar":
        raise ValueError("--draft-vocabulary needs a verifier, --decoding nar has none: use gad")
    return types


def _size(cfg: DecodingConfig, trained: int, reason: str) -> int:
    if cfg.block_size is None:
        return trained
    given = str(cfg.block_size)
    if not given.isdecimal() or not 1 <= int(given) <= trained:
        raise ValueError(f"--block-size {given}: {reason.format(trained)}, choose 1 to {trained}")
    return int(given)
