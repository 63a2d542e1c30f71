"""The search for one hypothesis per sentence: drafts are verified, accepted and committed."""

from dataclasses import dataclass

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.acceptance import Acceptance
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.judge import Question, compiled, tensors
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Kept, Verdict
from fairseq_aggdec.windows.window import Said, Window


@dataclass
class GreedySearch:
    """Decodes every row of ``state`` to its end (in place).

    Attributes:
        verifier: tells what of a draft it can read.
        drafter: has been started on the batch.
        accept: which drafted tokens are accepted, see :mod:`fairseq_aggdec.search.acceptance`.
        rules: generation options.
        counters: are added to.
    """

    verifier: Verifier
    drafter: Drafter
    accept: Acceptance
    rules: Rules
    state: DecodeState
    counters: Counters

    def __post_init__(self) -> None:
        self.rows = self.state.rows

    def ask(self) -> Window:
        proposed = self.rules.possible(self.drafter.draft(self.state), self.state)
        draft = self.verifier.readable(proposed)
        self.asked = Question(draft, self.state.window(draft), self.state)
        return self.asked.window

    def take(self, window: Window, said: Said) -> Kept | None:
        logits, asked, accept = said.logits, self.asked, self.accept
        known = type(self.rules) is Rules and compiled.judges(logits, asked, accept)
        judge = compiled.judge if known else tensors.judge
        verdict = judge(logits, asked, self.rules, accept)
        verdict.said = said
        commit(verdict, self.rules, self.state)
        self.drafter.observe(verdict, self.state)
        self.counters.add(verdict)
        rows = self.state.release_finished()
        self.rows = self.state.rows
        if rows:
            self.drafter.keep_rows(rows)
        elif verdict.paths is None:
            return None
        return Kept(rows, verdict.moved())


def commit(verdict: Verdict, rules: Rules, state: DecodeState) -> None:
    """Appends what the rows emit, with its scores, to the rows; before that, the draft to their histories."""
    if state.rows[0].history is not None:
        for row, drafted in zip(state.rows, verdict.window.drafted_paths(), strict=True):
            assert row.history is not None
            row.history.append(row.tokens[1:] + drafted)
    assert verdict.scores is not None
    if rules.free_end:
        rules.free_forced_ends(verdict.scores, verdict.emitted, state)
    state.commit(verdict.emitted, verdict.scores)
