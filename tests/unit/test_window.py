"""Window: where each token stands in the grid and the sentence, and what it may see."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.windows.window import Window

ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=5)


def make_window(rows: list[tuple[int, int]]) -> Window:
    """A window of (start, width) rows with tokens 100, 101, ..."""
    starts, widths = [start for start, _ in rows], [width for _, width in rows]
    return Window(torch.arange(100, 100 + sum(widths)), starts, widths)


def test_the_worked_example() -> None:
    window = make_window([(3, 3), (1, 1)])
    assert window.slots.tolist() == [0, 1, 2, 3]
    assert window.row_of.tolist() == [0, 0, 0, 1]
    assert window.positions.tolist() == [3, 4, 5, 1]
    assert (window.rows, window.width, window.end) == (2, 3, 6)
    assert not window.level
    assert not window.dense


@given(ROWS)
def test_every_token_has_its_place(rows: list[tuple[int, int]]) -> None:
    window = make_window(rows)
    places = [(row, offset) for row, (_, width) in enumerate(rows) for offset in range(width)]
    assert window.row_of.tolist() == [row for row, _ in places]
    assert window.positions.tolist() == [rows[row][0] + offset for row, offset in places]
    assert window.slots.tolist() == [row * window.width + offset for row, offset in places]
    assert window.end == max(start + width for start, width in rows)
    assert window.level == (len({start for start, _ in rows}) == 1)
    assert window.dense == (len({width for _, width in rows}) == 1)


@given(ROWS)
def test_grid_and_back(rows: list[tuple[int, int]]) -> None:
    window = make_window(rows)
    x = torch.arange(1.0, 1 + 2 * window.tokens.numel()).view(-1, 2)
    grid = window.to_grid(x)
    assert grid.shape == (len(rows), window.width, 2)
    assert torch.equal(window.from_grid(grid), x)
    for row, (_, width) in enumerate(rows):
        assert torch.equal(grid[row, :width], x[window.row_of == row])
        assert not grid[row, width:].any()


@given(ROWS)
def test_from_grid_reads_no_hole(rows: list[tuple[int, int]]) -> None:
    window = make_window(rows)
    grid = torch.full((len(rows), window.width, 1), torch.nan)
    for row, (_, width) in enumerate(rows):
        grid[row, :width] = row
    assert torch.equal(window.from_grid(grid).flatten(), window.row_of.float())


@given(ROWS)
def test_a_slot_sees_its_own_position_and_what_stands_before(rows: list[tuple[int, int]]) -> None:
    window = make_window(rows)
    mask = window.mask(torch.float32)
    if mask is None:
        assert window.level
        assert window.width == 1
        return
    mask = mask.expand(len(rows), 1, window.width, window.end)
    for row, (start, width) in enumerate(rows):
        for offset in range(width):
            seen = mask[row, 0, offset] == 0
            assert seen.nonzero().flatten().tolist() == list(range(start + offset + 1))
            assert (mask[row, 0, offset][~seen] == -torch.inf).all()


@given(ROWS, st.data())
def test_a_block_sees_the_whole_window(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    blocks = [data.draw(st.integers(0, width)) for _, width in rows]
    span = data.draw(st.sampled_from([None, 0, 2, 5]))
    starts, widths = [start for start, _ in rows], [width for _, width in rows]
    window = Window(torch.arange(sum(widths)), starts, widths, blocks)
    mask = window.mask(torch.float32, span)
    if mask is None:
        mask = torch.zeros(len(rows), 1, window.width, window.end)
    for row, (start, width) in enumerate(rows):
        for slot in range(width):
            last = start + (width - 1 if slot >= blocks[row] else slot)
            first = 0 if span is None else max(0, start + slot - span)
            seen = (mask[row, 0, slot] == 0).nonzero().flatten().tolist()
            assert seen == list(range(first, last + 1))


def test_masks_grow_beyond_what_was_kept() -> None:
    for start, width in ((0, 3), (500, 4), (2, 2)):
        mask = make_window([(start, width)]).mask(torch.float32)
        assert mask is not None
        assert mask.shape[-2:] == (width, start + width)
        assert (mask[0, 0] == 0).sum(-1).tolist() == [start + i + 1 for i in range(width)]


def test_mask_has_the_asked_type() -> None:
    for rows in ([(1, 2)], [(1, 2), (3, 1)]):
        mask = make_window(rows).mask(torch.bfloat16)
        assert mask is not None
        assert mask.dtype is torch.bfloat16
