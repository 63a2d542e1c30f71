"""The board of beam search on a GPU in fewer launches: the twin of :mod:`~fairseq_aggdec.search.beam.board`, where the
kernels can say the same."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.kernels import gpu
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

    at_once = True

    def __init__(self, room: tuple[int, int], options: Options, prefix: int, like: Tensor):
        super().__init__(room, options, prefix, like)
        self.places = self.slots.repeat(room[0], 1)

    def set(self, limits: Limits, start: int, prefixes: Sequence[Sequence[int]]) -> None:
        super().set(limits, start, prefixes)
        self.places.copy_(self.slots.expand_as(self.places))
        self.visibility.diagonal(dim1=1, dim2=2).zero_()

    def window(self, shape: Shape) -> BeamWindow:
        rows, _, end = shape
        tokens, places = self.tokens[:rows].flatten(), self.places[:rows].flatten()
        return BeamWindow(tokens, places, shape, self.depths[:1], self.visibility[:rows, :, :end])

    def take(self, rows: int, end: int, logits: Tensor) -> None:
        readable = logits.dtype in gpu.operators.PRECISIONS and logits.is_contiguous()
        step = gpu.operators.ops().beam_step
        continuations: tuple[Tensor | None, ...] = None, None, None
        parts: tuple[Any, ...] = 0, 0, 0
        options, lengths = self.options, self.lengths if self.options.match_source_len else None
        each = min(options.beam_size, logits.size(1)) + 1
        if readable and self.written is None and self.at_once:
            step, parts = (
                gpu.operators.ops().best_step,
                gpu.largest.leading(logits, each - 1, self._rules()),
            )
        elif readable and self.written is None:
            continuations = self._best(rows, logits)
        else:
            continuations = self._continuations(rows, logits.float(), self._forced(rows))
        written, visibility = self.written, self.visibility
        step(
            *(rows, options.beam_size, each, options.eos, options.pad, self.prefix),
            *(self.room[1], visibility.size(2), end, visibility.element_size()),
            *(0 if written is None else written.size(2), *parts[:3]),
            *(options.unk, options.unk_penalty, *(parts[3:] or [None] * 3)),
            *(self.clock, *continuations, self.forced, lengths),
            *(self.depths, self.places, self.tokens, self.sums, self.rounds, self.count),
            *(self.flags, self.words, self.parents, self.totals, self.nodes, self.ends),
            *(visibility, written),
        )

    def _best(self, rows: int, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """:meth:`_continuations`, of equal logits the first; behind those that have a chance is padding."""
        beam = self.options.beam_size
        kept = min(beam, logits.size(1))
        values, tokens, ends = gpu.largest.candidates(logits, kept, self._rules())
        return values.view(rows, beam, kept), tokens.view(rows, beam, kept), ends.view(rows, beam)

    def _rules(self) -> tuple[Any, ...]:
        """Parameters of the kernels, ``width`` to ``forced``."""
        options = self.options
        symbols = options.pad, options.unk, options.eos, options.unk_penalty
        return options.beam_size, self.prefix, *symbols, self.clock, self.depths, self.forced


class JoiningBoard(FusedBoard):
    """Joins what was found in parts of the logits in a launch of its own."""

    at_once = False


def board_for(room: tuple[int, int], options: Options, prefix: int, like: Tensor) -> BeamBoard:
    """A board of the fused kernels where they run, else of PyTorch's operators."""
    known = options.beam_size <= MOST_BEAM and like.dtype in MASKS and not options.own_rules
    device, kind = like.device, BeamBoard
    if known:
        fused = gpu.operators.either(FusedBoard, JoiningBoard, device, chooses_at_once)
        kind = gpu.operators.either(fused, BeamBoard, device, chooses_alike)
    return kind(room, options, prefix, like)


def _twins(device: torch.device, count: int, at_once: bool = False) -> gpu.operators.Twins:
    beam = 4
    like = torch.zeros(1, dtype=torch.float16, device=device)
    logits = torch.randn(
        count * beam, gpu.operators.TYPES, generator=torch.Generator().manual_seed(7)
    )
    on_device = logits.to(like)

    def work(board: BeamBoard) -> Callable[[], None]:
        board.set(Limits([60] * count, 60, False, 1), 2, [[]] * count)

        def step() -> None:
            board.depths.zero_()  # a search ends, what is timed does not
            board.window(Shape(count, beam, gpu.operators.KEYS))
            board.take(count, gpu.operators.KEYS, on_device)

        return step

    fused = FusedBoard((count, gpu.operators.KEYS), _options(beam), 0, like)
    fused.at_once = at_once
    return gpu.operators.Twins(
        work(fused), work(BeamBoard((count, gpu.operators.KEYS), _options(beam), 0, like))
    )


@gpu.operators.tries("beam_step", "leaders", "best", twins=_twins)
def chooses_alike(device: torch.device) -> bool:
    """Tells whether some steps leave the same on two boards, one for PyTorch's operators and one for the kernels."""
    return _steps_alike(device, False)


@gpu.operators.tries("best_step", twins=functools.partial(_twins, at_once=True))
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
    types, rows = gpu.operators.PART + 9, 2 * beam  # more than one part
    options = _options(beam, no_repeat)
    like = torch.zeros(1, dtype=dtype, device=device)
    fused = FusedBoard((2, 8), options, 2, like)
    fused.at_once = at_once
    boards = BeamBoard((2, 8), options, 2, like), fused
    for board in boards:
        # The second row is forced one step later than the first.
        board.set(Limits([6, 6], 2, False, 1), 2, [[7, 1], [1, 7]])
        board.window(Shape(2, beam, end))
    for _ in range(steps):
        # Eleven tokens and </s> are likely, none as likely as another.
        likely = torch.rand(rows, types, generator=chance).topk(12).indices
        likely[::2, -1] = options.eos
        logits = torch.randn(rows, types, generator=chance).clamp_(max=1.0)
        sums = torch.rand(rows, 12, generator=chance).add_(0.2).cumsum(1).add_(2)
        logits = logits.scatter_(1, likely, sums.roll(3, 1))
        # The unknown word is one of the four likeliest but for its penalty.
        logits[::2, options.unk], logits[1::2, options.unk] = (
            sums[::2, 7] + 0.1,
            sums[1::2, 8] + 0.1,
        )
        logits = logits.to(device, dtype)
        for board in boards:
            board.take(2, end, logits.clone())
            board.window(Shape(2, beam, end))
        plain, by_kernels = ([part.cpu() for part in _decided(board)] for board in boards)
        if not all(
            torch.allclose(*pair, 1e-4, 1e-4) for pair in zip(plain, by_kernels, strict=True)
        ):
            return False
    return True


def _options(beam: int, no_repeat: int = 0) -> Options:
    return Options(
        *(2, 1, 3, beam, 0, 0, 9, 0, True, 1.0, 0.3, 1.0, False),
        *(no_repeat, frozenset(), None, False),
    )


def _decided(board: BeamBoard) -> list[Tensor]:
    """Hides all but what counts on a board after a step: what a slot without a hypothesis holds does not."""
    ended, never = board.sums.isinf(), board.totals.isinf()
    slots = [board.tokens, board.visibility] + ([] if board.written is None else [board.written])
    now = [x.view(*ended.shape, -1).masked_fill(ended.unsqueeze(2), 0) for x in slots]
    history = [x.masked_fill(never, 0) for x in (board.words, board.parents)]
    numbers = board.rounds, board.count, board.flags, board.sums, board.totals
    return [*numbers, board.nodes[:, 1:], board.ends[:, 1:], *now, *history]
