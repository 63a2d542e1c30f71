"""Drafting with the verifier's own extra heads (Stern et al., section 4): verifying one block predicts the next.

The heads read the decoder's features at the position of each row's last accepted token. Head 1's token there is the
correction token that the loop emits anyway; those of heads 2 to k are the next draft. So an iteration is one decoder
call. With layers of their own (``--head-layers``) they read that correction token, one another and the source; with a
chain (``--slot-chain``) those of their likely tokens are drafted that go together behind it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from fairseq_aggdec.drafters.in_library import CompiledHeadDrafts, DraftMemory, has_budget
from fairseq_aggdec.drafters.model_drafter import ModelDrafter, last_tokens
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.compiled.searches import HeadOptionsStruct
from fairseq_aggdec.search.errors import broken_weight
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import NO_COPIES, Copies, Draft, Verdict
from fairseq_aggdec.windows.transfer import rows_at, to_device

logger = logging.getLogger(__name__)


class BlockwiseHeadsDrafter(ModelDrafter):
    """Drafts the proposals of heads 2 to k, at most as many as there are trained heads.

    In the first iteration, which has no features yet, it drafts nothing, unless heads with layers have learned some for
    it. Heads with weights that are not finite numbers propose nothing.
    """

    reads_features = True
    layered = False  # heads have layers, which the board does not run
    broken = False
    checked: Any = None

    def prepare(self, verifier: Verifier) -> None:
        """Looks at the weights and packs the heads now instead of with the first batch."""
        self._check(verifier.members[0])
        if not self.broken:
            verifier.heads.compiled(self.int8)

    def release(self) -> None:
        super().release()
        self.checked = None

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.verifier = verifier
        self._check(verifier.members[0])
        # (N, C) of the last window, of which the heads read each row's last place; taken out when they do
        self.features: Tensor | None = None
        self.last: Verdict | None = None  # where ``places`` has to be read from it
        self.places: list[int] = []
        if self.layered:
            opening = verifier.heads.decoder.head_layers.opening.detach()
            self.features = opening.expand(len(state.rows), -1)
            self.places = list(range(len(state.rows)))
        self.start_draft_length(verifier, state)

    def _check(self, member: Any) -> None:
        """Looks at the weights of heads and chain, once for every state of the parameters."""
        if member.watch is self.checked:
            return
        self.checked, decoder = member.watch, member.model.decoder
        self.layered = decoder.head_layers is not None
        parts = (decoder.heads, decoder.head_layers, decoder.chain)
        broken = (broken_weight(part) for part in parts if part is not None)
        weight = next((name for name in broken if name is not None), None)
        fast = member.decoder.packed
        self.lay_out(decoder, replace(member.precision, int8=self.int8), fast)
        self.broken = weight is not None
        if weight is not None:
            self._stop(f"NaN or infinity in their weight {weight}")

    def draft(self, state: DecodeState) -> Draft:
        size = self.planned(len(state.rows))
        room = [min(size, row.end - row.position) for row in state.rows]
        if self.features is None or self.broken or not any(room):
            return Draft([()] * len(state.rows))
        self._place()
        read = rows_at(self.features, self.places)  # (B, C)
        last = to_device(last_tokens(state), state.device)
        logits = self.verifier.heads.propose(read, size + 1, self.int8, last)
        return self.path(self.chosen(*logits, last), room, state.eos)

    def copies(self) -> Copies | None:
        return NO_COPIES if self.rests else None

    def in_library(self, state: DecodeState) -> CompiledHeadDrafts | None:
        heads, proposer = self.verifier.heads, self.proposer
        compiled_heads = heads.compiled(self.int8) if has_budget(self.draft_length) else None
        compiled, project_out = heads.packed.compiled, heads.packed.project_out
        # Behind a projection, what heads read is of another size than what layers write.
        if (
            compiled_heads is None
            or proposer is None
            or compiled is None
            or project_out is not None
        ):
            return None
        self.memory = self.memory or DraftMemory(HeadOptionsStruct)
        drafts = CompiledHeadDrafts(
            self.memory,
            heads,
            compiled.channels,
            compiled_heads,
            proposer=proposer,
            draft_length=self.draft_length,
            trees=self.trees,
            stop=self._stop,
        )
        if self.broken:
            drafts.budget.size = 0
        return drafts

    def _stop(self, reason: str) -> None:
        self.broken = True
        logger.warning(
            "the block heads have %s: nothing is drafted, decoding is one by one", reason
        )

    def start_on_device(self, state: DecodeState) -> int | None:
        if self.broken:
            return 0
        size = self.planned(len(state.rows))
        return None if size and self.layered else size

    def block(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        features = board.features.index_select(0, owners)
        last = None if self.chain is None else board.tokens[owners, rows.base]
        logits = self.verifier.heads.propose(features, shape.width, self.int8, last)
        return self.chosen(*logits, last)

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        assert verdict.output is not None
        self.features, self.last = verdict.output.features[0], verdict
        self.learn(verdict)

    def _place(self) -> None:
        """Finds the places that the heads read, which is not done where nothing is drafted."""
        if self.last is not None:
            self.places, self.last = self.last.last_places(), None

    def keep_rows(self, rows: Sequence[int]) -> None:
        self._place()
        if self.places:  # nothing is known of them where the device goes on alone
            self.places = [self.places[row] for row in rows]
