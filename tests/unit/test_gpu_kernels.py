"""The fused kernels of a GPU, compiled as C++, against PyTorch's operators; how they are tried."""

from __future__ import annotations

import functools
import random
import threading
import time
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.drafters.copy.copy_on_device import (
    CopyBoard,
    FusedCopyBoard,
    copies_alike,
)
from fairseq_aggdec.drafters.slot_window import (
    SlotForm,
    fused_slot_window,
    read_alike,
    slot_window,
)
from fairseq_aggdec.kernels.gpu import operators
from fairseq_aggdec.kernels.gpu.largest import candidates
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.search.acceptance import (
    NO_DRAFT,
    Acceptance,
    AtLeast,
    Distance,
    TopBeta,
    exact,
    trusting,
)
from fairseq_aggdec.search.board import BEFORE, ENDED, POSITION, ROUNDS, Board
from fairseq_aggdec.search.compiled.searches import MATCHES
from fairseq_aggdec.search.drafter import DeviceDrafter
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import Row
from fairseq_aggdec.search.verification import fused
from fairseq_aggdec.search.verification.fused import FusedBookkeeping, written
from fairseq_aggdec.search.verification.on_device import Bookkeeping

CPU = torch.device("cpu")
PAD, EOS, UNK, FIRST = 1, 2, 3, 4
pytestmark = pytest.mark.usefixtures("compiled_kernels")


def twin(board: Board) -> Board:
    """A board of the same numbers."""
    found = Board(board.room, *board.kind, pad=board.pad)
    for name, value in vars(board).items():
        if isinstance(value, Tensor):
            getattr(found, name).copy_(value)
    return found


def random_board(chance: random.Random, width: int, types: int, device: torch.device) -> Board:
    """Sentences of which some have ended and some have limits or forced tokens; they are where they may be."""
    sentences, prefix = chance.randint(1, 5), chance.choice((0, 0, 1, 3))
    kind = prefix, chance.choice((0, 1, 3)), device, chance.choice((torch.float32, torch.float16))
    board, rows = Board((sentences + chance.randint(0, 2), 20 + width), *kind, pad=PAD), []
    for index in range(sentences):
        own = [chance.choice((PAD, chance.randrange(types))) for _ in range(prefix)]
        end, floor = chance.randint(1, 16), chance.randint(0, 6)
        strict_floor = end if chance.random() < 0.2 else 0
        rows.append(Row(index, [EOS], end, floor, strict_floor, own[: chance.randint(0, prefix)]))
    board.set(rows)
    board.tokens.copy_(torch.randint(0, types, board.tokens.shape))
    for row in rows:
        numbers = board.numbers[row.index]
        numbers[POSITION] = chance.randint(0, row.end)
        numbers[BEFORE] = chance.randint(0, int(numbers[POSITION]))
        numbers[ENDED], numbers[ROUNDS] = chance.random() < 0.2, chance.randint(0, 3)
    owners = [*range(sentences), *[board.room[0]] * (board.room[0] + 1 - sentences)]
    chance.shuffle(owners)
    board.owners.copy_(torch.tensor(owners))
    return board


def random_logits(chance: random.Random, count: int, types: int) -> Tensor:
    logits = torch.randn(count, types) * 3
    if chance.random() < 0.5:  # ties
        logits = logits.round()
    hidden = chance.choice((0.0, 0.0, 0.3, 1.0))
    logits[torch.rand_like(logits) < hidden] = -torch.inf
    if chance.random() < 0.1:
        logits[torch.rand_like(logits) < 0.05] = torch.nan
    return logits


