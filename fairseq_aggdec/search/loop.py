"""The decoding loop: a search proposes a window, the model reads it, the search accepts what it can use of the output.

Greedy decoding with any drafter, beam search, interleaved decoding and a drafter without a verifier are searches of
this loop. On a GPU, :mod:`fairseq_aggdec.search.ahead` runs the same iterations without waiting for the host. A lattice
has no loop: one call scores it.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from fairseq_aggdec.options.stopping import check
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.windows.window import DecoderOutput


class Search(Protocol):
    """Decides what the model reads next and what its KV cache keeps of that."""

    @property
    def rows(self) -> Sequence[Any]:
        """Unfinished sentences, in the order of the model's cache."""

    def next_window(self) -> Any:
        """The window that the model reads in this iteration."""

    def update(self, window: Any, output: DecoderOutput) -> Any:
        """Goes on with the model's output for the window. Returns what the KV cache keeps; None: all of it."""


class WindowModel(Protocol):
    """A model that has been started on a batch."""

    def read(self, window: Any) -> DecoderOutput:
        """Logits and features of the N positions of a window."""

    def keep(self, kept: Any) -> None:
        """Moves and drops keys and values in the cache."""


@torch.inference_mode()
def decode(model: WindowModel, search: Search, counters: Counters) -> None:
    """Runs a search until no row is left; ``counters`` gets the number of calls and the seconds of each part."""
    now = counters.read()
    while search.rows:
        check()
        window = search.next_window()
        now = counters.ended("draft", now)
        output = model.read(window)
        now = counters.ended("verify", now)
        kept = search.update(window, output)
        if kept is not None:
            model.keep(kept)
        now = counters.ended("other", now)
        counters.calls += 1
