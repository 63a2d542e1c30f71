"""Every search ends soon when nobody wants its batch, and decodes the next one as if nothing had been."""

from __future__ import annotations

from typing import Any

import pytest

from fairseq_aggdec.options.stopping import Stopped, stoppable
from fairseq_aggdec.search.compiled import reader
from tests.serving import SENTENCES, tiny


@pytest.mark.parametrize(
    ("decoding", "compiled"),
    [("beam", True), ("beam", False), ("iad", True), ("iad", False), ("stock", True)],
)
def test_a_search_is_stopped(
    decoding: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = tiny(decoding, beam=5 if decoding == "beam" else 1)
    expected = translator.translate(SENTENCES)
    asked: list[Any] = []

    def unwanted() -> bool:
        asked.append(None)
        return len(asked) == 3

    monkeypatch.setattr(reader, "PAUSE", 0.0)  # one window a call
    options = {} if compiled else {"on_token": lambda *_: None}  # a watcher sees every iteration
    with stoppable(unwanted), pytest.raises(Stopped):
        translator.translate(SENTENCES, **options)
    assert len(asked) == 3
    assert translator.translate(SENTENCES) == expected
    with stoppable(lambda: False):
        assert translator.translate(SENTENCES) == expected
