"""Beam searches on a board against searches by stock's rules on the host, over random numbers of a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.beam.board import BeamBoard
from fairseq_aggdec.search.compiled.tables import by_operators
from tests.plain_beam_search import SentenceRules, step
from tests.tables import best_tokens
from tests.unit.test_beam_board import EOS, PAD, START, UNK, options

Prefix = tuple[float, tuple[int, ...]]


def repeats(
    output: Sequence[int], first: int, size: int, start: int | None = None
) -> list[tuple[int, int]]:
    """Tokens that would complete an n-gram which occurred before: a plain reading of the option.

    Args:
        output: output tokens without the start symbol.
        first: output index from which on to look.
        size: the n of the n-grams.
        start: the start symbol, at which an n-gram may begin: a word where the caller names another than ``</s>``.

    Returns:
        (output index i, token) for every token that must not follow at i after ``output[:i]``, where
        first <= i <= len(output).
    """
    seen: dict[tuple[int, ...], set[int]] = {}
    if start is not None and 1 < size <= len(output) + 1:
        seen[(start, *output[: size - 2])] = {output[size - 2]}
    found = []
    for index in range(size - 1, len(output) + 1):
        context = tuple(output[index - size + 1 : index])
        followers = seen.setdefault(context, set())
        if index >= first:
            found += [(index, token) for token in followers]
        if index < len(output):
            followers.add(output[index])
    return found


class Twins:
    """Searches of some sentences on a board, and each of them on the host."""

    def __init__(
        self,
        seed: int,
        kind: type[BeamBoard] = BeamBoard,
        dtype: torch.dtype = torch.float32,
    ):
        self.chance = chance = random.Random(seed)
        self.types = types = chance.randint(6, 14)
        self.options, self.rows = options(chance, types), chance.randint(1, 3)
        longest, width = chance.randint(1, 6), chance.choice([0, 0, 2, 8])
        exact = self.options.match_source_len
        ends = [longest] + [chance.randint(1, longest) for _ in range(self.rows - 1)]
        self.limits = Limits(
            ends if exact else [longest] * self.rows, chance.randint(0, longest), exact, 1
        )
        tokens = [PAD, PAD, *range(3, types), *([EOS] if chance.random() < 0.2 else [])]
        prefixes = [[chance.choice(tokens) for _ in range(width)] for _ in range(self.rows)]
        self.board = kind((4, longest + 1), self.options, width, torch.zeros(1, dtype=dtype))
        self.board.set(self.limits, START, prefixes)
        self.rules = [
            SentenceRules(
                *(EOS, self.options.beam_size, longest, self.limits.floor, prefix, PAD),
                bonus=max(0.0, -self.options.unk_penalty),
                source_length=end if exact else None,
            )
            for prefix, end in zip(prefixes, self.limits.ends, strict=True)
        ]
        self.active: list[list[Prefix]] = [[(0.0, ())] for _ in range(self.rows)]
        self.ended: list[list[Prefix]] = [[] for _ in range(self.rows)]

    def logits(self) -> Tensor:
        seed = self.chance.randrange(2**31)
        shape = 4 * self.options.beam_size, self.types
        logits = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        if self.chance.random() < 0.3:  # few continuations are possible
            logits[:, self.chance.sample(range(3, self.types), self.types - 5)] = -torch.inf
        return logits

    def host_step(self, row: int, depth: int, logits: Tensor) -> None:
        """As SentenceSearch.advance."""
        rules, chosen, active = self.rules[row], self.options, self.active[row]
        banned = []
        if chosen.no_repeat_ngram_size:
            for index, (_, words) in enumerate(active):
                found = repeats(words, depth, chosen.no_repeat_ngram_size, START)
                banned += [(index, token) for _, token in found]
        wanted = torch.full((len(active),), rules.wanted(depth))
        count = min(chosen.beam_size + 1, self.types)
        special = PAD, UNK, chosen.unk_penalty, banned
        table = best_tokens(
            logits[: len(active)].clone(), count, wanted, *special, by_operators
        ).tolist()
        tables = {
            index: rules.table(depth, [int(token) for token in own[count:-1]], own[:count], own[-1])
            for index, own in enumerate(table)
        }
        found = step([(score, i) for i, (score, _) in enumerate(active)], tables.get, depth, rules)
        words = [prefix for _, prefix in active]
        room = rules.beam - len(self.ended[row])
        self.ended[row] += [(total, words[node]) for total, node, _ in found.ended[:room]]
        self.active[row] = [(total, (*words[node], token)) for total, node, token in found.going_on]
        if len(self.ended[row]) == rules.beam:
            self.active[row] = []

    def on_board(self, row: int) -> tuple[list[Prefix], list[Prefix]]:
        """Unfinished and finished hypotheses of a sentence, read from the board's links."""
        board, beam = self.board, self.options.beam_size

        def words(depth: int, slot: int) -> tuple[int, ...]:
            found: list[int] = []
            for at in reversed(range(depth)):
                found.append(int(board.words[row, at, slot]))
                slot = int(board.parents[row, at, slot])
            return tuple(reversed(found))

        rounds = int(board.rounds[row])
        active = [
            (total, words(rounds, slot))
            for slot, total in enumerate(board.sums[row].tolist())
            if total > -torch.inf
        ]
        ended = [
            (float(board.ends[row, at]), words(*divmod(int(board.nodes[row, at]), beam)))
            for at in range(1, int(board.count[row]) + 1)
        ]
        return active, ended


