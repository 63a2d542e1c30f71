"""The state of the beam searches of a batch on a GPU, and one step of them by stock's rules, in PyTorch's operators.

All searches of a batch are at the same depth, as nothing is evaluated ahead. A row of the board is a sentence; its
slots are its unfinished hypotheses, best first. In the step of depth ``d`` slot ``i`` writes its keys and values at
place ``d * beam + i`` of the row's cache. They stay there: a hypothesis sees the places of its own tokens, so what a
step reorders are masks, not keys and values.

A slot without a hypothesis has a sum of -inf. So has every slot of a sentence that has ended. No operator looks at a
number on the host; tests/plain_beam_search.py is the reference.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_aggdec.engine.graphs.window_graphs import grid_end
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.search.board import Shape
from fairseq_aggdec.search.rules import (
    ForcedPrefix,
    MaximumLength,
    MinimumLength,
    Rules,
    Spots,
    change,
)
from fairseq_aggdec.windows.grid import GridWindow, Visibility
from fairseq_aggdec.windows.transfer import send_into, to_device


class BeamWindow(GridWindow):
    """One token of every slot.

    Args:
        tokens, places, shape: as of a :class:`~fairseq_aggdec.windows.grid.GridWindow`; the width is the beam.
        depth: (1,) int64, the position of all tokens in their sentences.
        visible: (R, W, ``capacity``) additive mask of the places that each slot sees.
    """

    def __init__(
        self, tokens: Tensor, places: Tensor, shape: Shape, depth: Tensor, visible: Tensor
    ):
        super().__init__(tokens, places, shape, reach=0)
        self.steps, self.visible = depth.expand(len(tokens)), visible

    def mask(self, dtype: torch.dtype, span: int | None = None) -> Tensor:
        return self.visible.unsqueeze(1)

    def visibility(self, span: int | None = None) -> Visibility:
        return Visibility(self.at, mask=self.visible.unsqueeze(1))


class BeamBoard:
    """Room for S sentences of up to T steps, with W slots each. Nothing moves while a batch is decoded.

    Sums of log-probabilities are fp64, as on the host: both searches then rank equal numbers alike.

    Args:
        room: S and T.
        options: generation options.
        prefix: P, the length of the forced prefixes.
        like: has the device and the precision of the model.

    Attributes:
        clock: (2,) int64: the depth at which ``</s>`` is forced (no step is deeper), and that before which it is
            banned.
        depths: (S,) int64, the depth of the next step, the same for all.
        tokens, sums: (S, W) int64 and fp64, the last token of each hypothesis, and its sum in nats.
        visibility: (S, W, places) additive mask of the places that a hypothesis sees.
        written: (S, W, T + 1) int64, start symbol and tokens of each hypothesis, kept where n-grams must not repeat.
        forced: (S, P + 1) int64, forced tokens, padding where there is none.
        lengths: (S,) int64, of the sources, which ``--match-source-len`` reads.
        rounds: (S,) int64, steps of each sentence.
        count: (S,) int64, finished hypotheses; -1 where the model gave no numbers.
        flags: (S,) int64, ``rounds``, or its complement where the sentence has ended.
        words, parents, totals: (S, T, W), of each step its tokens, the slots that they follow, their sums.
        nodes, ends: (S, W + 1) int64 and fp64, of the finished hypotheses, from 1 on in the order of finishing, ``depth
            * W + slot`` of the last token and the sum with ``</s>``. 0 takes what does not count.
    """

    def __init__(self, room: tuple[int, int], options: Options, prefix: int, like: Tensor):
        self.room, self.kind = room, (options, prefix, like.device, like.dtype)
        self.options, self.prefix = options, prefix
        (rows, length), beam, device = room, options.beam_size, like.device

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=torch.long, device=device)

        def sums(*shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=torch.float64, device=device)

        self.clock, self.slots = numbers().new_zeros(2), torch.arange(beam, device=device)
        self.tokens, self.sums = numbers(beam), sums(beam)
        self.visibility = like.new_empty(rows, beam, grid_end(beam * length))
        self.rules = Rules.of(options)
        self.written = numbers(beam, length + 1) if self.rules.reads_written else None
        self.forced, self.lengths = numbers(prefix + 1), numbers()
        cleared = torch.zeros(3, rows, dtype=torch.long, device=device)
        self.flags, self.cleared = numbers(), [cleared]  # in a list: permute() moves its parts
        self.rounds, self.count, self.depths = cleared.unbind(0)
        self.words, self.parents = numbers(length, beam), numbers(length, beam)
        self.totals = sums(length, beam)
        self.nodes, self.ends = numbers(beam + 1), sums(beam + 1)

    def set(self, limits: Limits, start: int, prefixes: Sequence[Sequence[int]]) -> None:
        """Takes up a batch; rows without a sentence have ended."""
        missing = self.room[0] - len(prefixes)
        send_into(self.clock, [limits.longest, limits.floor])
        self.tokens.fill_(start)
        self.sums.fill_(-torch.inf)
        self.sums[: len(prefixes), :1].zero_()
        self.visibility.fill_(-torch.inf)
        if self.written is not None:
            self.written[:, :, :1].fill_(start)
        pad = self.options.pad
        forced = [[*prefix, pad] for prefix in prefixes] + [[pad] * (self.prefix + 1)] * missing
        send_into(self.forced, forced)
        send_into(self.lengths, [*limits.ends, *[0] * missing])
        self.cleared[0].zero_()

    def permute(self, rows: Sequence[int]) -> None:
        """Makes row ``rows[i]`` row i; a row that is not among them stays."""
        order = to_device(list(rows), self.tokens.device)
        for state in vars(self).values():
            if isinstance(state, Tensor) and state is not self.clock and state is not self.slots:
                state[: len(rows)] = state.index_select(0, order)

    def window(self, shape: Shape) -> BeamWindow:
        """Window that the model reads in the next step of the first rows."""
        rows, beam, end = shape
        depth, visibility = self.depths[:1], self.visibility[:rows, :, :end]
        places = (depth * beam + self.slots).expand(rows, beam)
        visibility.scatter_(2, places.unsqueeze(2), 0.0)
        tokens = self.tokens[:rows].flatten()
        return BeamWindow(tokens, places.flatten(), shape, depth, visibility)

    def take(self, rows: int, end: int, logits: Tensor) -> None:
        """One step of the first rows.

        Args:
            rows: R.
            end: places of the cache that count.
            logits: (R W, V) of the model, in its precision.
        """
        forced = self._forced(rows)
        self._choose(rows, end, *self._continuations(rows, logits.float(), forced), forced)
        torch.minimum(self.depths + 1, self.clock[:1], out=self.depths)

    def _choose(
        self,
        rows: int,
        end: int,
        values: Tensor,
        tokens: Tensor,
        ends: Tensor,
        forced: Tensor | None,
    ) -> None:
        """Ends hypotheses and goes on with others; arguments as :meth:`take` gives them."""
        beam, known = self.options.beam_size, ~ends.isnan()
        values, tokens = self._ruled(rows, values, tokens, ends, forced)
        active = self.sums[:rows] > -torch.inf  # (R, W)
        each = self.sums[:rows].unsqueeze(2) + values
        each = each.masked_fill_(~active.unsqueeze(2), -torch.inf)
        best, index = _ranked(each.flatten(1), 2 * beam)
        if forced is not None:
            # Where the caller forces </s>, stock ends as many copies of the best hypothesis.
            copies = forced == self.options.eos
            best = torch.where(copies, best[:, :1], best)
            index = torch.where(copies, index[:, :1], index)
        words, parents = tokens.flatten(1).gather(1, index), index // values.size(2)
        ending = words == self.options.eos
        count = self._end(rows, best[:, :beam], parents[:, :beam], ending[:, :beam])
        going_on, chosen = _ranked(best.masked_fill(ending, -torch.inf), beam)
        broken = (active & ~known).any(1)
        left = (count < beam) & (going_on[:, 0] > -torch.inf) & ~broken
        self.count[:rows] = count.masked_fill(broken, -1)
        self.rounds[:rows] += active[:, 0]
        self.flags[:rows] = torch.where(left, self.rounds[:rows], ~self.rounds[:rows])
        going_on = going_on.masked_fill(~left.unsqueeze(1), -torch.inf)
        self._go_on(rows, end, words.gather(1, chosen), parents.gather(1, chosen), going_on)

    def _forced(self, rows: int) -> Tensor | None:
        """(R, 1) the token that the caller wants, padding where there is none."""
        if not self.prefix:
            return None
        spots = self._limits(rows)
        forced = ForcedPrefix(self.prefix).forced(spots.outputs, self.forced[:rows])
        return forced.masked_fill_(MaximumLength.holds(spots), self.options.pad)

    def _limits(self, rows: int) -> Spots:
        """The sentences of the first rows as rules about lengths read them, (R, 1)."""
        limit, floor = self.clock.split(1)
        depth = self.depths[:1].expand(rows, 1)
        return Spots(depth, end=limit, floor=floor, free_from=self.prefix)

    def _continuations(
        self, rows: int, logits: Tensor, forced: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens that may follow each hypothesis but for lengths: the likeliest tokens, best first, and ``</s>``.

        Returns:
            log-probabilities (R, W, K) fp32 and tokens (R, W, K) int64 without ``</s>``, and those of it (R, W), NaN
            where the model gave no numbers.
        """
        options, shape = self.options, (rows, self.options.beam_size, -1)
        log_probs = logits.log_softmax(-1)
        log_probs.select(1, options.pad).fill_(-torch.inf)
        if forced is not None:
            forced = forced.expand(*shape[:2]).reshape(-1, 1)  # (R W, 1)
        spots = self._spots(rows, forced)
        changes = [*self.rules.penalties(spots), *self.rules.bans(spots)]
        change(log_probs, changes, spots.outputs.shape)
        ends = log_probs[:, options.eos].clone()
        if forced is not None:
            self.rules.hide_others(log_probs, forced)
        log_probs.select(1, options.eos).fill_(-torch.inf)
        values, tokens = log_probs.topk(min(options.beam_size, log_probs.size(1)))
        return values.view(*shape), tokens.view(*shape), ends.view(rows, -1)

    def _ruled(
        self, rows: int, values: Tensor, tokens: Tensor, ends: Tensor, forced: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The continuations with ``</s>`` behind the others, as lengths allow them: (R, W, K + 1)."""
        options, spots = self.options, self._limits(rows)
        values = values.masked_fill(MaximumLength.holds(spots).unsqueeze(2), -torch.inf)
        if options.match_source_len:
            # Stock gives a forced end the log-probability 0, beside whatever else may come.
            free = MaximumLength.holds(spots._replace(end=self.lengths[:rows].unsqueeze(1)))
            ends = torch.full_like(ends, -torch.inf).masked_fill_(free, 0.0)
        else:
            banned = MinimumLength.holds(spots)
            if forced is not None:
                banned = banned | ((forced != options.pad) & (forced != options.eos))
            ends = ends.masked_fill(banned, -torch.inf)
        eos = torch.full_like(tokens[:, :, :1], options.eos)
        return torch.cat([values, ends.unsqueeze(2)], 2), torch.cat([tokens, eos], 2)

    def _spots(self, rows: int, forced: Tensor | None) -> Spots:
        """The hypotheses of the first rows as rules read them, (R W, 1)."""
        outputs = self.depths[:1].expand(rows * self.options.beam_size, 1)
        written = None if self.written is None else self.written[:rows].flatten(0, 1)
        is_forced = None if forced is None else forced != self.options.pad
        if self.rules.own_rules:
            at_end = MaximumLength.holds(Spots(outputs, end=self.clock[:1]))
            is_forced = at_end if is_forced is None else is_forced | at_end
        return Spots(outputs, written, forced=is_forced)

    def _end(self, rows: int, sums: Tensor, parents: Tensor, ending: Tensor) -> Tensor:
        """Notes the hypotheses that end, of the W best (R, W) each; returns how many there are now, (R,)."""
        beam = self.options.beam_size
        ending = ending & (sums > -torch.inf)
        at = self.count[:rows].unsqueeze(1) + ending.cumsum(1)
        ending &= at <= beam
        at = at.masked_fill_(~ending, 0)
        self.nodes[:rows].scatter_(1, at, self.depths[:1] * beam + parents)
        self.ends[:rows].scatter_(1, at, sums)
        return self.count[:rows] + ending.sum(1)

    def _go_on(self, rows: int, end: int, words: Tensor, parents: Tensor, sums: Tensor) -> None:
        """Makes the continuations, (R, W) each, the unfinished hypotheses."""
        depth = self.depths[:1]
        for history, new in ((self.words, words), (self.parents, parents), (self.totals, sums)):
            history[:rows].index_copy_(1, depth, new.unsqueeze(1))
        self.tokens[:rows], self.sums[:rows] = words, sums
        visibility = self.visibility[:rows, :, :end]
        visibility.copy_(visibility.gather(1, parents.unsqueeze(2).expand_as(visibility)))
        if self.written is not None:
            written = self.written[:rows]
            written.copy_(written.gather(1, parents.unsqueeze(2).expand_as(written)))
            written.index_copy_(2, depth + 1, words.unsqueeze(2))


def _ranked(sums: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of (R, N) and their places; of equal ones that of the earlier hypothesis comes first."""
    values, places = sums.sort(dim=1, descending=True, stable=True)
    return values[:, :count], places[:, :count]