def compare_an_iteration(seed: int, device: torch.device = CPU) -> None:
    """One iteration of random sentences, by PyTorch's operators and by the kernels."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    width, types = chance.randint(1, 5), chance.choice((FIRST + 1, 9, 40, 2000))
    board = random_board(chance, width, types, device)
    accept: Acceptance = chance.choice(
        (exact, TopBeta(1, 1.0), TopBeta(3, 1.5), TopBeta(2, float("inf")))
    )
    if chance.random() < 0.3:
        accept = AtLeast(chance.randint(1, 4), accept)
    penalty = chance.choice((0.0, 0.0, 0.7, -2.0, float("inf")))
    ngrams = chance.choice((0, 0, 1, 2, 3)) if types > 9 else 0  # else nothing is left to choose
    rules = Rules(PAD, UNK, EOS, penalty, ngrams, free_end=chance.random() < 0.3)
    if width > 1 and chance.random() < 0.2:
        accept = trusting
    drafter = DeviceDrafter()
    drafter.ragged, drafter.reads_features = chance.random() < 0.5, chance.random() < 0.5
    rows = len(board.owners) - chance.randint(0, len(board.owners) - 1)
    dtype = chance.choice((torch.float32, torch.float16, torch.bfloat16))
    logits = random_logits(chance, rows * width, types).to(device, dtype)
    block = None
    if width > 1:
        block = torch.randint(0, types, (rows, width - 1))
        likely = logits.float().cpu().view(rows, width, types)[:, :-1].max(-1).indices
        block = torch.where(torch.rand(block.shape) < 0.6, likely, block)
        if drafter.ragged:
            ends = torch.randint(0, width, (rows, 1))
            block = block.masked_fill(torch.arange(width - 1) >= ends, NO_DRAFT)
        block = block.to(device)
    features = torch.randn(rows * width, board.features.size(1)).to(board.features)
    boards = board, twin(board)
    asked = []
    for kind, own in zip((Bookkeeping, FusedBookkeeping), boards, strict=True):
        books, picked = kind(rules, accept), own.rows(own.owners[:rows])
        asked.append(books.begin(own, picked, block, drafter))
        remembered = features if drafter.reads_features and features.numel() else None
        if accept is trusting:
            remembered, every = None, torch.full_like(picked.owners, width)
            asked[-1] = asked[-1]._replace(length=every)
        with mock.patch.object(operators, "PART", chance.choice((3, 64, 2048))):
            books.end(own, picked, asked[-1], logits.clone(), remembered)
    for plain, found in zip(*asked, strict=True):
        assert (plain is None) == (found is None)
        assert plain is None or torch.equal(plain.cpu(), found.cpu()), seed
    for plain, found in zip(*map(written, boards), strict=True):
        # One thread adds up a whole vocabulary in fp32, of which a GPU's thread has a small part.
        torch.testing.assert_close(found, plain, atol=1e-4, rtol=1e-4, equal_nan=True)


def compare_copies(seed: int, device: torch.device = CPU) -> None:
    """Blocks copied for random outputs, while rows move and some stand still."""
    chance = random.Random(seed)
    words = [NO_DRAFT, *range(FIRST, FIRST + chance.choice((2, 3, 9)))]
    sentences, size = chance.randint(1, 4), chance.randint(1, 5)
    board = Board((sentences + 1, 60), 0, 0, device, torch.float32, pad=PAD)
    outputs = [[chance.choice((EOS, EOS, words[-1]))] for _ in range(sentences)]
    board.set([Row(i, list(output), end=50, floor=0) for i, output in enumerate(outputs)])
    longest = chance.choice((12, 12, 100))
    texts = [[EOS, *chance.choices(words, k=chance.randint(0, longest))] for _ in outputs]
    match = chance.choice(MATCHES)
    twins = CopyBoard(match, device), FusedCopyBoard(match, device)
    for copies in twins:
        copies.set(texts, [output[0] for output in outputs])
    owners = [*range(sentences), sentences + 1]
    for _ in range(6):
        chance.shuffle(owners)
        picked = torch.tensor(owners, device=device)
        rows = board.rows(picked)
        plain, found = (copies.block(board, picked, rows, size).cpu() for copies in twins)
        assert torch.equal(plain, found), seed
        for name in ("runs", "places"):
            one, other = (getattr(copies, name)[:sentences].cpu() for copies in twins)
            assert torch.equal(one, other), (seed, name)
        for row, sentence in enumerate(owners):
            if sentence >= sentences:
                continue
            output = outputs[sentence]
            before, drafted = len(output) - 1, [t for t in plain[row].tolist() if t != NO_DRAFT]
            if chance.random() < 0.8:
                output += [*drafted[: chance.randint(0, size)], chance.choice(words[1:])]
            board.tokens[sentence, : len(output)] = torch.tensor(output, device=device)
            places = torch.tensor([len(output) - 1, before], device=device)
            board.numbers[sentence, : BEFORE + 1] = places


def compare_slot_windows(seed: int, device: torch.device = CPU) -> None:
    """What a drafter reads of random sentences."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    board, size = random_board(chance, chance.randint(1, 5), 9, device), chance.randint(1, 6)
    shift, causal = chance.randint(0, min(1, size - 1)), chance.random() < 0.5
    # No fewer than what a row has committed since then, or in all.
    reach = [board.numbers[:, POSITION], board.numbers[:, POSITION] - board.numbers[:, BEFORE]]
    columns = int(reach[causal].max()) + shift + size + chance.randint(0, 3)
    form = SlotForm(columns, shift, size, causal, PAD)
    rows = board.rows(board.owners[: chance.randint(1, len(board.owners))])
    found = zip(slot_window(board, rows, form), fused_slot_window(board, rows, form), strict=True)
    for plain, own in found:
        assert torch.equal(plain.cpu(), own.cpu()), seed