def check_a_search(twins: Twins) -> None:
    board, beam = twins.board, twins.options.beam_size
    for depth in range(twins.limits.longest + 2):  # one step in vain
        logits = twins.logits().to(board.visibility.dtype)
        before = [bool(active) for active in twins.active]
        for row in range(twins.rows):
            if twins.active[row]:
                twins.host_step(row, depth, logits[row * beam : (row + 1) * beam].float())
        board.window(board_shape(board))
        board.take(4, board.visibility.size(2), logits)
        for row in range(twins.rows):
            active, ended = twins.on_board(row)
            assert_same(active, twins.active[row])
            assert_same(ended, twins.ended[row])
            flag, rounds = int(board.flags[row]), int(board.rounds[row])
            assert flag == (rounds if active else ~rounds)
            assert not before[row] or rounds == depth + 1
    assert board.flags[twins.rows :].tolist() == [~0] * (4 - twins.rows)


def assert_same(found: list[Prefix], wanted: list[Prefix]) -> None:
    """The kernels add up a vocabulary in another order."""
    assert [words for _, words in found] == [words for _, words in wanted]
    assert [total for total, _ in found] == pytest.approx([total for total, _ in wanted], abs=1e-4)


def board_shape(board: BeamBoard) -> Any:
    return 4, board.options.beam_size, board.visibility.size(2)


def check_visibility(twins: Twins) -> None:
    """A step is told the places that were read so far, which without graphs need not fill whole words."""
    board, beam = twins.board, twins.options.beam_size
    paths: list[dict[int, list[int]]] = [{0: []}] * twins.rows
    for depth in range(twins.limits.longest + 1):
        window = board.window(board_shape(board))
        seen = window.mask(torch.float32)[:, 0] == 0
        places = window.positions.view(4, beam)
        for row in range(twins.rows):
            for slot, path in paths[row].items():
                assert seen[row, slot].nonzero().flatten().tolist() == [
                    *path,
                    int(places[row, slot]),
                ]
        board.take(4, (depth + 1) * beam, twins.logits())
        paths = [
            {
                slot: [*paths[row][parent], depth * beam + parent]
                for slot, parent in enumerate(board.parents[row, depth].tolist())
                if board.sums[row, slot] > -torch.inf
            }
            for row in range(twins.rows)
        ]
