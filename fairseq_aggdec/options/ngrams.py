"""The n-grams of an output (``--no-repeat-ngram-size``), taken up token by token.

A word of an n-gram is also the start symbol, but for n-grams of one token.
"""

from collections.abc import Sequence, Set

NONE: Set[int] = frozenset()


class Ngrams:
    """The n-grams of one output that grows: no work is done twice for what was committed.

    Attributes:
        followers: the first n - 1 tokens of each n-gram -> its last tokens.
        tail: the last n - 1 tokens of the output, fewer while it is shorter. count: tokens that were taken up.
    """

    def __init__(self, size: int):
        self.size, self.count = size, 0
        self.followers: dict[tuple[int, ...], set[int]] = {}
        self.tail: list[int] = []

    def take_up(self, output: Sequence[int]) -> None:
        """Takes up what is new of an output, start symbol first."""
        context = self.size - 1
        for end in range(max(self.count, context, 1), len(output)):
            key = tuple(output[end - context : end])
            self.followers.setdefault(key, set()).add(output[end])
        self.count = len(output)
        self.tail = list(output[max(0, self.count - context) :])

    def repeats(self, draft: Sequence[int], first: int = 0) -> list[tuple[int, int]]:
        """(place, token) for every token that must not follow behind ``place`` tokens of a draft.

        Args:
            draft: tokens behind the output.
            first: the first place to look at; the last one is behind the whole draft.
        """
        context, own = self.size - 1, dict[tuple[int, ...], set[int]]()
        line, found = [*self.tail, *draft], []
        known = len(self.tail)
        for place in range(max(0, context - known), len(draft) + 1):
            end = known + place
            key = tuple(line[end - context : end])
            if place >= first:
                banned = self.followers.get(key, NONE) | own.get(key, NONE)
                found += [(place, token) for token in banned]
            if place < len(draft):
                own.setdefault(key, set()).add(draft[place])
        return found

    def possible(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft come before the first that would repeat an n-gram."""
        places = (
            place for place, token in self.repeats(draft) if [token] == draft[place : place + 1]
        )
        return next(places, len(draft))
