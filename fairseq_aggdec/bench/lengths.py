"""Speed by source length, of systems that were timed one sentence at a time; tokens are counted without ``</s>``."""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_aggdec.bench.systems import label
from fairseq_aggdec.bench.timing import Measurement
from fairseq_aggdec.records.results import cell


@dataclass
class Span:
    """Speed of one system on the sentences of one bin of source length.

    Attributes:
        shortest, longest: source of the bin, in tokens.
        seconds: of all sentences of the bin.
        speedup: name of a baseline -> its time over this one.
    """

    shortest: int
    longest: int
    sentences: int
    seconds: float
    speedup: dict[str, float]

    @property
    def tokens(self) -> str:
        """Lengths of the bin as a table names them."""
        return f"{self.shortest} to {self.longest}"


def source_tokens(batches: Sequence[dict[str, Any]]) -> list[int]:
    """Source length of each batch, which has one sentence."""
    return [int(sample["net_input"]["src_lengths"]) - 1 for sample in batches]


def bins(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Indices of the lengths, shortest first, in at most ``count`` bins of about equal size.

    Equal lengths are in the same bin, so that no length has two columns.

    >>> bins([7, 3, 9, 3], 2)
    [[1, 3], [0, 2]]
    """
    ordered = sorted(lengths)

    def bin_of(index: int) -> int:
        # Sum of the first and the last rank of this length: twice their middle.
        ranks = bisect_left(ordered, lengths[index]) + bisect_right(ordered, lengths[index])
        return count * ranks // (2 * len(ordered))

    indices = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [list(group) for _, group in itertools.groupby(indices, bin_of)]


def span(
    measured: Mapping[str, Measurement],
    name: str,
    baselines: Sequence[str],
    lengths: Sequence[int],
    indices: Sequence[int],
) -> Span:
    """Speed of the system ``name`` in one of the :func:`bins`.

    Args:
        measured: by the name of the system, one sentence a batch, in the order of ``lengths``.
        indices: of the bin.
    """
    seconds = {one: sum(measured[one].seconds[i] for i in indices) for one in {name, *baselines}}
    ratios = {base: seconds[base] / seconds[name] for base in baselines}
    return Span(lengths[indices[0]], lengths[indices[-1]], len(indices), seconds[name], ratios)


def markdown(rows: Mapping[str, Sequence[Span]]) -> list[str]:
    """Tables with a column for each bin: milliseconds per sentence, then the ratio over each baseline.

    Args:
        rows: name of a system -> its spans; without any nothing is written.
    """
    if not rows:
        return []
    spans = next(iter(rows.values()))
    numbers: dict[str, Callable[[Span], str]] = {
        "ms / sentence": lambda one: f"{1e3 * one.seconds / one.sentences:.1f}"
    }
    for base in spans[0].speedup:
        numbers[f"x {cell(label(base))}"] = lambda one, base=base: f"{one.speedup[base]:.2f}"  # type: ignore[misc]
    counts = ", ".join(str(one.sentences) for one in spans)
    parts = [f"By source length, in tokens without `</s>`; sentences: {counts}", ""]
    for head, number in numbers.items():
        parts.append(_row(f"{head}, by source length", [one.tokens for one in spans]))
        parts.append("|" + "---|" * (1 + len(spans)))
        parts += [_row(cell(label(name)), map(number, row)) for name, row in rows.items()]
        parts.append("")
    return parts


def _row(name: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([name, *cells])} |"
