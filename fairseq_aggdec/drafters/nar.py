"""Drafting with a non-autoregressive model (Ge et al., section 3.2): one call of it proposes k tokens for every row.

The drafter reads the committed tokens of a row and k mask slots. With bidirectional prefix attention its window is all
of that, anew in every iteration; with causal prefix attention it is what was committed since the last one, and the
slots (slots that predict the token after them begin with the last committed token, which is then read again).
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.budget.draft_length import DraftLength, NodeBudget
from fairseq_aggdec.drafters.in_library import CompiledSlots, DraftMemory, has_budget
from fairseq_aggdec.drafters.model_drafter import ModelDrafter, last_tokens
from fairseq_aggdec.drafters.slots import CachedSlots, LayerSlots, keys_beside, make_slots
from fairseq_aggdec.engine.encoder import FastEncoder, StockEncoder, packed_encoder
from fairseq_aggdec.engine.graphs.window_graphs import GraphMemory
from fairseq_aggdec.engine.plain.support import can_read
from fairseq_aggdec.engine.plain.watch import ModelWatch
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.engine.verifier import Verifier, follow
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.stored import used
from fairseq_aggdec.models.nar_drafter import NarDrafterModel
from fairseq_aggdec.models.slot_chain import tokens_before
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.compiled.searches import SlotOptionsStruct
from fairseq_aggdec.search.errors import broken_weight
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import (
    NO_COPIES,
    BatchVerdict,
    Copies,
    Draft,
    Kept,
    Verdict,
)
from fairseq_aggdec.windows.transfer import PendingCopy, Watch, to_device
from fairseq_aggdec.windows.window import DecoderOutput, Window

logger = logging.getLogger(__name__)


class NarDrafter(ModelDrafter):
    """Proposes what the slots of a drafter say, up to ``</s>`` and to the row's end.

    Args:
        model: in evaluation mode, on the verifier's device. Its parameters may change between batches.
        draft_length: says how many tokens to draft, at most the trained number, which is the default.
        precision: how the drafter computes, but for its ``int8``.
        int8: drafts are computed in 8 bits.
        nodes: how large the tree is that is drafted for each row; None: a block is drafted.

    Attributes:
        broken: its numbers are not finite: it drafts nothing until its parameters change.
    """

    def __init__(
        self,
        model: NarDrafterModel,
        draft_length: DraftLength | None = None,
        precision: Precision = EXACT,
        int8: bool = False,
        nodes: NodeBudget | None = None,
    ):
        super().__init__(draft_length or DraftLength(model.decoder.block_size), int8, nodes)
        self.model = model
        self.precision = replace(precision, int8=int8)
        self.longest = model.decoder.max_positions()
        self.release()
        self.refreshed = False  # whether packed weights are known to be those of the current batch
        self.verifier_model: Any = None
        self.broken, self.finite_check = False, FiniteCheck()
        self.finite: PendingCopy | None = None
        # A GPU reads the source for the drafter while it does for the verifier.
        self.starts_beside = not model.shares_encoder

    def prepare(self, verifier: Verifier) -> None:
        """Packs the decoder now instead of before the first draft."""
        self.pack_decoder()

    def pack_decoder(self) -> None:
        """Packs the decoder where its parameters have changed since that was done."""
        with torch.inference_mode():
            self._refresh()

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.sample: Mapping | None = sample  # encoded when the first block is drafted
        self.refreshed = False
        self.rows = list(range(len(state.rows)))
        self.verifier = verifier
        follow(self.model, verifier)
        length = sample["net_input"]["src_tokens"].size(1)
        self.readable = self.model.shares_encoder or can_read(self.model.encoder, length)
        self.start_draft_length(verifier, state)
        beside = state.device.type == "cuda" and self.starts_beside and self.readable
        if beside and self.draft_length.plan(len(state.rows)):
            self.begin()

    def release(self) -> None:
        self.watch: ModelWatch | None = None
        self.encoder: FastEncoder | StockEncoder | None = None  # made when it has to run
        self.slots: LayerSlots | CachedSlots = LayerSlots(self.model)
        super().release()

    @property
    def watches(self) -> Sequence[Watch]:
        return [] if self.watch is None else [self.watch]

    def draft(self, state: DecodeState) -> Draft:
        size = self.planned(len(state.rows))
        most = self.longest if self.readable else -1
        room = [
            min(size, row.end - row.position) if row.position <= most else 0 for row in state.rows
        ]
        if any(room):
            self.begin()
            if self._is_well():
                block = self._chosen(self._features(state, size), self._last(state))
                return self.path(block, room, state.eos)
        return Draft([()] * len(room))

    def copies(self) -> Copies | None:
        return NO_COPIES if self.rests else None

    def in_library(self, state: DecodeState) -> CompiledSlots | None:
        if not has_budget(self.draft_length):
            return None
        self._refresh()
        self.refreshed = True
        slots, proposer = self.slots, self.proposer
        if proposer is None or not isinstance(slots, CachedSlots) or not slots.grows:
            return None
        parts = {"draft_length": self.draft_length, "trees": self.trees}
        self.memory = self.memory or DraftMemory(SlotOptionsStruct)
        drafts = CompiledSlots(
            self.memory,
            slots.reader,
            proposer=proposer,
            begin=self.begin,
            stop=self._stop,
            **parts,
        )
        drafts.struct.longest = self.longest if self.readable and not self.broken else -1
        drafts.struct.shift, drafts.struct.causal = slots.decoder.shift, slots.decoder.causal_prefix
        return drafts

    def start_on_device(self, state: DecodeState) -> int | None:
        longest, starts = max(row.end for row in state.rows), {row.tokens[0] for row in state.rows}
        if self.finite_check.due:
            return None
        size = self.planned(len(state.rows))
        if size == 0:
            return size
        if not self.readable or longest > self.longest or starts != {state.eos}:
            return None
        self.begin()
        read = isinstance(self.slots, CachedSlots) and self.slots.on_grids
        return size if self._is_well() and read else None

    # -- a drafter that is trusted reads the windows in the verifier's place

    def take_over(self, state: DecodeState) -> None:
        """Reads the sources of a started batch, whose outputs will be no longer than the drafter reads.

        Raises:
            ValueError: a source is longer than that.
        """
        if not self.readable:
            raise ValueError(
                f"a source of {state.sample['net_input']['src_tokens'].size(1)} tokens is longer than the drafter of "
                "--drafter-path can read; --decoding gad leaves it to the verifier"
            )
        self.begin()
        for row in state.rows:
            row.end = min(row.end, self.longest)
        self.state = state

    @property
    def temperature(self) -> float:
        return self.verifier.temperature

    @property
    def head_input(self) -> tuple[int, Tensor]:
        return 0, next(self.model.parameters())

    reads_trees = False

    def window_slots(self, rows: int) -> int:
        return self.planned(rows)

    def rooms(self, end: int, longest: int) -> list[GraphMemory]:
        return []  # that of :meth:`reserve` is all

    def read(self, window: Window) -> DecoderOutput:
        """Logits (B * k, V) of a block of k slots for each row."""
        logits = self.logits(self.state, window.width).float().flatten(0, 1)
        return DecoderOutput(logits.div_(self.temperature), [])

    def keep(self, kept: Kept) -> None:
        if kept.rows is not None:
            self.keep_rows(kept.rows)

    @property
    def launches(self) -> bool:
        """Tells whether it decodes alone without graphs: where no compiled library asks it."""
        return kernels() is None

    @property
    def captures(self) -> bool:
        """Tells whether the batch stands where what is captured of its decoder reads it."""
        self.begin()
        graphs = self.slots.reader.graphs if isinstance(self.slots, CachedSlots) else None
        return graphs is not None and graphs.sources is not None

    def reserve(self, shape: Shape) -> Sequence[GraphMemory]:
        slots = self.slots
        assert isinstance(slots, CachedSlots)
        slots.reader.reserve(keys_beside(shape), self.longest)
        return [] if slots.reader.graphs is None else [slots.reader.graphs]

    def block(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        return self._chosen(*self._features_on_device(board, owners, rows, shape))

    def logits_on_device(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        return self._logits(*self._features_on_device(board, owners, rows, shape))

    def _features_on_device(
        self, board: Board, owners: Tensor, rows: Rows, shape: Shape
    ) -> tuple[Tensor, Tensor]:
        """Features of the slots behind each row (R, k, C), and the rows' last tokens (R,)."""
        slots = self.slots
        assert isinstance(slots, CachedSlots)
        return slots.block_on_device(board, owners, rows, shape, shape.width - 1)

    def observe_batch(self, verdict: BatchVerdict) -> None:
        super().observe_batch(verdict)
        self.finite_check.observe(verdict.drafted, verdict.accepted)

    def logits(self, state: DecodeState, block_size: int) -> Tensor:
        """(B, k, M) logits of the ``block_size`` tokens that follow what each row has committed.

        With a chain: of each slot after the token that the chain chooses before it.
        """
        self.begin()
        return self._logits(self._features(state, block_size), self._last(state))

    def _last(self, state: DecodeState) -> Tensor | None:
        """(B,) the last token of each row, which only a chain hears."""
        return None if self.chain is None else to_device(last_tokens(state), state.device)

    def _chosen(self, features: Tensor, last: Tensor | None) -> Tensor:
        """(B, k) int64, the block made of the slots' features (B, k, C) behind the last tokens (B,)."""
        return self.chosen(features, self.slots.slot_logits(features, self.int8), last)

    def _logits(self, features: Tensor, last: Tensor | None) -> Tensor:
        """(B, k, M) what the slots say of the tokens of :meth:`_chosen`."""
        if self.chain is not None and last is not None:
            before = tokens_before(last, self._chosen(features, last))
            features = self.chain.conditioned(features, before.unsqueeze(2)).squeeze(2)
        return self.slots.slot_logits(features, self.int8)

    def _features(self, state: DecodeState, block_size: int) -> Tensor:
        features = self.slots.block_features(self._prefixes(state), block_size)
        if self.finite_check.due:
            self.finite_check = FiniteCheck()
            self.finite = PendingCopy(features.isfinite().all().view(1))
        return features

    def _prefixes(self, state: DecodeState) -> list[list[int]]:
        most = self.longest + 1 if self.readable else -1  # with the start symbol
        return [row.tokens[1:] if len(row.tokens) <= most else [] for row in state.rows]

    def _is_well(self) -> bool:
        """Reads what was asked about an earlier draft: by now the host need not wait for it."""
        if self.finite is not None and not self.finite.read()[0]:
            self._stop("numbers that are not finite, though its weights are")
        self.finite = None
        return not self.broken

    def _stop(self, reason: str) -> None:
        self.broken = True
        logger.warning("the drafter has %s: nothing is drafted, decoding is one by one", reason)

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        self.learn(verdict)
        self.finite_check.observe(verdict.drafted, verdict.accepted)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]
        if self.sample is None:
            self.slots.keep_rows(rows)

    def begin(self) -> None:
        """Encodes the batch, unless that is done."""
        if self.sample is None:
            return
        net_input, self.sample = self.sample["net_input"], None
        if not self.refreshed:
            self._refresh()
        began = time.perf_counter()
        self._read(net_input)
        if self.wait is not None:
            self.wait()
        self.encoder_seconds += time.perf_counter() - began
        if len(self.rows) < len(net_input["src_tokens"]):
            self.slots.keep_rows(self.rows)  # some ended before anything was drafted

    def _refresh(self) -> None:
        """Packs encoder and slots, again when the parameters have changed."""
        if self.watch is not None and not self.watch.changed():
            return
        model = self.model
        # A frozen encoder does not change but with the decoder, when the model is moved.
        parts = [model.decoder] if model.shares_encoder else [model.encoder, model.decoder]
        watch = ModelWatch(parts, [model])
        self.encoder, self.slots = None, make_slots(model, self.precision)
        packed = self.slots.reader.packed if isinstance(self.slots, CachedSlots) else None
        with used([model]):
            self.lay_out(model.decoder, self.precision, packed)
        self.broken = False
        if weight := broken_weight(model):
            self._stop(f"NaN or infinity in its weight {weight}")
        self.watch = watch

    def pack_encoder(self) -> FastEncoder | StockEncoder:
        """The packed encoder of the drafter's own, made with the first batch that it reads."""
        if self.encoder is None:
            with used([self.model]):
                self.encoder = packed_encoder(self.model.encoder, self.precision)
        return self.encoder

    def _read(self, net_input: Mapping[str, Tensor]) -> None:
        if not self.model.shares_encoder or len(self.verifier.members) > 1:
            self.slots.read(self.pack_encoder(), net_input)
            return
        (member,) = self.verifier.members
        if member.model is not self.verifier_model:
            check_shared_encoder(self.model, member.model)
            self.verifier_model = member.model
        self.slots.begin(net_input["src_tokens"], member.encoder_out)


class FiniteCheck:
    """Says when to check whether a drafter's features are finite: after ``DRAFTS`` rejected drafts in a row.

    The check makes the host wait for the device. A drafter whose features are NaN proposes the same token in every
    slot, so all its drafts are rejected, and the host knows how many are accepted.

    Attributes:
        due: check now.
    """

    DRAFTS = 8

    def __init__(self) -> None:
        self.rejected = 0

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        if any(accepted):
            self.rejected = 0
        elif any(drafted):
            self.rejected += 1

    @property
    def due(self) -> bool:
        return self.rejected >= self.DRAFTS


def check_shared_encoder(drafter: Any, verifier: Any) -> None:
    """Raises ``ValueError`` unless the verifier has the encoder that the drafter was trained on.

    Training in half precision leaves it rounded.
    """
    drafters, other = (dict(model.encoder.named_parameters()) for model in (drafter, verifier))
    if drafters.keys() != other.keys() or not all(
        drafters[name].shape == other[name].shape
        and torch.allclose(
            drafters[name].float(), other[name].to(drafters[name]).float(), 2**-7, 1e-6
        )
        for name in drafters
    ):
        raise ValueError(
            "the drafter was trained with --share-verifier-encoder on another verifier: its encoder is not that of "
            "--path"
        )
