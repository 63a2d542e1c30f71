"""``--variant key=value[,key=value]``: choices that reproduce a printed variant of one paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Variant:
    """A key of ``--variant``: its default, what it chooses, the values there are; none: any of the default's type."""

    default: Any
    help: str
    choices: tuple[str, ...] = ()


VARIANTS: dict[str, Variant] = {
    "iad-match": Variant(
        "aligned",
        "where copying goes on after an edit: at a suffix of the output that occurs once in the text (unique, as in "
        "the paper), at its first occurrence (longest), at the next one after the last copied token (recent), or "
        "there and, where no suffix occurs, behind the rejected token (aligned)",
        ("aligned", "unique", "longest", "recent"),
    ),
    "draft-vocabulary": Variant(
        0, "gad, blockwise: draft among the first N types of the target dictionary; 0: among all"
    ),
    "end-condition": Variant(
        "first",
        "interleaved: a hypothesis ends with the first </s> of a step (as in the paper), or when all words behind it "
        "are </s>",
        ("first", "all"),
    ),
    "stop-rule": Variant(
        "stock",
        "interleaved: endings that stop the search: among the best continuations of the sentence (stock), or of any "
        "hypothesis (any, as in Algorithm 1 of the paper)",
        ("stock", "any"),
    ),
    "length-penalty": Variant(
        "fairseq",
        "interleaved: scores are divided by length ** --lenpen (fairseq) or ((5 + length) / 6) ** --lenpen (gnmt, as "
        "in the authors' code)",
        ("fairseq", "gnmt"),
    ),
    "dedup": Variant(
        0,
        "interleaved: an n-gram of up to N words that directly repeats itself is written once; 0: never",
    ),
    "lattice-candidates": Variant(
        64, "candidates for each target position; with 1 no model is asked"
    ),
    "lattice-least-probability": Variant(
        0.005, "candidates below this probability are not scored; 0 scores all, as in the paper"
    ),
    "lattice-length-window": Variant(
        3, "lengths are searched that differ from the predicted one by at most this"
    ),
    "lattice-smoothing": Variant(
        "interpolated",
        "probabilities of candidates as counted (none, as in the paper) or mixed with coarser counts",
        ("none", "interpolated"),
    ),
    "lattice-normalise": Variant(
        "candidates",
        "the probabilities of an edge add up to 1 over the candidates of its position or over the vocabulary (slower)",
        ("candidates", "vocabulary"),
    ),
    "lattice-search": Variant(
        "serial",
        "Viterbi search position by position (serial) or as a tree of logarithmic depth (scan); same output",
        ("serial", "scan"),
    ),
}

SWITCHES = {"true": True, "1": True, "false": False, "0": False}
# Options that only one method reads, and drafts that a model of it writes.
OF_LATTICE = {"lattice", *(key.replace("-", "_") for key in VARIANTS if key.startswith("lattice-"))}
OF_INTERLEAVED = {"end_condition", "stop_rule", "length_penalty", "dedup"}


def read_variants(text: str) -> dict[str, Any]:
    """The values that a text such as ``dedup=2,stop-rule=any`` gives, by key; of several for one key the last.

    Raises:
        ValueError: a key or a value that there is not; the message lists the right ones.

    >>> read_variants("dedup=2, stop-rule=any")
    {'dedup': 2, 'stop-rule': 'any'}
    """
    found: dict[str, Any] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in VARIANTS:
            raise ValueError(
                f"--variant {item}: give key=value with a key of {', '.join(VARIANTS)}"
            )
        found[key] = variant_value(key, value, f"--variant {item}")
    return found


def joined(values: Mapping[str, Any]) -> str:
    """The text that :func:`read_variants` reads as these values."""
    return ",".join(f"{key}={value}" for key, value in values.items())


def variant_value(key: str, value: Any, said: str) -> Any:
    """A value of a key in the key's type; ``said``: how it was given, for the message of a ``ValueError``."""
    variant = VARIANTS[key]
    if variant.choices and str(value) not in variant.choices:
        raise ValueError(f"{said}: choose {' or '.join(variant.choices)}")
    return typed(variant.default, value, said)


def typed(default: Any, value: Any, said: str) -> Any:
    """A value, of whatever type, in the type of the default; a text where that is None. ``said`` as above."""
    kind = type(default)
    try:
        if kind is bool:
            return SWITCHES[str(value).lower()]
        if kind not in (int, float):
            return str(value)
        found = kind(value)
        if kind is int and isinstance(value, float) and found != value:
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"{said}: give {wanted}") from None
    return found
