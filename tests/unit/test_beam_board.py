"""What a GPU's kernels find behind the hypotheses of a beam, against PyTorch's operators; how they are tried."""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.search.beam.fused import FusedBoard, board_for, chooses_alike
from fairseq_aggdec.search.board import Shape
from tests.strict.device.bookkeeping import fused_kernels
from tests.unit.test_gpu_kernels import random_logits

CPU = torch.device("cpu")
PAD, EOS, UNK, START = 1, 2, 3, 4


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


def compare_steps(seed: int, device: torch.device = CPU) -> None:
    """Random searches, whose candidates are found by a launch of their own or by the one that chooses: equal bits."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    types, rows, width = chance.choice((6, 40, 400)), chance.randint(1, 2), chance.choice((0, 2))
    beam = chance.choice((1, 2, 5, 12, 32) if types < 400 else (1, 2, 5))
    kept = dataclasses.replace(options(chance, types), beam_size=beam, no_repeat_ngram_size=0)
    like = torch.zeros(1, dtype=chance.choice((torch.float32, torch.float16, torch.bfloat16)))
    twins = [FusedBoard((rows, 5), kept, width, like.to(device)) for _ in range(2)]
    tokens = [PAD, PAD, *range(2, types)]
    prefixes = [[chance.choice(tokens) for _ in range(width)] for _ in range(rows)]
    ends, floor = [chance.randint(1, 4) for _ in range(rows)], chance.randint(0, 3)
    for at_once, board in enumerate(twins):
        board.at_once = bool(at_once)
        board.set(Limits(ends, floor, False, 1), START, prefixes)
    part = chance.choice((3, 64, 2048))
    for depth in range(4):
        logits = random_logits(chance, rows * beam, types).to(like)
        for board in twins:
            board.window(Shape(rows, beam, board.visibility.size(2)))
            with mock.patch.object(operators, "PART", part):
                board.take(rows, (depth + 1) * beam, logits.to(device))
        for name, value in vars(twins[0]).items():
            if isinstance(value, Tensor):
                exact = functools.partial(torch.testing.assert_close, atol=0, rtol=0)
                exact(value, vars(twins[1])[name], equal_nan=True, msg=f"{name}, seed {seed}")


def first_best(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, tokens = log_probs.sort(dim=1, descending=True, stable=True)
    return values[:, :count], tokens[:, :count]


@pytest.mark.parametrize("name, at_once", [("nothing", True), ("best_step", False)])
def test_a_board_takes_the_launches_that_run(
    name: str, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "nothing":
        monkeypatch.setenv(VARIABLE, f"no-{name}")
    with fused_kernels():
        board = board_for((1, 4), options(random.Random(1), 9), 0, torch.zeros(1))
    assert isinstance(board, FusedBoard) and board.at_once == at_once


@pytest.mark.parametrize("changed", ["nothing", "visibility", "words", "parents", "written"])
def test_the_kernel_is_tried_before_it_is_used(
    changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that spoils one of its lists is found out, for masks of 2 and of 4 bytes."""
    take = FusedBoard.take

    def spoils(board: Any, *given: Any) -> None:
        take(board, *given)
        if getattr(board, changed, None) is not None and board.visibility.dtype is torch.float16:
            getattr(board, changed)[0, 0, 0] = 1

    monkeypatch.setattr(FusedBoard, "take", spoils)
    with fused_kernels():
        assert chooses_alike(torch.device("cpu")) == (changed == "nothing")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_masks_that_the_kernel_does_not_know_are_left_to_operators(dtype: torch.dtype) -> None:
    with fused_kernels():
        board = board_for((1, 4), options(random.Random(1), 9), 0, torch.zeros(1, dtype=dtype))
    assert isinstance(board, FusedBoard) == (dtype is not torch.float64)
