"""SuffixAutomaton: substrings, their counts and ends, against looking through the sequence."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.drafters.copy.suffix_automaton import SuffixAutomaton

SEQUENCES = st.lists(st.integers(0, 3), max_size=14)


def ends(sequence: Sequence[int], part: Sequence[int]) -> list[int]:
    """Index of the last token of every occurrence of ``part``."""
    size = len(part)
    return [i for i in range(size - 1, len(sequence)) if sequence[i - size + 1 : i + 1] == part]


def state_of(automaton: SuffixAutomaton, part: Sequence[int]) -> int | None:
    state = 0
    for token in part:
        if token not in automaton.follow[state]:
            return None
        state = automaton.follow[state][token]
    return state


@given(SEQUENCES)
def test_every_substring_has_its_count_and_first_end(sequence: list[int]) -> None:
    automaton = SuffixAutomaton(sequence)
    for start in range(len(sequence)):
        for stop in range(start + 1, len(sequence) + 1):
            part = sequence[start:stop]
            state = state_of(automaton, part)
            assert state is not None
            assert automaton.count[state] == len(ends(sequence, part))
            assert automaton.end[state] == ends(sequence, part)[0]
            assert automaton.longest[state] >= len(part)
            assert automaton.occurrences(state) == ends(sequence, part)
            assert automaton.occurrences(state) is automaton.occurrences(state)  # found once


@given(SEQUENCES, st.lists(st.integers(0, 3), max_size=6))
def test_nothing_else_is_a_substring(sequence: list[int], part: list[int]) -> None:
    found = state_of(SuffixAutomaton(sequence), part) is not None
    assert found == (not part or bool(ends(sequence, part)))


@given(SEQUENCES, st.lists(st.integers(0, 4), max_size=20))
def test_step_finds_the_longest_suffix_of_the_text(sequence: list[int], text: list[int]) -> None:
    automaton = SuffixAutomaton(sequence)
    state = length = 0
    for read in range(1, len(text) + 1):
        state, length = automaton.step(state, length, text[read - 1])
        suffixes = [text[start:read] for start in range(read)]
        longest = next((suffix for suffix in suffixes if ends(sequence, suffix)), [])
        assert length == len(longest)
        if longest:
            assert state == state_of(automaton, longest)
            assert automaton.count[state] == len(ends(sequence, longest))
            assert automaton.end[state] == ends(sequence, longest)[0]


@given(SEQUENCES)
def test_states_are_few(sequence: list[int]) -> None:
    """At most 2n - 1 states and 3n - 4 moves: the automaton is linear in the sequence."""
    automaton = SuffixAutomaton(sequence)
    size = len(sequence)
    assert len(automaton.link) <= max(2 * size - 1, 2)
    assert sum(map(len, automaton.follow)) <= max(3 * size - 4, 3)


def test_empty_sequence_matches_nothing() -> None:
    assert SuffixAutomaton([]).step(0, 0, 5) == (0, 0)
