"""Greedy search: in each iteration draft, verify, accept and commit."""

from collections.abc import Callable
from dataclasses import dataclass

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.acceptance import Acceptance
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.judge import compiled, tensors
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Kept, Verdict
from fairseq_aggdec.windows.window import DecoderOutput, Window

OnIteration = Callable[[Verdict, DecodeState], None]


@dataclass
class GreedySearch:
    """Decodes every row of ``state`` until it ends (in place).

    Attributes:
        verifier: limits a draft to what it can read in one window.
        drafter: has been started on the batch.
        accept: which drafted tokens are accepted, see :mod:`fairseq_aggdec.search.acceptance`.
        rules: generation options.
        counters: statistics, added to.
        watch: is called after each iteration, while ``state`` still has all rows that were verified; None: nobody asks.
    """

    verifier: Verifier
    drafter: Drafter
    accept: Acceptance
    rules: Rules
    state: DecodeState
    counters: Counters
    watch: OnIteration | None = None

    def __post_init__(self) -> None:
        self.rows = self.state.rows

    def next_window(self) -> Window:
        draft = self.rules.possible(self.drafter.draft(self.state), self.state)
        return self.state.window(self.verifier.readable(draft))

    def update(self, window: Window, output: DecoderOutput) -> Kept | None:
        logits, rules, accept = output.logits, self.rules, self.accept
        known = type(rules) is Rules and compiled.judges(logits, window, accept)
        judge = compiled.judge if known else tensors.judge
        verdict = judge(logits, window, self.state, rules, accept)
        verdict.output = output
        commit(verdict, rules, self.state)
        self.drafter.observe(verdict, self.state)
        if self.watch is not None:
            self.watch(verdict, self.state)
        self.counters.add(verdict)
        rows = self.state.release_finished()
        self.rows = self.state.rows
        if rows:
            self.drafter.keep_rows(rows)
        elif verdict.paths is None:
            return None
        return Kept(rows, verdict.moved())


def commit(verdict: Verdict, rules: Rules, state: DecodeState) -> None:
    """Appends the emitted tokens and their scores to the rows, and the draft to their histories if they have any."""
    if state.rows[0].history is not None:
        for row, drafted in zip(state.rows, verdict.window.drafted_paths(), strict=True):
            assert row.history is not None
            row.history.append(row.tokens[1:] + drafted)
    assert verdict.scores is not None
    if rules.free_end:
        rules.free_forced_ends(verdict.scores, verdict.emitted, state)
    state.commit(verdict.emitted, verdict.scores)
