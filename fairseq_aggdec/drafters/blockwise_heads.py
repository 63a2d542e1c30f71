"""Drafting with the verifier's own extra heads (Stern et al., section 4): verifying one block predicts the next.

The heads read the decoder's features at the position of each row's last accepted token. Head 1's token there is the
correction token that the loop emits anyway; those of heads 2 to k are the next draft. So an iteration is one decoder
call. With layers of their own (``--head-layers``) they read that correction token, one another and the source; with a
chain (``--slot-chain``) those of their likely tokens are drafted that go together behind it.
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.budget.account import Account, NodeBudget
from fairseq_aggdec.budget.call_cost import IterationClock
from fairseq_aggdec.drafters.chain import FastChain
from fairseq_aggdec.drafters.proposer import Proposer, paths, proposer
from fairseq_aggdec.drafters.trees import TreeGrower, Warmed
from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.largest import first_largest
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.errors import broken_weight
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import AS_VERIFIED, BlockDraft, Draft, Proposing, Verdict
from fairseq_aggdec.windows.transfer import rows_at, to_device

logger = logging.getLogger(__name__)


class BlockwiseHeadsDrafter(Warmed):
    """Drafts the proposals of heads 2 to k; nothing in the first iteration, which has no features yet, but where heads
    with layers have learned some for it.

    Args:
        account: says how many tokens to draft, fewer than there are trained heads.
        proposing: how proposals are computed.
        nodes: how large the tree is that is drafted for each row; None: one path is drafted.

    Heads with weights that are not finite numbers propose nothing.
    """

    reads_features = True
    needs_cached_decoder = True  # whose heads it reads
    layered = False  # heads have layers, which the device alone does not run

    def __init__(
        self,
        account: Account,
        proposing: Proposing = AS_VERIFIED,
        nodes: NodeBudget | None = None,
    ):
        self.account, self.proposing = account, proposing
        self.trees = None if nodes is None else TreeGrower(nodes, account.cost)
        self.checked: Any = None
        self.clock = IterationClock()
        self.broken = False

    def prepare(self, verifier: Verifier) -> None:
        """Looks at the weights now instead of with the first batch."""
        self._check(verifier.members[0])

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.verifier = verifier
        self.account.start([row.tokens for row in state.rows])
        self.timed = self.account.learned and state.device.type == "cuda"
        self.clock.start(state.device.type, anew=self.timed)
        self._check(verifier.members[0])
        # (N, C) of the last window, of which the heads read each row's last place; taken out when they do
        self.features: Tensor | None = None
        self.last: Verdict | None = None  # where ``places`` has to be read from it
        self.places: list[int] = []
        if self.layered:
            opening = verifier.members[0].model.decoder.head_layers.opening.detach()
            self.features, self.places = (
                opening.expand(len(state.rows), -1),
                list(range(len(state.rows))),
            )

    def _check(self, member: Any) -> None:
        """Looks at the weights of heads and chain, once for every state of the parameters."""
        if member.watch is self.checked:
            return
        self.checked, decoder = member.watch, member.model.decoder
        self.chain: FastChain | None = None
        self.layered = decoder.head_layers is not None
        weight = broken_weight(decoder.heads)
        if decoder.head_layers is not None:
            weight = weight or broken_weight(decoder.head_layers)
        if decoder.chain is not None:
            weight = weight or broken_weight(decoder.chain)
            self.chain = FastChain(decoder, replace(member.precision, int8=self.proposing.int8))
        self.proposer: Proposer | None = None
        if isinstance(member.decoder, CachedDecoder):
            vocabulary = member.decoder.packed.draft_projection(self.proposing)
            self.proposer = proposer(decoder, vocabulary, self.chain)
        self.broken = weight is not None
        if weight is not None:
            logger.warning(
                "the block heads have NaN or infinity in their weight %s: nothing is drafted, decoding is one by one",
                weight,
            )

    def draft(self, state: DecodeState) -> Draft:
        if self.timed:
            torch.cuda.synchronize()
        nothing = Draft([()] * len(state.rows))
        idle = self.features is None or self.broken
        size = 0 if idle else self.account.plan(len(state.rows))
        if self.account.timing:
            self.clock.begin()
        if self.features is None or size == 0:
            return nothing
        self._place()
        read = rows_at(self.features, self.places)  # (B, C)
        room = [min(size, row.end - row.position) for row in state.rows]
        before = [row.tokens[-1] for row in state.rows]
        last = to_device(before, state.device)
        if self.proposer is not None:
            slots = size if self.trees is None else self.trees.slots(size)
            features = self.verifier.heads.proposed_features(read, slots + 1, self.proposing, last)
            grow = functools.partial(self.proposer.grow, features)
            draft = paths if self.trees is None else self.trees.compiled
            return draft(grow, slots, before, room, state.eos)
        if self.trees is None:
            return BlockDraft(self._proposed(read, last, size), room)
        features, logits = self.verifier.propose(read, size + 1, self.proposing, last)
        if self.chain is None:
            return self.trees.alone(logits, room, state.eos)
        return self.trees.draft(*self.chain.pairs(features, logits, last), room, state.eos)

    def start_on_device(self, state: DecodeState) -> int | None:
        if self.broken:
            return 0
        if self.account.learned or self.trees:
            return None
        size = self.account.plan(len(state.rows))
        return None if size and self.layered else size

    def block(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        features = board.features.index_select(0, owners)
        return self._proposed(features, board.tokens[owners, rows.base], shape.width - 1)

    def _proposed(self, features: Tensor, last: Tensor, size: int) -> Tensor:
        """What the heads say behind the correction tokens ``last`` (B,), with a chain what of that goes together."""
        # (B, size, C) and (B, size, M)
        features, logits = self.verifier.propose(features, size + 1, self.proposing, last)
        if self.chain is not None:
            return self.chain.choose(features, logits, last)
        return first_largest(logits.flatten(0, 1)).view(-1, size)

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        assert verdict.said is not None
        self.features, self.last = verdict.said.features[0], verdict
        self.learn(verdict)

    def _place(self) -> None:
        """Finds the places that the heads read, which is not done where nothing is drafted."""
        if self.last is not None:
            self.places, self.last = self.last.last_places(), None

    def forget(self) -> None:
        """Forgets what was learned from the batches before."""
        if self.trees is not None:
            self.trees.forget()
        if (proposer := getattr(self, "proposer", None)) is not None:  # made with the fast forms
            proposer.forget()

    def keep_rows(self, rows: Sequence[int]) -> None:
        self._place()
        if self.places:  # nothing is known of them where the device goes on alone
            self.places = [self.places[row] for row in rows]
