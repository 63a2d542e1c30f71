"""Checks of every table: quality follows from the outputs, and outputs belong to their sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairseq_aggdec.bench.systems import label

Outputs = Mapping[int, Sequence[int]]  # sentence -> tokens


@dataclass
class Agreement:
    """Compares what is measured with what was measured before it.

    Args:
        measure: ``BLEU`` or ``F0.5``.
    """

    measure: str
    known: list[tuple[str, int, Outputs, float]] = field(default_factory=list)

    def add(self, system: str, batch_size: int, outputs: Outputs, quality: float | None) -> None:
        """Takes note of a system's outputs and their quality in points; None where there are no references.

        Raises:
            SystemExit: the same outputs had another quality, or the system's outputs of another batch size belong to
                other sentences.
        """
        if quality is None:
            return
        named = f"{label(system)} in batches of {batch_size}"
        for name, size, before, points in self.known:
            other = f"{label(name)} in batches of {size}"
            if outputs == before and abs(quality - points) > 1e-6:
                raise SystemExit(
                    f"error: {named} has {self.measure} {quality:.2f} and {other} {points:.2f} for the same outputs"
                )
            if name == system and f"{quality:.2f}" != f"{points:.2f}":
                moved = exchanged(before, outputs)
                if moved:
                    raise SystemExit(
                        f"error: {named}: {moved} sentences have outputs that belong to others in batches of {size}"
                    )
        self.known.append((system, batch_size, outputs, quality))


def exchanged(before: Outputs, after: Outputs) -> int:
    """Sentences that have changed their outputs with others, where most of what changed has done so; else 0.

    A tie that rounding decides otherwise in another batch gives a sentence an output that no other had.
    """
    changed = [s for s in before.keys() & after.keys() if before[s] != after[s]]
    others = {tuple(before[sentence]) for sentence in changed}
    moved = sum(tuple(after[sentence]) in others for sentence in changed)
    return moved if moved > 1 and 2 * moved > len(changed) else 0
