"""The fused kernels of embeddings and chains, compiled as C++, against PyTorch's operators."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_aggdec.drafters.chain import CANDIDATES, FastChain, follow, follows_alike
from fairseq_aggdec.kernels.gpu import embedding, operators
from fairseq_aggdec.kernels.gpu.embedding import EmbeddingTables, MaskSlots, SourceCopy
from fairseq_aggdec.kernels.gpu.operators import PRECISIONS
from fairseq_aggdec.models.slot_chain import SlotChain

CPU = torch.device("cpu")
ROUNDED = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def compare_embeddings(seed: int, device: torch.device = CPU) -> None:
    """A window of random tokens, of which some are mask slots."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    dtype, types, count = chance.choice([*PRECISIONS]), chance.randint(1, 30), chance.randint(1, 9)
    channels = chance.choice((1, 8, 70, 80, 304))

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape).to(dtype).to(device)

    places = None if chance.random() < 0.2 else numbers(12, channels)
    table = EmbeddingTables(numbers(types, channels), chance.choice((1.0, 16.0, 300**0.5)), places)
    tokens = torch.randint(0, types, (count,), device=device)
    at = torch.randint(0, 12, (count,), device=device)
    if chance.random() < 0.2:
        at = at[:1].expand(count)  # as in a beam
    masks = None
    if chance.random() < 0.7:
        copied = None
        if chance.random() < 0.7 and channels % 8 == 0:
            rows, length = chance.choice((1, count)), chance.randint(1, 9)
            mask = torch.zeros(rows, 1, 1, length).to(dtype).to(device)
            mask[..., 1:].masked_fill_(torch.rand(mask[..., 1:].shape).to(device) < 0.3, -torch.inf)
            if chance.random() < 0.5:
                # One token of the source takes all, whatever the others are: exp of its score alone is infinite.
                mask[..., chance.randrange(length)] = 120.0
            memory = numbers(rows, length + 2, 2 * channels)[:, :length]
            copied = SourceCopy(numbers(12, channels), memory, chance.choice((mask, None)))
        masked = torch.rand(count, device=device) < 0.5
        masks = MaskSlots(masked, numbers(channels), copied)
    given = tokens, at, table, masks
    plain, found = embedding.plain(*given).float(), embedding.fused(*given).float()
    # The kernel rounds a sum once; operators round parts that may be larger than the sum.
    torch.testing.assert_close(found, plain, atol=90 * ROUNDED[dtype], rtol=ROUNDED[dtype])
    assert torch.equal(embedding.embedded(*given).float(), found)


def compare_sources(seed: int, device: torch.device = CPU) -> None:
    """Random sources with padding before them: the same bits, but for a sum that a compiler contracts."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    dtype, rows, length = chance.choice([*PRECISIONS]), chance.randint(1, 4), chance.randint(1, 40)
    channels, pad = chance.choice((1, 8, 70, 304)), chance.randint(0, 3)
    weight, places = torch.randn(2, 44, channels).to(dtype).to(device)
    tokens = torch.randint(0, 44, (rows, length))
    tokens[tokens == pad] = pad + 1
    tokens[torch.arange(length) < torch.randint(0, length, (rows, 1))] = pad
    tables = EmbeddingTables(weight, chance.choice((1.0, 16.0)), chance.choice((places, None)))
    given = tokens.to(device), tables, pad
    for plain, own in zip(
        embedding.plain_sources(*given), embedding.fused_sources(*given), strict=True
    ):
        assert own.dtype is plain.dtype and own.shape == plain.shape
        torch.testing.assert_close(own.float(), plain.float(), atol=1e-5, rtol=1e-6)


def random_chain(
    dtype: torch.dtype, types: int, channels: int, bias: bool, device: torch.device = CPU
) -> FastChain:
    """With numbers of which products and sums are exact in every precision."""
    decoder: Any = SimpleNamespace(embed_scale=1.0, embed_tokens=nn.Embedding(types, channels))
    decoder.output_projection = nn.Linear(channels, types, bias)
    decoder.chain = SlotChain(channels, channels)
    for part in (decoder.embed_tokens, decoder.output_projection, decoder.chain):
        for weight in part.to(dtype).parameters():
            weight.copy_(torch.randint(-1, 2, weight.shape) * (torch.rand(weight.shape) < 0.2))
        part.to(device)
    return FastChain(decoder)


def compare_chains(seed: int, device: torch.device = CPU) -> None:
    """Blocks of random features and candidates, ties among them."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    dtype, types = chance.choice([*PRECISIONS]), chance.choice((3, CANDIDATES, 40))
    rows, size, channels = chance.randint(1, 4), chance.randint(1, 6), chance.choice((8, 16, 24))
    chain = random_chain(dtype, types, channels, chance.random() < 0.5, device)
    features = torch.randint(-1, 2, (rows, size, channels)).to(dtype).to(device)
    logits = torch.rand(rows, size, types).argsort(-1).to(dtype).to(device)
    last = torch.randint(0, types, (rows,)).to(device)
    best, scores = chain.pairs(features, logits, last)
    plain = best.gather(2, follow(scores.argmax(-1))[..., :1]).squeeze(2)
    assert torch.equal(chain.choose(features, logits, last).cpu(), plain.cpu()), seed


def test_roundings_do_not_decide_about_the_kernels_of_chains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU's products round otherwise: what it is tried with has no two candidates that score nearly alike."""
    pairs = FastChain.pairs

    def lowered(chain: FastChain, *given: Tensor) -> tuple[Tensor, Tensor]:
        best, scores = pairs(chain, *given)
        most = scores.amax(-1, keepdim=True)
        less = most.float() - 16 * torch.finfo(scores.dtype).eps * most.abs().float()
        return best, torch.where(scores == most, less, scores.float())

    monkeypatch.setattr(FastChain, "pairs", lowered)
    with torch.inference_mode():
        assert all(follows_alike(CPU, dtype) for dtype in PRECISIONS)


def test_fewer_candidates_than_are_wanted() -> None:
    """Where most logits are -inf."""
    chain = random_chain(torch.float32, 20, 16, True)
    logits = torch.full((2, 3, 20), -torch.inf)
    logits[..., 5] = 1.0
    block = chain.choose(torch.zeros(2, 3, 16), logits, torch.tensor([4, 4]))
    assert block.min() >= 0 and block.max() < 20


@pytest.mark.parametrize("channels, fused", [(16, True), (12, False)])
def test_numbers_that_are_not_read_eight_at_a_time_are_left_to_operators(
    channels: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    assert operators.usable(CPU, follows_alike, torch.float32)  # which is kept
    monkeypatch.setattr(FastChain, "_fused", lambda *given: called.append(given))
    chain = random_chain(torch.float32, 9, channels, False)
    chain.choose(torch.zeros(1, 2, channels), torch.zeros(1, 2, 9), torch.zeros(1).long())
    assert bool(called) == fused
    monkeypatch.setattr(operators, "usable", lambda *_: False)
    chain.choose(torch.zeros(1, 2, channels), torch.zeros(1, 2, 9), torch.zeros(1).long())
    assert len(called) == fused
