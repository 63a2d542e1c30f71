"""Beam search on the board: on a GPU without the host, where a step is one captured graph.

Nothing is evaluated ahead of the search, and no step is copied to the host. All that was found comes in one copy when
the last sentence has ended. On any device this is also the search where there is no compiled library.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.engine.graphs.window_graphs import grid_end, grid_rows
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.search.ahead import AheadLoop
from fairseq_aggdec.search.beam.board import BeamBoard
from fairseq_aggdec.search.beam.fused import board_for
from fairseq_aggdec.search.beam.tree import ROOT, Ending, SearchedTree, Tree
from fairseq_aggdec.search.board import Shape
from fairseq_aggdec.search.compiled.searches import Outputs
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.windows.transfer import read


class BeamLoop(AheadLoop):
    """Decodes batches that the verifier has taken up, one after the other."""

    board: BeamBoard
    watch: Callable[[Sequence[SearchedTree]], None] | None = None

    @property
    def flags(self) -> Tensor:
        return self.board.flags

    def decode(
        self,
        options: Options,
        limits: Limits,
        start: int,
        prefixes: Sequence[Sequence[int]],
        counters: Counters,
        watch: Callable[[Sequence[SearchedTree]], None] | None = None,
    ) -> DeviceOutputs:
        """The finished hypotheses of all sentences; arguments as of
        :class:`~fairseq_aggdec.search.beam.library.BeamLibrary`. ``watch`` is shown the trees after every step.

        Raises:
            NonFiniteError: the model gave no numbers where the search needs them.
        """
        count = len(prefixes)
        self._take_up(options, limits.longest, count, len(prefixes[0]))
        self.board.set(limits, start, prefixes)
        self.order, self.left, self.longest = list(range(count)), count, limits.longest + 1
        self.watch, self.start = watch, start
        steps = self._run(count, 0, counters)
        outputs = DeviceOutputs(self.board, self.order, limits, steps)
        outputs.count(counters)
        return outputs

    def _take_up(self, options: Options, longest: int, count: int, prefix: int) -> None:
        """Makes a new board where the batch has no place on the last."""
        _, like = self.reader.head_input
        wanted = grid_rows(count), grid_end(longest + 1)
        board: BeamBoard | None = vars(self).get("board")
        if board is not None and board.kind == (options, prefix, like.device, like.dtype):
            if all(map(operator.ge, board.room, wanted)):
                return
            wanted = max(wanted[0], board.room[0]), max(wanted[1], board.room[1])
        self._drop()
        self.board = board_for(wanted, options, prefix, like)

    def _shape(self, rows: int, size: int, end: int) -> Shape:
        beam = self.board.options.beam_size
        return Shape(rows, beam, end * beam)

    def _step(self, shape: Shape) -> Tensor:
        output = self.reader.read(self.board.window(shape), in_fp32=False)
        self.board.take(shape.rows, shape.end, output.logits)
        return self.board.flags

    def _launch(self, sentences: Sequence[int], size: int, end: int) -> None:
        super()._launch(sentences, size, end)
        if self.watch is not None:
            self.watch(self.trees())

    def trees(self) -> list[SearchedTree]:
        """Tells how each sentence of the batch was searched so far; one transfer."""
        board, count = self.board, len(self.order)
        states = board.rounds, board.flags, board.words, board.parents, board.totals
        parts = read([x[:count] for x in (*states, board.count, board.nodes, board.ends)])
        searched = map(self._tree, self.order, *(part.tolist() for part in parts))
        return sorted(searched, key=operator.attrgetter("index"))

    def _tree(self, index: int, rounds: int, flag: int, *written: Any) -> SearchedTree:
        """The tree of a sentence; ``written`` is its row of the board's fields of the same names."""
        words, parents, totals, count, nodes, ends = written
        search = SearchedTree(index, Tree([ROOT], [self.start]))
        tree, of_slot = search.tree, [{0: ROOT}]  # of each depth, the node of each slot
        for step in range(rounds):
            search.nodes_of_calls.append([node for _, node in search.active])
            live = [slot for slot, total in enumerate(totals[step]) if total > -torch.inf]
            before = of_slot[step]
            of_slot.append({s: tree.child(before[parents[step][s]], words[step][s]) for s in live})
            search.beams.append([(totals[step][s], node) for s, node in of_slot[-1].items()])
        tree.placed = [node for call in search.nodes_of_calls for node in call]
        tree.used = set(tree.placed)
        tree.totals = {node: total for beam in search.beams for total, node in beam}
        ended = [divmod(node, self.board.options.beam_size) for node in nodes[1 : count + 1]]
        for (depth, slot), total in zip(ended, ends[1:], strict=False):
            search.endings.append(Ending(total, of_slot[depth][slot]))
        search.gains, search.done = [1] * rounds, flag < 0
        return search

    def _keep_rows(self, rows: Sequence[int]) -> None:
        super()._keep_rows(rows)
        kept = set(rows)
        order = [*rows, *(row for row in range(self.left) if row not in kept)]
        self.board.permute(order)
        self.order[: self.left] = [self.order[row] for row in order]
        self.left = len(rows)


