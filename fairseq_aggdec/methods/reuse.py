"""Drafters and draft budgets of earlier generators, reused by later ones: fairseq's hub builds a generator per call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairseq_aggdec.methods.options.settings import Settings

if TYPE_CHECKING:
    from fairseq_aggdec.engine.verifier import Verifier
    from fairseq_aggdec.search.generator import CachedGenerator

MOST = 4  # generators of one task
DRAFTING = ("drafter", "texts")


@dataclass
class ReusableGenerator:
    """A generator with the plugin's options that it was built from.

    Attributes:
        options: fairseq's when it was built, and ``drafting``, its drafters; the caller may have changed both since.
    """

    cfg: Settings
    generator: CachedGenerator

    def __post_init__(self) -> None:
        self.options = self.generator.options
        attributes = vars(self.generator)
        self.drafting = {name: attributes[name] for name in DRAFTING if name in attributes}

    def built_like(self, other: ReusableGenerator) -> bool:
        """Tells whether another one was built of the same options and models."""
        return (
            self.cfg == other.cfg
            and type(self.generator) is type(other.generator)
            and self.generator.verifier is other.generator.verifier
            and self.options == other.options
        )

    def is_outdated_by(self, other: ReusableGenerator) -> bool:
        """Tells whether the other one has a newer packed copy of the same models in the same precision."""
        old, new = self.generator.verifier, other.generator.verifier
        models = [member.model for member in new.members]
        return old is not new and old.is_for(models, new.precision)


class ReusableGenerators:
    """The last generators of a task, :data:`MOST` at most."""

    def __init__(self) -> None:
        self._records: list[ReusableGenerator] = []

    def verifiers(self) -> list[Verifier]:
        """Verifiers of the generators, the last one first."""
        return [record.generator.verifier for record in reversed(self._records)]

    def pass_on(self, new: ReusableGenerator, anew: Callable[[], Any]) -> None:
        """Gives a new generator the drafters and budgets of an earlier one with the same options and models.

        Args:
            anew: builds a generator that shares nothing, for a second thread that decodes at the same time.
        """
        before = next((record for record in self._records if record.built_like(new)), None)
        if before is None:
            current = [record for record in self._records if not record.is_outdated_by(new)]
            self._records = [*current[1 - MOST :], new]
            return
        self._records.remove(before)
        self._records.append(before)
        memory = before.generator.memory
        new.generator.__dict__.update(before.drafting, anew=anew, memory=memory)
