"""A suffix automaton: which substrings a sequence has, how often and where, built and walked in linear time."""

from collections.abc import Sequence


class SuffixAutomaton:
    """All substrings of ``sequence`` (Blumer et al. 1985); state 0 is the empty string.

    Attributes:
        follow: per state, token -> state.
        link: per state, the state of its longest suffix that occurs elsewhere too.
        longest: per state, length of its longest substring.
        end: per state, index of the last token of its first occurrence.
        count: per state, number of occurrences.
        whole: per state, whether it is the sequence up to some token, which is ``end``.
    """

    def __init__(self, sequence: Sequence[int]):
        self.follow: list[dict[int, int]] = [{}]
        self.link, self.longest, self.end, self.count = [-1], [0], [-1], [0]
        self._occurrences: dict[int, list[int]] = {}
        self._longer: list[list[int]] = []  # per state, those whose longest suffix elsewhere it is
        last = 0
        for index, token in enumerate(sequence):
            last = self._extend(last, token, index)
        # A substring occurs wherever a longer one that ends with it does: sum over links, longest first.
        self.whole = [count == 1 for count in self.count]
        for state in sorted(range(1, len(self.link)), key=lambda s: -self.longest[s]):
            self.count[self.link[state]] += self.count[state]

    def _extend(self, last: int, token: int, index: int) -> int:
        new = self._add({}, self.longest[last] + 1, index, occurrences=1)
        state = last
        while state != -1 and token not in self.follow[state]:
            self.follow[state][token] = new
            state = self.link[state]
        if state == -1:
            self.link[new] = 0
            return new
        target = self.follow[state][token]
        if self.longest[target] == self.longest[state] + 1:
            self.link[new] = target
            return new
        clone = self._add(
            dict(self.follow[target]), self.longest[state] + 1, self.end[target], occurrences=0
        )
        self.link[clone] = self.link[target]
        self.link[new] = self.link[target] = clone
        while state != -1 and self.follow[state].get(token) == target:
            self.follow[state][token] = clone
            state = self.link[state]
        return new

    def _add(self, follow: dict[int, int], longest: int, end: int, occurrences: int) -> int:
        self.follow.append(follow)
        self.link.append(0)
        self.longest.append(longest)
        self.end.append(end)
        self.count.append(occurrences)
        return len(self.link) - 1

    def occurrences(self, state: int) -> list[int]:
        """Index of the last token of every occurrence, ascending: found once for each state that is asked for."""
        known = self._occurrences.get(state)
        if known is not None:
            return known
        if not self._longer:
            self._longer = [[] for _ in self.link]
            for longer, link in enumerate(self.link[1:], 1):
                self._longer[link].append(longer)
        found, open_states = [], [state]
        while open_states:
            at = open_states.pop()
            if self.whole[at]:
                found.append(self.end[at])
            open_states += self._longer[at]
        self._occurrences[state] = sorted(found)
        return self._occurrences[state]

    def wholes(self) -> list[int]:
        """The state of the sequence up to each of its tokens."""
        states = [state for state in range(1, len(self.whole)) if self.whole[state]]
        return sorted(states, key=self.end.__getitem__)

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest suffix of (matched text + ``token``) that is a substring.

        Args:
            state, length: the match before, ``(0, 0)`` at first.
            token: what comes next in the text.

        Returns:
            State and length of the match after; length 0 when the token does not occur. Amortised constant time.
        """
        while state and token not in self.follow[state]:
            state = self.link[state]
            length = self.longest[state]
        if token in self.follow[state]:
            return self.follow[state][token], length + 1
        return 0, 0