def compare_largest(seed: int, device: torch.device = CPU) -> None:
    """The largest numbers of random rows; of equal ones the first."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    types, rows = chance.choice((1, 9, 40, 2000)), chance.randint(1, 4)
    dtype = chance.choice((torch.float32, torch.float16, torch.bfloat16))
    x = random_logits(chance, rows, types).to(device, dtype)
    places = x.new_empty(rows, dtype=torch.int64)
    operators.ops().largest(*x.shape, operators.PRECISIONS[dtype], x, places)
    assert torch.equal(places.cpu(), x.float().cpu().max(-1).indices), seed
    kept = chance.randint(1, min(types, 32))
    with mock.patch.object(operators, "PART", chance.choice((3, 64, 2048))):
        found = candidates(x, kept)[1].cpu()
    values, wanted = x.float().cpu().sort(dim=1, descending=True, stable=True)
    there = ~x.cpu().isnan().any(1, keepdim=True) & (values[:, :kept] > -torch.inf)
    assert torch.equal(found[there], wanted[:, :kept][there]), seed
    assert found.min() >= 0 and found.max() < types


def test_logits_that_the_kernels_do_not_read_are_judged_by_operators() -> None:
    board = Board((1, 20), 0, 0, CPU, torch.float32, pad=PAD)
    board.set([Row(0, [EOS], end=9, floor=0)])
    books, rows = FusedBookkeeping(Rules(PAD, UNK, EOS), exact), board.rows(board.owners[:1])
    logits = torch.zeros(1, 18)[:, ::2]
    logits[0, 7] = 1
    books.end(board, rows, books.begin(board, rows, None, DeviceDrafter()), logits, None)
    assert board.tokens[0, :2].tolist() == [EOS, 7]


def test_kernels_are_taken_where_they_know_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, ngrams = Rules(PAD, UNK, EOS), Rules(PAD, UNK, EOS, no_repeat_ngram_size=3)
    assert type(fused.bookkeeping(rules, exact, CPU)) is FusedBookkeeping
    assert type(fused.bookkeeping(ngrams, AtLeast(2, TopBeta(3)), CPU)) is FusedBookkeeping
    assert type(fused.bookkeeping(rules, Distance(1, 9), CPU)) is Bookkeeping
    assert operators.usable(CPU, copies_alike) and operators.usable(CPU, read_alike)
    monkeypatch.setenv(VARIABLE, "none")
    assert operators.against(CPU, copies_alike) == f"{VARIABLE}=none"
    assert type(fused.bookkeeping(rules, exact, CPU)) is Bookkeeping


def test_operators_are_defined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads may ask for the first kernel at the same time."""
    made = []

    class Library(mock.Mock):
        def __init__(self, *given: Any, **more: Any):
            super().__init__(**more)
            if given:
                made.append(given)
                time.sleep(0.01)  # others get their turn

    monkeypatch.setattr(operators, "_defined", functools.cache(operators._defined.__wrapped__))
    monkeypatch.setattr(operators, "_kept", [])
    monkeypatch.setattr(torch.library, "Library", Library)
    threads = [threading.Thread(target=operators.ops) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
