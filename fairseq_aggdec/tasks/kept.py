"""What a task's generators have learned, for the next call with the same options: fairseq's hub builds one per call."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.search.generator import CachedGenerator

MOST = 4  # generators of one task
LEARNED = ("budget", "device_loop")  # made with the first batch
DRAFTING = ("drafter", "foreteller", "texts")
PLAIN = (bool, int, float, str, bytes, enum.Enum, type(None))


def same_fields(one: Any, other: Any) -> bool:
    """Whether two stock generators, or parts of them, were built of equal values and of the same objects."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, nn.Module):
        return same_fields(vars(one), vars(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same_fields(value, other[name]) for name, value in one.items() if name != "src_lengths"
        )
    if isinstance(one, Tensor):
        return one.shape == other.shape and bool((one == other).all())
    return isinstance(one, (*PLAIN, list, tuple, set)) and bool(one == other)


@dataclass
class KeptGenerator:
    """One generator, and what it drafted with when it was built; the caller may have changed it since."""

    cfg: Settings
    stock: Any
    generator: CachedGenerator

    def __post_init__(self) -> None:
        own = vars(self.generator)
        self.drafting = {name: own[name] for name in DRAFTING if name in own}

    def precedes(self, other: KeptGenerator) -> bool:
        """Whether another one was built of the same options and models."""
        return (
            self.cfg == other.cfg
            and type(self.generator) is type(other.generator)
            and self.generator.verifier is other.generator.verifier
            and same_fields(self.stock, other.stock)
        )

    def laid_out_before(self, other: KeptGenerator) -> bool:
        """Whether it has another verifier of the same models in the same precision."""
        own, new = self.generator.verifier, other.generator.verifier
        models = [member.model for member in new.members]
        return own is not new and own.fits(models, new.precision)


class KeptGenerators:
    """The last generators of a task."""

    def __init__(self) -> None:
        self._records: list[KeptGenerator] = []

    def verifiers(self) -> list[Verifier]:
        """Those of the generators, the last one first."""
        return [record.generator.verifier for record in reversed(self._records)]

    def go_on(self, new: KeptGenerator, anew: Callable[[], Any]) -> None:
        """Gives a generator what the one before has learned that was built of the same options and models.

        ``anew`` builds one that shares nothing, for two that decode at the same time.
        """
        before = next((record for record in self._records if record.precedes(new)), None)
        if before is None:
            # Of a model that has been laid out anew the copy of before is of no use any more.
            alike = self._records
            alike = [record for record in alike if not record.laid_out_before(new)]
            self._records = [*alike[1 - MOST :], new]
            return
        self._records.remove(before)
        self._records.append(before)
        own = vars(before.generator)
        new.generator.__dict__.update(before.drafting, anew=anew)
        new.generator.__dict__.update({name: own[name] for name in LEARNED if name in own})
