"""Two drafters in one: a text's copy as long as it stands, another drafter's draft from there until it would stand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairseq_aggdec.decoding.draft import Draft, TreeDraft, Verification
from fairseq_aggdec.decoding.state import DecodeState
from fairseq_aggdec.decoding.times import Decayed
from fairseq_aggdec.decoding.verifier import Verifier
from fairseq_aggdec.drafters.copy_text import common_prefix
from fairseq_aggdec.drafters.input_copy import CopyDrafter

PRIOR_STOOD = 1.0  # tokens of the other's draft that are believed to stand before any was seen


class CopyFirst:
    """Chooses for every sentence and iteration; the other drafter does not run where all sentences copy.

    A sentence copies from its beginning until a copied token does not stand, and again once the copy agrees with what
    was written. It does not where the other's drafts usually go further than copies.

    Args:
        copy: drafts the text.
        other: has a method ``pass_over``, which is told that its draft was not made, or not verified alone.
    """

    def __init__(self, copy: CopyDrafter, other: Any):
        self.copy, self.other = copy, other
        self.reads: Any = getattr(copy, "reads", lambda sample: [])
        self.prepare = getattr(other, "prepare", lambda verifier: None)
        self.stood = Decayed()  # tokens of the other's drafts

    @property
    def watches(self) -> Any:
        return getattr(self.other, "watches", ())

    def forget(self) -> None:
        """Forgets what was learned from the batches before."""
        self.copy.forget()
        self.other.forget()
        self.stood = Decayed()

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.copy.start(sample, verifier, state)
        self.other.start(sample, verifier, state)
        self.stands = [True] * len(state.rows)

    def draft(self, state: DecodeState) -> Draft:
        self.copied, usual = self.copy.draft(state).tokens, self.stood.mean_with(PRIOR_STOOD)
        hopes = map(self.copy.draft_length.hope, range(len(self.copied)), map(len, self.copied))
        self.copies = [ok and hope > usual for ok, hope in zip(self.stands, hopes, strict=True)]
        draft = Draft(self.copied) if all(self.copies) else self.other.draft(state)
        if not any(self.copies):
            return draft
        self.other.pass_over()
        both = zip(self.copies, self.copied, draft.rows(), draft.ways(), strict=True)
        rows = [(mine, range(len(mine))) if copy else (row, way) for copy, mine, row, way in both]
        return TreeDraft([row for row, _ in rows], [way for _, way in rows])

    def observe(self, verification: Verification, state: DecodeState) -> None:
        known = zip(self.copied, verification.emitted, strict=True)
        checked = [(min(len(mine), len(own)), common_prefix(mine, own)) for mine, own in known]
        drafted, accepted = map(list, zip(*checked, strict=True))
        self.stands = [stood == most for most, stood in checked]
        self.copy.observe(replace(verification, drafted=drafted, accepted=accepted), state)
        for copies, stood in zip(self.copies, verification.accepted, strict=True):
            if not copies:
                self.stood.add(stood)
        self.other.observe(verification, state)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.stands = [self.stands[row] for row in rows]
        self.copy.keep_rows(rows)
        self.other.keep_rows(rows)