class DeviceOutputs(Outputs):
    """The finished hypotheses of a batch, read as those of the compiled library; one transfer.

    Args:
        board: whose sentences have ended.
        order: the sentence of each row.
        limits: lengths of the outputs.
        steps: how many the device has done.

    Attributes:
        nodes: prefixes that the search needed.

    Raises:
        NonFiniteError: the model gave no numbers where the search needs them.
    """

    def __init__(self, board: BeamBoard, order: Sequence[int], limits: Limits, steps: int):
        self.lengths = limits.ends if limits.exact else None
        count, rows = len(order), torch.tensor(order).argsort()  # the row of each sentence
        states = [x[:count] for x in (board.ends, board.nodes, board.count, board.rounds)]
        states += [x[:count, :steps] for x in (board.totals, board.words, board.parents)]
        ends, nodes, finished, rounds, totals, words, parents = (x[rows] for x in read(states))
        if (finished < 0).any():
            raise NonFiniteError(int((finished < 0).int().argmax()))
        self.rounds = rounds.int().tolist()
        # Behind its end a sentence has numbers of other batches.
        live = torch.arange(totals.size(1)) < rounds.unsqueeze(1)
        self.nodes = count + int((totals.isfinite() & live.unsqueeze(2)).sum())
        columns, beam = torch.arange(nodes.size(1)), words.size(2)
        owners, at = ((columns > 0) & (columns <= finished.unsqueeze(1))).nonzero(as_tuple=True)
        ends, nodes = ends[owners, at], nodes[owners, at].long()
        self.owners, self.totals = owners.tolist(), ends.tolist()
        self.sizes = (nodes // beam + 1).tolist()
        longest = max(self.sizes, default=1)
        self.words = torch.full((len(owners), longest), board.options.eos)
        sums = ends.new_zeros(len(owners), longest)
        sums.scatter_(1, (nodes // beam).unsqueeze(1), ends.unsqueeze(1))
        slots = nodes % beam
        for step in reversed(range(longest - 1)):
            on = (step < nodes // beam).nonzero().squeeze(1)
            place = owners[on], step, slots[on]
            self.words[on, step] = words[place].long()
            sums[on, step] = totals[place]
            slots[on] = parents[place].long()
        self.gains = sums.diff(dim=1, prepend=sums.new_zeros(len(owners), 1)).float()

    def tokens(self) -> list[list[int]]:
        return [row[:size] for row, size in zip(self.words.tolist(), self.sizes, strict=True)]

    def scores(self) -> list[list[float]]:
        return [row[:size] for row, size in zip(self.gains.tolist(), self.sizes, strict=True)]

    def count(self, counters: Counters) -> None:
        """Adds the batch to the statistics, but for its calls."""
        iterations = sum(self.rounds)
        counters.sentences += len(self.rounds)
        counters.iterations += iterations
        counters.nodes += self.nodes
        counters.nodes_used += self.nodes
        counters.emitted[1] += iterations
