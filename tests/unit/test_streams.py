"""Work beside other work: who waits for whom, told by a device that only takes notes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.graphs import streams
from fairseq_aggdec.engine.graphs.streams import Beside


class Stream:
    def __init__(self, name: str, notes: list[str]):
        self.name, self.notes = name, notes

    def record_event(self) -> str:
        self.notes.append(f"event of {self.name}")
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.notes.append(f"{self.name} waits for {event}")

    def wait_stream(self, other: Stream) -> None:
        self.notes.append(f"{self.name} waits for {other.name}")


def test_the_side_waits_for_what_was_before_and_the_main_for_the_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[str] = []
    main, side = Stream("main", notes), Stream("side", notes)

    @contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        notes.append(f"on {chosen.name}")
        yield
        notes.append("back")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(streams, "side_stream", lambda device, purpose: side)
    beside = Beside(torch.device("cuda"))
    notes.append("verifier encodes")
    with beside.work():
        notes.append("drafter encodes")
    assert notes == [
        *["event of main", "verifier encodes", "side waits for event of main"],
        *["on side", "drafter encodes", "back", "main waits for side"],
    ]


def test_the_main_waits_for_what_was_begun_before_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("main", notes))
    monkeypatch.setattr(torch.cuda, "stream", lambda chosen: nullcontext())
    monkeypatch.setattr(streams, "side_stream", lambda device, purpose: Stream("side", notes))
    with pytest.raises(ValueError), Beside(torch.device("cuda")).work():
        raise ValueError
    assert notes[-1] == "main waits for side"


def test_a_cpu_works_in_turn() -> None:
    done = []
    with Beside(torch.device("cpu")).work():
        done.append(1)
    assert done
