"""Searches of the compiled library whose windows PyTorch reads: layers that the library does not have, a grid, a GPU
that the host has to ask, a rule of acceptance in Python."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu.largest import first_largest
from fairseq_aggdec.options.stopping import check
from fairseq_aggdec.search.acceptance import Acceptance, drafted_next, known
from fairseq_aggdec.search.compiled.lines import RuledLines
from fairseq_aggdec.search.compiled.searches import WholeSearch, numbers
from fairseq_aggdec.search.compiled.tables import TableRequest, forced_logits, tables_of
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.rules import OwnRule
from fairseq_aggdec.windows.draft import Kept
from fairseq_aggdec.windows.tree_window import TreeWindow
from fairseq_aggdec.windows.window import DecoderOutput, Window

HOST = torch.device("cpu")


class WindowReader:
    """Runs a search of a batch that a model has taken up, window by window.

    Args:
        model: has ``read`` and ``keep``, as a verifier.
        device: of the model.
        accept: which drafted tokens are accepted.
        counters: get the seconds of each part, and the calls of the model.
        channels: of the features of the first model, if the search drafts from them; else 0.
        part: what the model's time counts as.
        rules: generation rules from outside the package.
    """

    def __init__(
        self,
        model: Any,
        device: torch.device,
        accept: Acceptance,
        counters: Counters,
        channels: int = 0,
        part: str = "verify",
        rules: Sequence[OwnRule] = (),
    ):
        self.model, self.device, self.counters = model, device, counters
        self.accept = None if known(accept) is not None else accept
        self.channels, self.part = channels, part
        self.ruled = RuledLines(rules) if rules else None
        self.rows: list[int] = []  # sentences, in the order of the model's cache
        self.last_output = DecoderOutput(torch.empty(0), [])

    def output(self, view: Any) -> DecoderOutput:
        """Output of the model for the last window."""
        return self.last_output

    @torch.inference_mode()
    def run(
        self,
        search: WholeSearch,
        watch: Callable[[], None] | None = None,
        draft: Callable[[], None] | None = None,
    ) -> None:
        """Decodes to the end; arguments as of :meth:`~fairseq_aggdec.search.compiled.reader.CompiledReaders.run`."""
        now = self.counters.read()
        while True:
            check()
            while not search.draft():
                assert draft is not None
                draft()
            request = search.ask()
            now = self.counters.ended("draft", now)
            if request is None:
                return
            window = self._window(request)
            self.last_output = self.model.read(window)
            now = self.counters.ended(self.part, now)
            self._take(search, request, window)
            if watch is not None:
                watch()
            self._keep(search)
            self.counters.calls += 1
            now = self.counters.ended("other", now)

    def _window(self, request: Any) -> Window:
        """The window that is asked for, of the sentences that are left."""
        starts, widths = (numbers(at, request.rows) for at in (request.starts, request.widths))
        flat = iter(numbers(request.moves, 3 * request.moved))
        rows = self.rows = self.rows or [row for row, width in enumerate(widths) if width]
        places = {row: place for place, row in enumerate(rows)}
        moves = zip(flat, flat, flat, strict=True)
        moved = [(places[row], *move) for row, *move in moves if row in places]
        if moved:
            self.model.keep(Kept(moved=moved))
        starts, widths = [starts[row] for row in rows], [widths[row] for row in rows]
        tokens = numbers(request.tokens, request.count)
        if not request.seen:
            return Window(tokens, starts, widths, device=self.device)
        size = request.seen_bytes
        packed = ctypes.string_at(request.seen, request.count * size)
        parts = (packed[n : n + size] for n in range(0, len(packed), size))
        seen = [int.from_bytes(part, "little") for part in parts]
        depths = numbers(request.depths, request.count)
        return TreeWindow(tokens, starts, widths, depths, seen, self.device)

    def _keep(self, search: WholeSearch) -> None:
        """The model drops the sentences that have ended, before anybody drafts for the others."""
        left = search.left(len(self.rows))
        if left and len(left) < len(self.rows):
            self.model.keep(Kept([place for place, row in enumerate(self.rows) if row in left]))
            self.rows = left

    def _take(self, search: WholeSearch, request: Any, window: Window) -> None:
        """Searches on; logits stay where they are, unless a rule of acceptance in Python reads them."""
        logits = self.last_output.logits
        if self.ruled is not None:
            search.change(self.ruled.changes(request, logits.size(1)))
            request = search.ask()
        table_request = TableRequest.of(request)
        stands = None
        if self.accept is not None and window.width > 1:
            stands = self._accepted(self.accept, table_request, logits, window)
            search.accept(stands)
        features = None
        if self.channels:
            features = self.last_output.features[0].to(HOST, torch.float32).contiguous()
            assert features.size(1) == self.channels
        search.take_tables(*tables_of(logits, table_request), features)

    def _accepted(
        self, accept: Acceptance, request: TableRequest, logits: Tensor, window: Window
    ) -> Tensor:
        """(N,) uint8: whether each token of a window of chains is accepted, by a rule in Python."""
        ruled = forced_logits(logits.to(HOST, torch.float32, copy=True), request)
        here = Window(window.host_tokens(), window.starts, window.widths, device=HOST)
        accepted = accept(ruled, first_largest(ruled), drafted_next(here))
        return accepted.to(torch.uint8).roll(1)  # of the position before a token
