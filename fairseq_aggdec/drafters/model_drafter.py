"""Base of drafters that are models: how much they draft, from slots to blocks and trees, what they learn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from fairseq_aggdec.budget.draft_length import DraftLength, NodeBudget
from fairseq_aggdec.budget.price import USUAL_PRICE
from fairseq_aggdec.drafters.chain import FastChain
from fairseq_aggdec.drafters.in_library import DraftMemory
from fairseq_aggdec.drafters.proposer import Proposer, proposer
from fairseq_aggdec.drafters.trees import TreeGrower
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.gpu.largest import first_largest
from fairseq_aggdec.search.drafter import DeviceDrafter, Timed
from fairseq_aggdec.search.greedy.prices import Prices
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import (
    BatchVerdict,
    Draft,
    Verdict,
)


class ModelDrafter(DeviceDrafter):
    """A drafter that chooses how much to draft.

    Args:
        draft_length: says how many tokens to draft.
        int8: drafts are computed in 8 bits.
        nodes: how large the tree of each row is; None: one path is drafted.

    Attributes:
        chain: of the slots or heads; None where there is none.
        proposer: drafts trees and paths in the compiled library; None where that does not represent the model, which
            then drafts one path.
        rests: nothing is drafted in the current batch, however many of its rows are left.
    """

    chain: FastChain | None = None
    proposer: Proposer | None = None
    rests = False
    memory: DraftMemory | None = None  # of what drafts in the library

    def __init__(
        self,
        draft_length: DraftLength,
        int8: bool = False,
        nodes: NodeBudget | None = None,
    ):
        self.draft_length, self.int8 = draft_length, int8
        self.trees = None if nodes is None else TreeGrower(nodes)

    def release(self) -> None:
        self.chain = self.proposer = None

    def __getstate__(self) -> dict[str, Any]:
        """State that a copy takes over: it packs the weights of its own model."""
        kept = object.__new__(type(self))
        kept.__dict__.update(self.__dict__)
        kept.release()
        kept.memory = None
        return vars(kept)

    def start_draft_length(self, verifier: Verifier, state: DecodeState) -> None:
        """Takes up a batch."""
        # Not when the drafter is made: training moves the models after that.
        rows, slots = len(state.rows), self.slots_read()

        def drafts() -> Timed | None:
            # The drafter's price is not known yet.
            self.draft_length.suppose(Prices().of(verifier, state))
            return self.in_library(state)

        weighs = self.draft_length.weighs or (self.trees is not None and self.trees.budget.stops)
        prices = Prices(self.call_price if weighs else USUAL_PRICE, self, drafts)
        self.draft_length.start(rows, prices.of(verifier, state), slots)
        self.rests = not any(map(self.draft_length.plan, range(1, rows + 1)))

    def in_library(self, state: DecodeState) -> Timed | None:
        return None

    def slots_read(self) -> int:
        """Slots of a row that a draft reads."""
        size = self.draft_length.size
        return size if self.trees is None else self.trees.slots(size)

    def lay_out(self, decoder: Any, precision: Precision, packed: Any) -> None:
        """Makes the fast forms of the chain, if there is one, and of what proposes.

        Args:
            decoder: of the drafter, or the one with heads.
            precision: how the chain computes.
            packed: the decoder's weights, None where they cannot be packed.
        """
        if packed is not None:
            decoder, precision = packed.decoder, replace(packed.precision, int8=precision.int8)
        self.chain = None if decoder.chain is None else FastChain(decoder, precision)
        self.proposer = None
        if packed is not None:
            vocabulary = packed.draft_projection(self.int8)
            self.proposer = proposer(decoder, vocabulary, self.chain)

    def planned(self, rows: int) -> int:
        """Number of tokens on the path of each of ``rows`` rows, where no tree is drafted."""
        size = self.draft_length.plan(rows)
        return size if self.trees is None else min(size, self.trees.budget.most)

    def path(self, block: Tensor, room: Sequence[int], eos: int) -> Draft:
        """A block (B, k) as a draft, up to ``</s>`` and no more than there is room for."""
        rows = [tokens[:most] for tokens, most in zip(block.tolist(), room, strict=True)]
        return Draft([row[: row.index(eos) + 1] if eos in row else row for row in rows])

    def chosen(self, features: Tensor, logits: Tensor, last: Tensor | None) -> Tensor:
        """(B, k) int64, the likeliest block; arguments as :meth:`drafted` gets them of slots."""
        if self.chain is None or last is None:
            return first_largest(logits.flatten(0, 1)).view(logits.shape[:2])
        return self.chain.choose(features, logits, last)

    def learn(self, verdict: Verdict) -> None:
        """Learns from the last iteration."""
        rows, emitted = len(verdict.emitted), sum(map(len, verdict.emitted))
        self.draft_length.observe(rows, sum(verdict.drafted), emitted)

    def observe_batch(self, verdict: BatchVerdict) -> None:
        self.draft_length.batch_ended(verdict.gain)

    def forget(self) -> None:
        self.draft_length.forget()
        if self.trees is not None:
            self.trees = TreeGrower(self.trees.budget)
        if self.proposer is not None:
            self.proposer.forget()


def last_tokens(state: DecodeState) -> list[int]:
    """The last committed token of each row."""
    return [row.tokens[-1] for row in state.rows]
