"""Two drafters for measurements: one that writes down what another does, one that does the same again elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.acceptance import Acceptance
from fairseq_aggdec.search.drafter import Drafter, DrafterAround, EmptyDrafter
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict
from fairseq_aggdec.windows.tree_window import DraftedTree


class RecordingDrafter(DrafterAround):
    """Lets ``drafter`` propose and keeps what was proposed and what became of it.

    The loop must accept with :meth:`watched`, from which the verifier's choices are known.

    Attributes:
        records: one per sentence, in the order in which decoding began.
    """

    def __init__(self, drafter: Drafter, pad: int):
        super().__init__(drafter)
        self.pad = pad
        self.records: list[Record] = []

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        super().start(sample, verifier, state)
        sources = sample["net_input"]["src_tokens"].tolist()
        self.open = [
            Record(sentence, [token for token in source if token != self.pad])
            for sentence, source in zip(sample["id"].tolist(), sources, strict=True)
        ]
        self.records += self.open

    def watched(self, accept: Acceptance) -> Acceptance:
        """``accept`` as it is; relaxed acceptance hides from the loop's result what the verifier would have written."""

        def watching(
            logits: Tensor, choices: Tensor, drafted: Tensor, tree: DraftedTree | None = None
        ) -> Tensor:
            self.choices = choices
            return accept(logits, choices, drafted, tree)

        return watching

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        window = verdict.window
        # Where nothing was drafted the loop has nothing to accept.
        alone = window.width == 1
        predicted = [choice for (choice,) in verdict.emitted] if alone else self.choices.tolist()
        read = window.host_tokens()
        first = 0
        for place, (row, width, accepted, emitted) in enumerate(
            zip(state.rows, window.widths, verdict.accepted, verdict.emitted, strict=True)
        ):
            order = list(range(first, first + width))
            if verdict.paths is not None:  # of a tree what stands comes first
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
        super().observe(verdict, state)


class ReplayDrafter(Drafter):
    """Forces the recorded draft lengths and bifurcations on another model, whose output is known.

    Of each draft so many tokens are right as stood in the recording, the next one is wrong. The output is not
    touched: it stays the model's own, and a verifier that accepted anything else would give another one.

    Args:
        records: sentence -> recording.
        outputs: sentence -> the model's greedy output, ``</s>`` included, as long as the recorded one.
        wrong: two tokens that are not special; one of them differs from any right token.
        pace: drafts as well, and what it drafts is thrown away: a replay takes its time.
    """

    def __init__(
        self,
        records: Mapping[int, Record],
        outputs: Mapping[int, Sequence[int]],
        wrong: tuple[int, int],
        pace: Drafter | None = None,
    ):
        self.records, self.outputs, self.wrong = records, outputs, wrong
        self.pace = pace or EmptyDrafter()

    def at_the_pace_of(self, drafter: Drafter) -> ReplayDrafter:
        return ReplayDrafter(self.records, self.outputs, self.wrong, drafter)

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.sentences = sample["id"].tolist()
        self.pace.start(sample, verifier, state)

    def draft(self, state: DecodeState) -> Draft:
        self.pace.draft(state)
        return Draft([self._draft(self.sentences[row.index], row.iterations) for row in state.rows])

    def _draft(self, sentence: int, round_: int) -> list[int]:
        iterations = self.records[sentence].iterations
        if round_ >= len(iterations):  # rounding gave a tie to the other side: finish one by one
            return []
        position = sum(len(iteration.emitted) for iteration in iterations[:round_])
        iteration = iterations[round_]
        right = self.outputs[sentence][position : position + iteration.accepted]
        draft = list(right)
        for offset in range(len(right), len(iteration.drafted)):
            expected = self.outputs[sentence][position + offset : position + offset + 1]
            draft.append(self.wrong[list(expected) == [self.wrong[0]]])
        return draft

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        self.pace.observe(replace(verdict, whole=False), state)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.pace.keep_rows(rows)
