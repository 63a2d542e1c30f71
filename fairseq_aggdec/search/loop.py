"""THE loop: a search asks, the model reads a window, the search takes what the model says, the model keeps what counts.

Greedy decoding, every kind of draft and verification, beam search, interleaved decoding and a drafter alone are
searches of this loop. A GPU runs the greedy ones without the host (:mod:`~fairseq_aggdec.search.ahead`). A lattice has
no loop: it is scored in one call.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.windows.window import Said


class Search(Protocol):
    """Decides what the model reads and what of that is kept."""

    @property
    def rows(self) -> Sequence[Any]:
        """Unfinished sentences, in the order of the model's cache."""

    def ask(self) -> Any:
        """The window that the model is to read next."""

    def take(self, window: Any, said: Said) -> Any:
        """Goes on with what the model said of a window, and says what the model keeps; None: all that it has."""


class ReadsWindows(Protocol):
    """A model that has been started on a batch."""

    def read(self, window: Any) -> Said:
        """Logits and features of the N positions of a window."""

    def keep(self, kept: Any) -> None:
        """Moves and drops keys and values, as the search said."""


@torch.inference_mode()
def decode(model: ReadsWindows, search: Search, counters: Counters) -> None:
    """Runs a search to its end; ``counters`` are told the calls and the seconds."""
    now = counters.read()
    while search.rows:
        window = search.ask()
        now = counters.ended("draft", now)
        said = model.read(window)
        now = counters.ended("verify", now)
        kept = search.take(window, said)
        if kept is not None:
            model.keep(kept)
        now = counters.ended("other", now)
        counters.calls += 1
