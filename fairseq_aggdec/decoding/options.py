"""Which generation options a method can honour: everything else is refused before a sentence is decoded."""

import logging
from collections.abc import Mapping
from typing import Any

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
