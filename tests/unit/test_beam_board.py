"""A step of beam search on the device against the rules on the host, over random numbers of a model."""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.search.beam.board import BeamBoard, FusedBoard, board_for, chooses_alike
from fairseq_aggdec.search.beam.tables import by_operators
from tests.plain_beam_search import SentenceRules, step
from tests.strict.device.bookkeeping import fused_kernels
from tests.unit.test_gpu_kernels import random_logits
from tests.unit.test_rules import repeats

CPU = torch.device("cpu")
PAD, EOS, UNK, START = 1, 2, 3, 4
Prefix = tuple[float, tuple[int, ...]]


def options(chance: random.Random, types: int) -> Options:
    return Options(
        *(EOS, PAD, UNK, chance.randint(1, types - 2), 0.0, 0, 99, 0, True, 1.0),
        unk_penalty=chance.choice([0.0, 0.0, 2.0, -2.0]),
        temperature=1.0,
        match_source_len=chance.random() < 0.3,
        no_repeat_ngram_size=chance.choice([0, 0, 1, 2, 3]),
        stripped=frozenset(),
        print_alignment=None,
        retain_history=False,
    )


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
        table = by_operators(logits[: len(active)].clone(), count, wanted, *special).tolist()
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


@given(st.integers(0, 10**9))
def test_a_search_goes_as_on_the_host(seed: int) -> None:
    check_a_search(Twins(seed))


@given(st.integers(0, 10**9), st.sampled_from([torch.float32, torch.float16]))
def test_the_kernels_go_as_the_host(seed: int, dtype: torch.dtype) -> None:
    with fused_kernels(), mock.patch.object(operators, "PART", 4):
        check_a_search(Twins(seed, FusedBoard, dtype))


def compare_candidates(seed: int, device: torch.device = CPU) -> None:
    """What may follow random hypotheses, by PyTorch's operators and by the kernels; of equal logits the first."""
    chance = random.Random(seed)
    types, rows, width = chance.choice((6, 40, 3000)), chance.randint(1, 3), chance.choice((0, 2))
    beam = chance.choice((1, 2, 5, 32))
    chosen = dataclasses.replace(
        options(chance, types),
        beam_size=beam,
        no_repeat_ngram_size=0,
        unk_penalty=chance.choice((0.0, 0.5, -2.0, float("inf"))),
    )
    dtype = chance.choice((torch.float32, torch.float16, torch.bfloat16))
    board = FusedBoard((rows, 5), chosen, width, torch.zeros(1, dtype=dtype, device=device))
    tokens = [PAD, PAD, *range(2, types)]
    prefixes = [[chance.choice(tokens) for _ in range(width)] for _ in range(rows)]
    board.set(Limits([3] * rows, 0, False, 1), START, prefixes)
    board.depths.fill_(chance.randint(0, 3))
    torch.manual_seed(seed)
    logits = random_logits(chance, rows * beam, types).to(device, dtype)
    with mock.patch.object(operators, "PART", chance.choice((3, 64, 2048))):
        values, found, ends = board._best(rows, logits)
    with mock.patch.object(Tensor, "topk", first_best):
        wanted = board._continuations(rows, logits.float(), board._forced(rows))
    close = functools.partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4, equal_nan=True)
    close(ends, wanted[2])
    known = ~ends.isnan()  # the others end the search
    close(values[known], wanted[0][known])
    there = known.unsqueeze(2) & (values > -torch.inf)
    # A penalty rounds otherwise before and behind the softmax: what equals the unknown word may change places with it.
    rounds = chosen.unk_penalty not in (0.0, float("inf"))
    one, other = (
        logits.float().view(rows, beam, types).gather(2, tokens)[there]
        for tokens in (found, wanted[1])
    )
    # Of equal logits the first; nearly equal ones may have the same log-probability.
    alike = (found == wanted[1])[there] | ((one != other) & ((one - other).abs() < 1e-5))
    assert rounds or bool(alike.all()), seed


def first_best(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, tokens = log_probs.sort(dim=1, descending=True, stable=True)
    return values[:, :count], tokens[:, :count]


def test_candidates_are_those_of_operators() -> None:
    with fused_kernels():
        for seed in range(300):
            compare_candidates(seed)


def check_a_search(twins: Twins) -> None:
    board, beam = twins.board, twins.options.beam_size
    for depth in range(twins.limits.longest + 2):  # one step in vain
        logits = twins.logits().to(board.sight.dtype)
        before = [bool(active) for active in twins.active]
        for row in range(twins.rows):
            if twins.active[row]:
                twins.host_step(row, depth, logits[row * beam : (row + 1) * beam].float())
        board.window(board_shape(board))
        board.take(4, board.sight.size(2), logits)
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
    return 4, board.options.beam_size, board.sight.size(2)


@settings(max_examples=20)
@given(
    st.integers(0, 10**9),
    st.sampled_from([BeamBoard, FusedBoard]),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_a_hypothesis_sees_the_places_of_its_tokens(
    seed: int, kind: type[BeamBoard], dtype: torch.dtype
) -> None:
    with fused_kernels():
        check_sight(Twins(seed, kind, dtype))


def check_sight(twins: Twins) -> None:
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


@pytest.mark.parametrize("kind", [BeamBoard, FusedBoard])
@pytest.mark.parametrize("row", [0, 2])
def test_no_number_where_one_is_needed(row: int, kind: type[BeamBoard]) -> None:
    with fused_kernels():
        check_a_broken_row(row, Twins(1, kind))


def check_a_broken_row(row: int, twins: Twins) -> None:
    twins.board.set(twins.limits, START, [rules.prefix for rules in twins.rules])
    beam = twins.options.beam_size
    logits = twins.logits()
    logits[row * beam] = torch.nan
    twins.board.window(board_shape(twins.board))
    twins.board.take(4, twins.board.sight.size(2), logits)
    assert (twins.board.count < 0).tolist() == [i == row < twins.rows for i in range(4)]


@pytest.mark.parametrize("changed", ["nothing", "sight", "words", "parents", "written"])
def test_the_kernel_is_tried_before_it_is_used(
    changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that spoils one of its lists is found out, for masks of 2 and of 4 bytes."""
    take = FusedBoard.take

    def spoils(board: Any, *given: Any) -> None:
        take(board, *given)
        if getattr(board, changed, None) is not None and board.sight.dtype is torch.float16:
            getattr(board, changed)[0, 0, 0] = 1

    monkeypatch.setattr(FusedBoard, "take", spoils)
    with fused_kernels():
        assert chooses_alike(torch.device("cpu")) == (changed == "nothing")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_masks_that_the_kernel_does_not_know_are_left_to_operators(dtype: torch.dtype) -> None:
    with fused_kernels():
        board = board_for((1, 4), options(random.Random(1), 9), 0, torch.zeros(1, dtype=dtype))
    assert isinstance(board, FusedBoard) == (dtype is not torch.float64)
