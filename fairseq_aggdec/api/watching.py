"""Tokens of an output that are certain while it is decoded."""

from collections.abc import Callable, Sequence

from fairseq_aggdec.drafters.copy.copy_text import common_prefix
from fairseq_aggdec.search.beam.tree import SearchedTree
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Verdict

# The place of a sentence in its batch, and all of its tokens that are certain.
Tell = Callable[[int, Sequence[int]], None]


class Watcher:
    """Tells ``tell`` of a sentence whenever more of its tokens are certain.

    With a greedy method these are the committed tokens. With beam search they are what all hypotheses that may still
    win begin with.
    """

    def __init__(self, tell: Tell):
        self.tell = tell
        self.reported: dict[int, int] = {}

    def update(self, place: int, tokens: Sequence[int]) -> None:
        """Reports the certain tokens of a sentence, if there are more than at the last report."""
        if len(tokens) > self.reported.get(place, 0):
            self.reported[place] = len(tokens)
            self.tell(place, tokens)

    def searches(self, searches: Sequence[SearchedTree]) -> None:
        """Takes note of a beam search; called by it after every call of the decoder."""
        for search in searches:
            self.update(search.index, certain(search))

    def committed(self, verdict: Verdict, state: DecodeState) -> None:
        """Takes note of committed tokens; called by a greedy search after every iteration."""
        for row in state.rows:
            self.update(row.index, row.tokens[1:])


def certain(search: SearchedTree) -> list[int]:
    """Tokens that all hypotheses of a beam search begin with, the ended and the unfinished ones."""
    nodes = [ending.node for ending in search.endings]
    if not search.done:
        nodes += [node for _, node in search.active]
    first, *others = [search.tree.words(node) for node in nodes]
    length = min((common_prefix(first, other) for other in others), default=len(first))
    return first[:length]
