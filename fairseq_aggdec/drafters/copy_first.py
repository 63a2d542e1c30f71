"""Two drafters in one: a text's copy as long as it stands, from there until it would stand another drafter's draft and
the copy, as two branches of a tree."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from fairseq_aggdec.budget.fading import Fading
from fairseq_aggdec.drafters.copy.copy_text import common_prefix
from fairseq_aggdec.drafters.copy.input_copy import CopyDrafter
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict, grafted
from fairseq_aggdec.windows.transfer import Watch

# Tokens of the other's draft that are believed to stand before any was seen.
PRIOR_STOOD = 1.0
# Weight of earlier drafts of the other, per new one: some fifty count.
REMEMBER = 0.98


class CopyFirst(Drafter):
    """Chooses for every sentence and iteration; the other drafter does not run where all sentences copy alone.

    A sentence copies alone from its beginning until a copied token does not stand, and again once the copy agrees with
    what was written; else both are drafted. It does not copy alone where the other's drafts usually go further.

    Args:
        copy: drafts the text.
        other: drafts where the copy does not; its verdicts say which tokens were its own.
    """

    def __init__(self, copy: CopyDrafter, other: Drafter):
        self.copy, self.other = copy, other
        self.needs_cached_decoder = other.needs_cached_decoder
        self.stood = Fading(REMEMBER)  # tokens of the other's drafts

    @property
    def watches(self) -> Sequence[Watch]:
        return [*self.copy.watches, *self.other.watches]

    def reads(self, sample: Mapping) -> Sequence[Tensor]:
        return [*self.copy.reads(sample), *self.other.reads(sample)]

    def prepare(self, verifier: Verifier) -> None:
        self.copy.prepare(verifier)
        self.other.prepare(verifier)

    def release(self) -> None:
        self.copy.release()
        self.other.release()

    def forget(self) -> None:
        self.copy.forget()
        self.other.forget()
        self.stood = Fading(REMEMBER)

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.copy.start(sample, verifier, state)
        self.other.start(sample, verifier, state)
        self.stands = [True] * len(state.rows)

    def draft(self, state: DecodeState) -> Draft:
        self.copied, usual = self.copy.draft(state).tokens, self.stood.mean_with(PRIOR_STOOD)
        hopes = map(self.copy.account.chances.hope, range(len(self.copied)), map(len, self.copied))
        self.alone = [ok and hope > usual for ok, hope in zip(self.stands, hopes, strict=True)]
        self.sizes: list[int] | None = None  # of the other's trees, where there are copies beside
        draft = Draft([()] * len(self.copied)) if all(self.alone) else self.other.draft(state)
        if not any(map(len, self.copied)):
            return draft
        trees = [
            ((), ()) if alone else (row, way)
            for alone, row, way in zip(self.alone, draft.rows(), draft.ways(), strict=True)
        ]
        self.sizes = [len(row) for row, _ in trees]
        both = zip(trees, self.copied, strict=True)
        rows = [grafted(row, way, mine) for (row, way), mine in both]
        return Draft([row for row, _ in rows], [way for _, way in rows])

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        known = zip(self.copied, verdict.emitted, strict=True)
        checked = [(min(len(mine), len(own)), common_prefix(mine, own)) for mine, own in known]
        drafted, accepted = map(list, zip(*checked, strict=True))
        self.stands = [stood == most for most, stood in checked]
        self.copy.observe(replace(verdict, drafted=drafted, accepted=accepted), state)
        others = replace(verdict, own=not any(self.alone), sizes=self.sizes)
        for alone, stood in zip(self.alone, others.of_own().accepted, strict=True):
            if not alone:
                self.stood.add(stood)
        self.other.observe(others, state)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.stands = [self.stands[row] for row in rows]
        self.copy.keep_rows(rows)
        self.other.keep_rows(rows)
