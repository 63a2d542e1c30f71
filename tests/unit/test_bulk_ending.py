"""A worker that is asked to end gives its claim back, wherever the signal finds it."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fairseq_aggdec.jobs import claims, ending
from fairseq_aggdec.jobs.claims import Claims

WATCHED = {claims.__file__, ending.__file__, contextlib.__file__}


@contextlib.contextmanager
def asked_at(wanted: int) -> Iterator[list[bool]]:
    """The signal's handler runs before the opcode of this number; the value fills when it has."""
    count, asked = 0, []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in WATCHED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not asked:
            count += 1
            if count > wanted:
                asked.append(True)
                ending.ask(signal.SIGTERM)
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it when tracing begins
    sys.settrace(trace)
    try:
        yield asked
    finally:
        sys.settrace(before)


def work(folder: Path, wanted: int) -> tuple[bool, int | None]:
    """Whether the signal came while a claim was taken, held and given back, and the exit status."""
    asked: list[bool] = []
    try:
        with asked_at(wanted) as asked, Claims(folder).take("a") as mine:
            assert mine
            sorted("held")
    except SystemExit as end:
        return bool(asked), int(str(end.code))
    return bool(asked), None


def test_whichever_instruction_the_signal_comes_before(tmp_path: Path) -> None:
    number = 0
    while True:
        asked, status = work(tmp_path, number)
        if not asked:
            break
        if list(
            tmp_path.iterdir()
        ):  # the signal came before take() was resumed: it ends when it is collected
            gc.collect()
        assert status == 128 + signal.SIGTERM, number
        assert not list(tmp_path.iterdir()), number
        number += 1
    assert number > 100


def test_an_end_waits_for_what_belongs_together() -> None:
    steps = []
    with pytest.raises(SystemExit), ending.together():
        ending.ask(signal.SIGTERM)
        steps.append("together")
    with pytest.raises(SystemExit), ending.together():
        ending.ask(signal.SIGTERM)
        with ending.apart():
            steps.append("apart")
    with pytest.raises(SystemExit):
        ending.ask(signal.SIGTERM)
    assert steps == ["together"]


def test_an_end_that_a_library_replaces_is_still_one() -> None:
    """Its ``finally`` does not expect to be left half-way."""
    with pytest.raises(SystemExit) as end, ending.insisted():
        try:
            ending.ask(signal.SIGTERM)
        finally:
            raise AttributeError
    assert end.value.code == 128 + signal.SIGTERM
    with pytest.raises(AttributeError), ending.insisted():
        raise AttributeError
