"""The board of beam search on a GPU in fewer launches: the twin of :mod:`~fairseq_aggdec.search.beam.board`, where the
kernels can say the same."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators as gpu
from fairseq_aggdec.kernels.gpu.largest import candidates, leading
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.search.beam.board import BeamBoard, BeamWindow
from fairseq_aggdec.search.board import Shape

# What the fused kernels know: beams, and precisions of a mask.
MOST_BEAM = 32
MASKS = torch.float32, torch.float16, torch.bfloat16


class FusedBoard(BeamBoard):
    """Finds the continuations and chooses, of beams up to 32: in two launches where n-grams may repeat.

    Attributes:
        at_once: the launch that chooses also joins what was found in parts of the logits; else another one does.
        places: (S, W) int64, where the keys and values of the next tokens will be.
    """

    def __init__(self, room: tuple[int, int], options: Options, prefix: int, like: Tensor):
        super().__init__(room, options, prefix, like)
        self.at_once = True
        self.places = self.slots.repeat(room[0], 1)

    def set(self, limits: Limits, start: int, prefixes: Sequence[Sequence[int]]) -> None:
        super().set(limits, start, prefixes)
        self.places.copy_(self.slots.expand_as(self.places))
        self.sight.diagonal(dim1=1, dim2=2).zero_()

    def window(self, shape: Shape) -> BeamWindow:
        rows, _, end = shape
        tokens, places = self.tokens[:rows].flatten(), self.places[:rows].flatten()
        return BeamWindow(tokens, places, shape, self.depths[:1], self.sight[:rows, :, :end])

    def take(self, rows: int, end: int, logits: Tensor) -> None:
        readable = logits.dtype in gpu.PRECISIONS and logits.is_contiguous()
        step = gpu.operators().beam_step
        found: tuple[Tensor | None, ...] = None, None, None
        parts: tuple[Any, ...] = 0, 0, 0
        options, lengths = self.options, self.lengths if self.options.match_source_len else None
        each = min(options.beam_size, logits.size(1)) + 1
        if readable and self.written is None and self.at_once:
            step, parts = gpu.operators().best_step, leading(logits, each - 1, self._rules())
        elif readable and self.written is None:
            found = self._best(rows, logits)
        else:
            found = self._continuations(rows, logits.float(), self._forced(rows))
        written, sight = self.written, self.sight
        step(
            *(rows, options.beam_size, each, options.eos, options.pad, self.prefix),
            *(self.room[1], sight.size(2), end, sight.element_size()),
            *(0 if written is None else written.size(2), *parts[:3]),
            *(options.unk, options.unk_penalty, *(parts[3:] or [None] * 3)),
            *(self.clock, *found, self.forced, lengths),
            *(self.depths, self.places, self.tokens, self.sums, self.rounds, self.count),
            *(self.flags, self.words, self.parents, self.totals, self.nodes, self.ends),
            *(sight, written),
        )

    def _best(self, rows: int, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """:meth:`_continuations`, of equal logits the first; behind those that have a chance is padding."""
        beam = self.options.beam_size
        kept = min(beam, logits.size(1))
        values, tokens, ends = candidates(logits, kept, self._rules())
        return values.view(rows, beam, kept), tokens.view(rows, beam, kept), ends.view(rows, beam)

    def _rules(self) -> tuple[Any, ...]:
        """Parameters of the kernels, ``width`` to ``forced``."""
        options = self.options
        symbols = options.pad, options.unk, options.eos, options.unk_penalty
        return options.beam_size, self.prefix, *symbols, self.clock, self.depths, self.forced


def board_for(room: tuple[int, int], options: Options, prefix: int, like: Tensor) -> BeamBoard:
    """A board of the fused kernels where they run, else of PyTorch's operators."""
    known = options.beam_size <= MOST_BEAM and like.dtype in MASKS
    if not (known and gpu.usable(like.device, chooses_alike)):
        return BeamBoard(room, options, prefix, like)
    board = FusedBoard(room, options, prefix, like)
    board.at_once = gpu.usable(like.device, chooses_at_once)
    return board


@gpu.tries("beam_step", "leaders", "best")
def chooses_alike(device: torch.device) -> bool:
    """Tells whether some steps leave the same on two boards, one for PyTorch's operators and one for the kernels."""
    return _steps_alike(device, False)


@gpu.tries("best_step")
def chooses_at_once(device: torch.device) -> bool:
    """Tells whether that holds where continuations are found and chosen in one launch."""
    return _steps_alike(device, True)


def _steps_alike(device: torch.device, at_once: bool) -> bool:
    chance = torch.Generator().manual_seed(7)
    # Steps, beam, places that are read: those of a captured step, and as many as end inside a word of the mask.
    return all(
        _step_alike(device, dtype, no_repeat, at_once, chance, *sizes)
        for dtype, no_repeat in itertools.product(MASKS, (0,) if at_once else (0, 2))
        for sizes in (((4, 4, 64),) if no_repeat or at_once else ((8, 4, 64), (2, 5, 15)))
    )


def _step_alike(
    device: torch.device,
    dtype: torch.dtype,
    no_repeat: int,
    at_once: bool,
    chance: torch.Generator,
    steps: int,
    beam: int,
    end: int,
) -> bool:
    types, rows = gpu.PART + 9, 2 * beam  # more than one part
    options = Options(
        *(2, 1, 3, beam, 0, 0, 9, 0, True, 1.0, 0.5, 1.0, False),
        *(no_repeat, frozenset(), None, False),
    )
    like = torch.zeros(1, dtype=dtype, device=device)
    fused = FusedBoard((2, 8), options, 2, like)
    fused.at_once = at_once
    boards = BeamBoard((2, 8), options, 2, like), fused
    for board in boards:
        board.set(Limits([6, 6], 2, False, 1), 2, [[7, 1], [1, 1]])
        board.window(Shape(2, beam, end))
    for _ in range(steps):
        # Eleven tokens and </s> are likely, none as likely as another.
        likely = torch.rand(rows, types, generator=chance).topk(12).indices
        likely[::2, -1] = options.eos
        logits = torch.randn(rows, types, generator=chance).clamp_(max=1.0)
        sums = torch.rand(rows, 12, generator=chance).add_(0.2).cumsum(1).add_(2)
        logits = logits.scatter_(1, likely, sums.roll(3, 1)).to(device, dtype)
        for board in boards:
            board.take(2, end, logits.clone())
            board.window(Shape(2, beam, end))
        plain, own = ([part.cpu() for part in _decided(board)] for board in boards)
        if not all(torch.allclose(*pair, 1e-4, 1e-4) for pair in zip(plain, own, strict=True)):
            return False
    return True


def _decided(board: BeamBoard) -> list[Tensor]:
    """Hides all but what counts on a board after a step: what a slot without a hypothesis holds does not."""
    ended, never = board.sums.isinf(), board.totals.isinf()
    slots = [board.tokens, board.sight] + ([] if board.written is None else [board.written])
    now = [x.view(*ended.shape, -1).masked_fill(ended.unsqueeze(2), 0) for x in slots]
    history = [x.masked_fill(never, 0) for x in (board.words, board.parents)]
    numbers = board.rounds, board.count, board.flags, board.sums, board.totals
    return [*numbers, board.nodes[:, 1:], board.ends[:, 1:], *now, *history]
