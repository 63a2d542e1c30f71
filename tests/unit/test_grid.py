"""Windows laid out to a fixed shape."""

from __future__ import annotations

import torch

from fairseq_aggdec.windows.grid import Grid, laid_out
from fairseq_aggdec.windows.window import Window


def test_unused_slots_repeat_the_last_and_missing_rows_read_the_first_position() -> None:
    """The worked example of window.py in three rows of four slots."""
    window = Window(torch.tensor([5, 6, 7, 8]), [3, 1], [3, 1])
    sources, positions, last, slots = laid_out(window, 3, 4)
    assert last == positions  # nothing but a block sees what stands behind it
    assert sources == [0, 1, 2, 2, *[3] * 4, *[0] * 4]
    assert positions == [3, 4, 5, 5, *[1] * 4, *[0] * 4]
    assert slots == [0, 1, 2, 4]


def test_the_grid_of_a_window() -> None:
    grid = Grid(2, 3, 9)
    window, slots = grid.lay_out(Window(torch.tensor([7, 8, 9]), [3, 0], [2, 1]))
    assert window.tokens.tolist() == [7, 8, 8, 9, 9, 9]
    assert window.tokens[slots].tolist() == [7, 8, 9]
    assert window.row_of.tolist() == [0, 0, 0, 1, 1, 1]
    mask = window.mask(torch.float32)
    assert mask.shape == (2, 1, 3, 9)
    assert (mask[:, 0] == 0).sum(-1).tolist() == [[4, 5, 5], [1, 1, 1]]
    near = window.mask(torch.float32, span=1)
    assert (near[:, 0] == 0).sum(-1).tolist() == [[2, 2, 2], [1, 1, 1]]
    assert near[0, 0, 1].nonzero().flatten().tolist() == [0, 1, 2, 5, 6, 7, 8]
    assert grid.all_rows([1]) == [1, 1] and grid.all_rows([0, 1]) == [0, 1]
