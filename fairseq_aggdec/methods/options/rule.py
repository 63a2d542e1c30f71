"""``--acceptance``: a rule and its parameters in one value, such as ``top-beta:3:1.0`` or ``top-k:2,min:2``."""

from dataclasses import dataclass, replace
from typing import Any

SYNTAX = "exact, top-beta:RANK:NATS, top-k:RANK or distance:N, and min:TOKENS alone or behind a comma (top-k:2,min:2)"


@dataclass(frozen=True)
class Rule:
    """Decides which drafted tokens are accepted.

    Attributes:
        kind: ``exact``, the verifier's own choice; ``top-beta``, one of its ``top_beta`` best that is at most
            ``tolerance`` nats behind the best; ``top-k``, one of its ``top_k`` best; ``distance``, a number at most
            ``epsilon`` away from its choice.
        min_block_size: tokens that an iteration yields at least.
    """

    kind: str = "exact"
    top_beta: int = 3
    tolerance: float = 1.0
    top_k: int = 2
    epsilon: int = 2
    min_block_size: int = 1

    @property
    def lossless(self) -> bool:
        return self.kind == "exact" and self.min_block_size <= 1

    def __str__(self) -> str:
        numbers = [str(getattr(self, name)) for name in PARAMETERS[self.kind]]
        least = [f"min:{self.min_block_size}"] if self.min_block_size > 1 else []
        words = [] if self.kind == "exact" and least else [":".join([self.kind, *numbers])]
        return ",".join(words + least)


# A rule -> its parameters, in their order. Those of a value's end may be left out.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "exact": (),
    "top-beta": ("top_beta", "tolerance"),
    "top-k": ("top_k",),
    "distance": ("epsilon",),
    "min": ("min_block_size",),
}
LEAST = {"top_beta": 1, "tolerance": 0, "top_k": 1, "epsilon": 0, "min_block_size": 1}
NOUNS = {
    "top_beta": "rank",
    "tolerance": "distance in nats",
    "top_k": "rank",
    "epsilon": "difference",
    "min_block_size": "number of tokens behind min",
}


def read_rule(text: str) -> Rule:
    """The rule that a value of ``--acceptance`` names.

    Raises:
        ValueError: a text of another form, or a parameter below its minimum; the message shows the form.

    >>> str(read_rule("min:2,top-k:4"))
    'top-k:4,min:2'
    """
    rule = Rule()
    kinds: set[str] = set()
    wrong = ValueError(f"--acceptance {text}: give {SYNTAX}")
    for item in text.split(","):
        kind, *numbers = item.strip().split(":")
        names = PARAMETERS.get(kind, ())
        twice = kind in kinds or (kind != "min" and kinds - {"min"})
        if kind not in PARAMETERS or twice or len(numbers) > len(names):
            raise wrong
        if kind == "min" and not numbers:
            raise wrong
        kinds.add(kind)
        values: dict[str, Any] = {} if kind == "min" else {"kind": kind}
        for name, number in zip(names, numbers, strict=False):
            try:
                values[name] = type(getattr(rule, name))(number)
            except ValueError:
                raise wrong from None
            check_least(name, values[name], f"--acceptance {text}: the {NOUNS[name]}")
        rule = replace(rule, **values)
    return rule


def check_least(name: str, value: Any, said: str) -> None:
    """Raises ``ValueError`` for a parameter that is too small; ``said`` is how it was given."""
    if not value >= LEAST[name]:
        raise ValueError(f"{said} must be at least {LEAST[name]}")
