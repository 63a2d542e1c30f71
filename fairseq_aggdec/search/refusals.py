"""The sentences in which an option is refused that a search cannot honour."""

from collections.abc import Mapping
from typing import Any


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
