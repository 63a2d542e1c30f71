"""The base class of drafters: what a drafter need not define does nothing, and nobody looks for more by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.search.drafter import DeviceDrafter, Drafter, EmptyDrafter
from fairseq_aggdec.search.state import DecodeState, Row

ROOT = Path(__file__).resolve().parents[2]
NOBODY: Any = None  # a verifier that is not asked


def state(rows: int) -> DecodeState:
    return DecodeState([Row(i, [2], end=9, floor=0) for i in range(rows)], 2, torch.device("cpu"))


@pytest.mark.parametrize("kind", [Drafter, DeviceDrafter, EmptyDrafter])
def test_what_is_not_defined_does_nothing(kind: type[Drafter]) -> None:
    drafter = kind()
    drafter.prepare(NOBODY)
    drafter.start({}, NOBODY, state(2))
    drafter.observe(NOBODY, state(2))
    drafter.keep_rows([1])
    drafter.forget()
    assert not drafter.starts_beside
    assert not (drafter.watches or drafter.reads({}))
    assert drafter.wait is None and drafter.encoder_seconds == 0.0


def test_a_drafter_must_draft() -> None:
    with pytest.raises(NotImplementedError, match="DeviceDrafter does not define draft"):
        DeviceDrafter().draft(state(1))


def test_a_drafter_of_the_device_leaves_a_batch_to_the_host_unless_it_says_more() -> None:
    assert DeviceDrafter().start_on_device(state(1)) is None
    assert EmptyDrafter().start_on_device(state(1)) == 0
    assert [list(row) for row in EmptyDrafter().draft(state(2)).tokens] == [[], []]


def test_no_attribute_of_a_drafter_is_found_by_name() -> None:
    sources = [
        path for room in ("fairseq_aggdec", "scripts") for path in (ROOT / room).rglob("*.py")
    ]
    by_name = re.compile(r"(get|has)attr\([\w.]*drafter\b")
    assert [path.name for path in sources if by_name.search(path.read_text(encoding="utf-8"))] == []
