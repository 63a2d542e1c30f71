"""Records of what draft-and-verify did, iteration by iteration."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Verdict


@dataclass
class Iteration:
    """One round of one sentence; tokens are ids of the target dictionary.

    Attributes:
        drafted: what was proposed.
        predicted: what the verifier would emit at each position of the window, one more than ``drafted``.
        accepted: number of drafted tokens that were accepted (the bifurcation).
        emitted: tokens gained: the accepted ones and the verifier's own, nothing after ``</s>``.
    """

    drafted: list[int]
    predicted: list[int]
    accepted: int
    emitted: list[int]


@dataclass
class Record:
    """One sentence.

    Attributes:
        sentence: index in the data set.
        source: ids of the source dictionary, ``</s>`` included, no padding.
        iterations: in order.
    """

    sentence: int
    source: list[int]
    iterations: list[Iteration] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        """Emitted tokens, ``</s>`` included."""
        return [token for iteration in self.iterations for token in iteration.emitted]


class Recorder:
    """Keeps what was drafted and what became of it.

    Args:
        pad: of the source dictionary.

    Attributes:
        records: one per sentence, in the order in which decoding began.
    """

    def __init__(self, pad: int):
        self.pad = pad
        self.records: list[Record] = []
        self.state: DecodeState | None = None

    def _begin(self, state: DecodeState) -> None:
        """Makes the records of a batch."""
        self.state, sample = state, state.sample
        sources = sample["net_input"]["src_tokens"].tolist()
        self.open = [
            Record(sentence, [token for token in source if token != self.pad])
            for sentence, source in zip(sample["id"].tolist(), sources, strict=True)
        ]
        self.records += self.open

    def watch(self, verdict: Verdict, state: DecodeState) -> None:
        """Records an iteration; called after each."""
        if state is not self.state:
            self._begin(state)
        window = verdict.window
        predicted = verdict.choices
        read = window.host_tokens()
        first = 0
        for place, (row, width, accepted, emitted) in enumerate(
            zip(state.rows, window.widths, verdict.accepted, verdict.emitted, strict=True)
        ):
            order = list(range(first, first + width))
            if verdict.paths is not None:  # the accepted tokens of a tree come first
                path = verdict.paths[place]
                order = path + [slot for slot in order if slot not in path]
            self.open[row.index].iterations.append(
                Iteration(
                    [read[slot] for slot in order[1:]],
                    [predicted[slot] for slot in order],
                    accepted,
                    list(emitted),
                )
            )
            first += width


@contextmanager
def recording(generator: Any, pad: int) -> Iterator[Recorder]:
    """Has a greedy generator of ours record what it does; ``pad``: of the source dictionary."""
    before, recorder = generator.watch, Recorder(pad)
    generator.watch = recorder.watch
    try:
        yield recorder
    finally:
        generator.watch = before
