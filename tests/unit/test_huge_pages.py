"""Huge pages: every page of a block, contents untouched, no harm where there are none."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.kernels import huge_pages
from fairseq_aggdec.kernels.huge_pages import page_size, use_huge_pages


class Advice:
    """Stands for the system: grants every other page."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __call__(self, start: int, size: int, advice: int) -> int:
        assert advice == huge_pages.COLLAPSE
        self.asked.append((start, size))
        return -(len(self.asked) % 2)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.sampled_from([64, 4096, 2**16]))
def test_every_page_that_the_block_touches(address: int, size: int, page: int) -> None:
    advice = Advice()
    with (
        mock.patch.object(huge_pages, "page_size", lambda: page),
        mock.patch.object(huge_pages, "advise", lambda: advice),
    ):
        granted = use_huge_pages(address, size)
    first, last = address // page, (address + size - 1) // page
    assert advice.asked == [(number * page, page) for number in range(first, last + 1)]
    assert granted == len(advice.asked) // 2


def test_contents_stay() -> None:
    x = torch.arange(3 * 2**20)  # 24 MiB
    use_huge_pages(x.data_ptr(), x.nbytes)
    assert torch.equal(x, torch.arange(3 * 2**20))


@pytest.mark.parametrize("enabled", [None, "always madvise [never]\n"])
def test_nothing_happens_where_there_are_none(
    enabled: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_pages, "SETTINGS", tmp_path)
    if enabled is not None:
        (tmp_path / "enabled").write_text(enabled)
        (tmp_path / "hpage_pmd_size").write_text("2097152\n")
    page_size.cache_clear()
    try:
        x = torch.zeros(2**20)
        assert page_size() == 0
        assert use_huge_pages(x.data_ptr(), x.nbytes) == 0
    finally:
        page_size.cache_clear()
