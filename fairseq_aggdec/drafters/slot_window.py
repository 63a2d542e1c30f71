"""Windows of a drafter with mask slots on the device: what each row has committed, then its slots, on a grid.

The window begins at column 0; columns that a row does not use repeat its last mask slot.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators as gpu
from fairseq_aggdec.search.board import Board, Rows
from fairseq_aggdec.search.state import Row
from fairseq_aggdec.windows.transfer import send_into


class SlotForm(NamedTuple):
    """Tells how a drafter reads.

    Attributes:
        columns: N of the grid.
        shift: 1 where a slot predicts the token after it: the start symbol is read, and one mask slot fewer.
        size: k, drafted tokens.
        causal: only what was committed since the iteration before is read; else all of it, anew.
        pad: token of a mask slot.
    """

    columns: int
    shift: int
    size: int
    causal: bool
    pad: int


class SlotColumns(NamedTuple):
    """Columns of R rows: (R, N) int64 each, ``masked`` bool.

    Attributes:
        tokens: what is read. places: where. seen: the last place that is seen from there.
        masked: whether it is a mask slot.
        picked: (R, k) int64, which of the R N columns tell the drafted tokens.
        last: (R,) int64, the last committed tokens.
    """

    tokens: Tensor
    places: Tensor
    seen: Tensor
    masked: Tensor
    picked: Tensor
    last: Tensor


def slot_window(board: Board, rows: Rows, form: SlotForm) -> SlotColumns:
    """The columns of the rows of a board."""
    columns, shift, size, causal, pad = form
    owners, masks = rows.owners, size - shift
    # Keys and values that stay in the cache: what was committed before the last iteration.
    start = torch.minimum(rows.before, rows.base) if causal else torch.zeros_like(rows.base)
    prefix = (rows.base + shift - start).unsqueeze(1)  # of each window, (R, 1)
    used = torch.arange(columns, device=owners.device).minimum(prefix + masks - 1)
    places = start.unsqueeze(1) + used  # (R, N)
    masked = used >= prefix
    committed = (places + 1 - shift).masked_fill(masked, 0)
    tokens = board.tokens[owners.unsqueeze(1), committed].masked_fill_(masked, pad)
    end = places.max(1, keepdim=True).values
    first = prefix + masks - size
    seen = torch.where(used >= first, end, places) if causal else end.expand_as(places)
    rows_of = torch.arange(0, len(owners) * columns, columns, device=owners.device).unsqueeze(1)
    picked = rows_of + first + torch.arange(size, device=owners.device)
    return SlotColumns(tokens, places, seen, masked, picked, board.tokens[owners, rows.base])


def fused_slot_window(board: Board, rows: Rows, form: SlotForm) -> SlotColumns:
    """:func:`slot_window` in one launch."""
    columns, shift, size, causal, pad = form
    owners, count = rows.owners, len(rows.owners)
    tokens, places, seen = owners.new_empty(3, count, columns).unbind(0)
    masked = torch.empty_like(seen, dtype=torch.bool)
    picked, last = owners.new_empty(count, size), owners.new_empty(count)
    columns_of = SlotColumns(tokens, places, seen, masked, picked, last)
    sizes = count, columns, board.room[1], shift, size - shift, size, int(causal), pad
    gpu.ops().slots(*sizes, board.numbers, board.tokens, owners, *columns_of)
    return columns_of


def laid_out(board: Board, rows: Rows, form: SlotForm) -> SlotColumns:
    """:func:`slot_window`, fused where the kernel runs."""
    lay_out = gpu.either(fused_slot_window, slot_window, rows.owners.device, read_alike)
    return lay_out(board, rows, form)


def _twins(device: torch.device, count: int) -> gpu.Twins:
    board = Board((count, 64), 0, 0, device, torch.float32, pad=1)
    board.set([Row(i, [2, *range(4, 20)], end=60, floor=0) for i in range(count)])
    send_into(board.owners[:count], list(range(count)))
    window = board, board.rows(board.owners[:count]), SlotForm(24, 1, 4, True, 1)
    return gpu.Twins(lambda: fused_slot_window(*window), lambda: slot_window(*window))


@gpu.tries("slots", twins=_twins)
def read_alike(device: torch.device) -> bool:
    """Tells whether both say the same of a row at its start, one on its way, one that has ended and one that is
    none."""
    board = Board((3, 20), 0, 0, device, torch.float32, pad=1)
    board.set([Row(i, [2], end=9, floor=0) for i in range(3)])
    numbers = [[0, 0, 0, 0], [6, 3, 0, 2], [5, 4, 1, 2]]  # as board.py has them
    send_into(board.numbers[:3, :4], numbers)
    send_into(board.tokens, [list(range(row, row + 20)) for row in range(4)])
    send_into(board.owners, [1, 3, 0, 2])
    rows = board.rows(board.owners)
    return all(
        torch.equal(plain.cpu(), fused.cpu())
        for columns, causal in ((11, True), (13, False))
        for shift in (0, 1)
        for form in [SlotForm(columns, shift, 4, causal, 1)]
        for plain, fused in zip(
            slot_window(board, rows, form), fused_slot_window(board, rows, form), strict=True
        )
    )
