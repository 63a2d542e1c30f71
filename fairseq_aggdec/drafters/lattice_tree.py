"""Drafting trees from a lattice (Deng and Rush 2023): its candidates and the scores of its edges are a table of what
may follow what, from which trees grow as from the slots of a drafter.

A lattice is made once for a sentence, and its positions are those of outputs of the lengths that it expects. So the
drafter keeps where in the lattice an output stands. Behind a draft that stood that is as many positions further on;
a word of the verifier's own is looked for among the candidates near by, and where it is none of them it is taken to
stand in the place of one.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.budget.account import Account, NodeBudget
from fairseq_aggdec.drafters.model_drafter import ModelDrafter
from fairseq_aggdec.drafters.trees import CANDIDATES, TreeGrower
from fairseq_aggdec.engine.plain.support import can_read
from fairseq_aggdec.engine.verifier import Verifier, follow
from fairseq_aggdec.lattice.generator import LatticeGenerator
from fairseq_aggdec.lattice.lattice import Lattice
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict

logger = logging.getLogger(__name__)

# Positions to either side at which a word of the verifier's own is looked for, and what each costs, in nats.
NEAR, DISTANCE = 2, 1.0
# Logarithm of a chance that is none, in nats.
NONE = -30.0
# The longest path that is thought of where it is not known yet whether drafting pays.
LONGEST = 16


class LatticeTable:
    """The likeliest M candidates of each of T positions of B lattices, and what follows what.

    Args:
        lattice: of the batch.
        first, edges: scores (B, N) and (B, T - 1, N, N), as :meth:`LatticeGenerator.scored` has them.

    Attributes:
        tokens: (B, T, M) int64.
        pairs: (B, T, M, M) nats, of each candidate behind each of the position before; the same for all at position 0.
        own: (B, T, M) nats, of each candidate whatever stands before it.
        host_tokens, host_own: the same as numbers.
    """

    def __init__(self, lattice: Lattice, first: Tensor, edges: Tensor):
        unary, steps = lattice.scores(first, edges)
        padding = lattice.tokens == lattice.pad  # is never drafted: what has ended goes on nowhere
        reached = [unary[:, 0]]
        for step in steps.unbind(1):  # (B, N, N)
            reached.append((reached[-1].unsqueeze(2) + step).logsumexp(1))
        chances = torch.stack(reached, 1).masked_fill(padding, -torch.inf)  # (B, T, N)
        steps = steps.masked_fill(padding[:, 1:].unsqueeze(2), -torch.inf)
        best = chances.topk(min(CANDIDATES, chances.size(2)), dim=2)
        self.tokens, self.own = lattice.tokens.gather(2, best.indices), best.values.clamp(min=NONE)
        width = best.indices.size(2)
        before, behind = best.indices[:, :-1].unsqueeze(3), best.indices[:, 1:].unsqueeze(2)
        rows = steps.gather(2, before.expand(-1, -1, -1, steps.size(3)))  # (B, T - 1, M, N)
        pairs = rows.gather(3, behind.expand(-1, -1, width, -1))  # (B, T - 1, M, M)
        start = self.own[:, :1].unsqueeze(2).expand(-1, -1, width, -1)
        self.pairs = torch.cat([start, pairs.clamp(min=NONE)], 1)
        self.host_tokens, self.host_own = self.tokens.tolist(), self.own.tolist()
        # Of each lattice, up to the last that has a word or the end.
        self.ends = lattice.lengths.longest.tolist()

    @property
    def positions(self) -> int:
        return self.tokens.size(1)

    def keep_rows(self, rows: Sequence[int]) -> None:
        kept = torch.tensor(rows, device=self.tokens.device)
        self.tokens, self.pairs, self.own = self.tokens[kept], self.pairs[kept], self.own[kept]
        self.host_tokens = [self.host_tokens[row] for row in rows]
        self.host_own = [self.host_own[row] for row in rows]
        self.ends = [self.ends[row] for row in rows]

    def find(self, row: int, position: int, token: int) -> tuple[int, int | None]:
        """Where a token stands that was written at about such a position: there, and which of the candidates it is."""
        found: list[tuple[float, int, int]] = []
        for near in range(max(0, position - NEAR), min(self.positions, position + NEAR + 1)):
            if token in self.host_tokens[row][near]:
                place = self.host_tokens[row][near].index(token)
                likely = self.host_own[row][near][place] - DISTANCE * abs(near - position)
                found.append((likely, near, place))
        if not found:
            return position, None
        _, near, place = max(found)
        return near, place

    def slots(
        self, places: Sequence[int], before: Sequence[int | None], count: int
    ) -> tuple[Tensor, Tensor]:
        """Tokens (B, k, M) and scores (B, k, M, M) of ``count`` positions of each row, from its place on.

        Args:
            places: the next position of each row.
            before: which candidate of the position before it was written; None for none of them.
            count: k.
        """
        rows = torch.arange(len(places), device=self.tokens.device)
        first = torch.tensor(places, device=rows.device).clamp(max=self.positions - 1)
        span = first.unsqueeze(1) + torch.arange(count, device=rows.device)
        span = span.clamp(max=self.positions - 1)
        tokens, scores = (part[rows.unsqueeze(1), span] for part in (self.tokens, self.pairs))
        known = [0 if one is None else one for one in before]
        told = scores[rows, 0, torch.tensor(known, device=rows.device)]  # (B, M)
        unknown = torch.tensor([one is None for one in before], device=rows.device).unsqueeze(1)
        scores[:, 0] = torch.where(unknown, self.own[rows, first], told).unsqueeze(1)
        return tokens, scores


class LatticeTreeDrafter(ModelDrafter):
    """Drafts the likeliest paths of a lattice; nothing more once its scores were not finite numbers.

    Args:
        generator: of ``--decoding lattice``.
        model: the generator's; a source that is too long for it has no draft.
        account: says whether anything is drafted.
        budget: how many tokens trees have.
    """

    def __init__(
        self, generator: LatticeGenerator, model: Any, account: Account, budget: NodeBudget
    ):
        super().__init__(account)
        self.generator, self.model = generator, model
        self.trees: TreeGrower = TreeGrower(budget, account.cost)
        self.broken, self.once = False, 0.0
        self.before: list[int | None] = []

    @property
    def warms_up(self) -> bool:
        return False  # a lattice is made for every batch: the first is like the others

    def prepare(self, verifier: Verifier) -> None:
        """Packs the weights of the scorer now instead of before the first draft."""
        self.generator.prepare()

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        follow(self.model, verifier)
        self.net_input: Mapping[str, Tensor] | None = sample["net_input"]  # until a table is made
        self.table: LatticeTable | None = None
        self.kept = list(range(len(state.rows)))
        self.places, self.before = [0] * len(self.kept), [None] * len(self.kept)
        self.account.start([row.tokens for row in state.rows])
        self.clock.start(state.device.type, anew=state.device.type == "cuda")

    def draft(self, state: DecodeState) -> Draft:
        nothing = Draft([()] * len(state.rows))
        self.once = 0.0
        if self.plan(state) == 0 or self.broken:
            return nothing
        if self.net_input is not None:
            began = self.clock.read()
            self._make_table(self.net_input, state)
            self.net_input = None
            self.once = self.clock.read() - began
        if self.table is None:
            return nothing
        room = [
            max(0, min(end + 1 - place, row.end - row.position))
            for end, place, row in zip(self.table.ends, self.places, state.rows, strict=True)
        ]
        if not any(room):
            return nothing
        count = self.trees.slots(max(room))
        return self.trees.draft(*self.table.slots(self.places, self.before, count), room, state.eos)

    def _make_table(self, net_input: Mapping[str, Tensor], state: DecodeState) -> None:
        if not can_read(self.model.encoder, net_input["src_tokens"].size(1)):
            return
        try:
            lattice, first, edges = self.generator.scored(net_input, state.rows[0].tokens[0])
        except ValueError as error:  # too large for the memory there is
            logger.warning("%s: nothing is drafted for these sentences", error)
            return
        if (first.sum() + edges.sum()).isnan():
            self.broken = True
            logger.warning(
                "the scores of the lattice model of --drafter-path are not finite numbers: nothing is drafted from now "
                "on, decoding is one by one"
            )
            return
        self.table = LatticeTable(lattice, first, edges)
        if len(self.kept) < len(net_input["src_tokens"]):
            self.table.keep_rows(self.kept)  # some ended before anything was drafted

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        for row, emitted in enumerate(
            verdict.emitted
        ):  # where in the lattices the outputs stand now
            position = self.places[row] + len(emitted) - 1
            found: tuple[int, int | None] = position, None
            if self.table is not None:
                found = self.table.find(row, position, emitted[-1])
            self.places[row], self.before[row] = found[0] + 1, found[1]
        self.learn(verdict, self.once)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.kept = [self.kept[row] for row in rows]
        self.places = [self.places[row] for row in rows]
        self.before = [self.before[row] for row in rows]
        if self.table is not None:
            self.table.keep_rows(rows)
