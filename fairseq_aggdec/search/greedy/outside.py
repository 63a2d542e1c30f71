"""A drafter in Python beside a greedy search of the compiled library: one call of Python for each iteration."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from fairseq_aggdec.search.compiled.searches import WholeSearch, address, floats, numbers
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict
from fairseq_aggdec.windows.transfer import int64_array
from fairseq_aggdec.windows.window import DecoderOutput, Window

OnIteration = Callable[[Verdict, DecodeState], None]


class Follower:
    """Keeps the rows of a batch as the search in the library has them, and tells drafter and watch of every iteration.

    Args:
        search: of the batch.
        state: of the batch, which has just begun.
        drafter: hears what became of drafts; None: it drafts in the library.
        watch: is called after each iteration, while ``state`` still has all rows that were verified; None: nobody asks.
        output: what is seen of a window -> what the model said of it; None: it is not known.
        trusts: nobody verifies: all places of a window are drafted.

    Attributes:
        positions: those that the verifier has learned; None: it reads any.
    """

    positions: int | None = None

    def __init__(
        self,
        search: WholeSearch,
        state: DecodeState,
        drafter: Drafter | None = None,
        watch: OnIteration | None = None,
        output: Callable[[Any], DecoderOutput | None] = lambda view: None,
        trusts: bool = False,
    ):
        self.search, self.state, self.drafter, self.watch = search, state, drafter, watch
        self.output, self.trusts = output, trusts
        self.calls = 0
        self.seconds = 0.0
        overrides = getattr(type(drafter), "observe", Drafter.observe) is not Drafter.observe
        observed = overrides or "observe" in vars(drafter or state)
        self.observer = drafter if observed else None
        search.library.aggdec_greedy_watch(search.handle)

    def follow(self) -> None:
        """Takes up what became of the last window, once."""
        view = self.search.verdict()
        if view.calls == self.calls:
            return
        self.calls, state = view.calls, self.state
        rows = state.rows
        emitted = split(numbers(view.gained, view.gains), numbers(view.emitted, view.count))
        if self.observer is not None or self.watch is not None or rows[0].history is not None:
            verdict = self._verdict(view, emitted)
        else:
            verdict = None
        for place, (row, gained) in enumerate(zip(rows, emitted, strict=True)):
            if row.history is not None:
                assert verdict is not None
                row.history.append(row.tokens[1:] + verdict.drafted_paths()[place])
            row.tokens.extend(gained)
            row.iterations += 1
        if verdict is not None and self.observer is not None:
            self.observer.observe(verdict, state)
        if verdict is not None and self.watch is not None:
            self.watch(verdict, state)
        keep = [place for place, row in enumerate(rows) if row.tokens[-1] != state.eos]
        if len(keep) < len(rows):
            state.finished.extend(row for row in rows if row.tokens[-1] == state.eos)
            state.rows = [rows[place] for place in keep]
            if keep and self.drafter is not None:
                self.drafter.keep_rows(keep)

    def draft(self) -> None:
        """Has the drafter draft for the rows that are left.

        Raises:
            ValueError: what it drafts is no draft.
        """
        assert self.drafter is not None
        self.follow()
        draft = self.drafter.draft(self.state)
        tokens = draft.tokens
        lengths = [len(row) for row in tokens]
        parents = draft.all_parents() if draft.branches else []
        said = [len(row) for row in parents]
        if len(lengths) == len(self.state.rows) and said in (lengths, []):
            flat = (itertools.chain.from_iterable(rows) for rows in (tokens, parents))
            arrays = [int64_array(list(part)) for part in (lengths, *flat)]
            at = [address(part) if part else None for part in arrays]
            if not self.search.library.aggdec_greedy_propose(self.search.handle, *at):
                self._check_reach(lengths, parents)
                return
        raise ValueError(_mistake(self.drafter, draft, len(self.state.rows)))

    def _check_reach(self, lengths: Sequence[int], parents: Sequence[Sequence[int]]) -> None:
        """Raises ``ValueError`` for a draft that goes on behind the last position that the verifier has learned."""
        if self.positions is None:
            return
        for place, row in enumerate(self.state.rows):
            depths = [0]
            for parent in parents[place] if parents else range(lengths[place]):
                depths.append(depths[parent] + 1)
            if row.position + max(depths) >= self.positions:
                raise ValueError(
                    f"{type(self.drafter).__name__}.draft() gives {max(depths)} tokens, one behind the other, for a "
                    f"row that takes {row.end - row.position} at most (row.end - row.position): the model has learned "
                    f"{self.positions} positions"
                )

    def _verdict(self, view: Any, emitted: list[list[int]]) -> Verdict:
        state, widths = self.state, numbers(view.widths, view.count)
        tokens, accepted = numbers(view.tokens, view.places), numbers(view.accepted, view.count)
        starts = [row.position for row in state.rows]
        window = Window(tokens, starts, widths, device=state.device)
        parents = paths = None
        if view.parents:
            parents = [row[1:] for row in split(numbers(view.parents, view.places), widths)]
            paths = split(numbers(view.where, view.gains), list(map(len, emitted)))
        drafted = [width - (not self.trusts) for width in widths]
        scores, choices = floats(view.scores, view.gains), numbers(view.choices, view.places)
        output = self.output(view)
        return Verdict(window, drafted, accepted, emitted, parents, paths, scores, output, choices)


def split(flat: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """The numbers of each row, which follow one another."""
    each = iter(flat)
    return [list(itertools.islice(each, length)) for length in lengths]


def _mistake(drafter: Drafter, draft: Draft, rows: int) -> str:
    name = type(drafter).__name__
    if len(draft.lengths) != rows:
        return f"{name}.draft() gives tokens for {len(draft.lengths)} rows, there are {rows}"
    if draft.branches and [len(row) for row in draft.all_parents()] != list(draft.lengths):
        return f"{name}.draft() does not give each token a parent"
    return f"{name}.draft() gives a token that is not in the dictionary, or a parent that does not come before it"
