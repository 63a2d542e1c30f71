"""What slots make of the token before them, against one slot after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairseq_aggdec.drafters.chain import CANDIDATES, FastChain, follow
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.models.slot_chain import tokens_before
from tests.support import make_model, make_task, slow_chain

BLOCK = 6


@pytest.fixture
def decoder() -> Any:
    model = make_model(make_task(), 4, "nar_drafter", block_size=BLOCK, slot_chain=True)
    with torch.no_grad():  # at first it says next to nothing
        for parameter in model.decoder.chain.parameters():
            parameter.normal_(0, 0.5)
    return model.decoder


@pytest.mark.parametrize("types", [40, 12, CANDIDATES - 3])
@torch.inference_mode()
def test_against_one_slot_after_the_other(decoder: Any, types: int) -> None:
    torch.manual_seed(types)
    features = torch.randn(5, BLOCK, decoder.embed_dim)
    logits = decoder.output_layer(features)[..., :types]
    last = torch.randint(4, 40, (5,))
    found = FastChain(decoder).choose(features, logits, last).tolist()
    expected = [slow_chain(decoder, *row)[0] for row in zip(features, logits, last, strict=True)]
    assert found == expected
    assert found != logits.argmax(-1).tolist()


@torch.inference_mode()
def test_a_chain_that_says_nothing_leaves_what_is_most_likely(decoder: Any) -> None:
    decoder.chain.write.weight.zero_()
    decoder.chain.write.bias.zero_()
    features = torch.randn(3, BLOCK, decoder.embed_dim)
    logits = decoder.output_layer(features)
    found = FastChain(decoder, Precision(pack=False)).choose(
        features, logits, torch.tensor([4, 5, 6])
    )
    assert torch.equal(found, logits.argmax(-1))


@pytest.mark.parametrize("slots", [1, 2, 3, 8, 11])
def test_following_against_one_step_after_the_other(slots: int) -> None:
    torch.manual_seed(slots)
    choices = torch.randint(0, 4, (3, slots, 4))
    for row, found in zip(choices.tolist(), follow(choices).tolist(), strict=True):
        for beginning in range(4):
            place = beginning
            for slot, after in enumerate(row):
                place = after[place]
                assert found[slot][beginning] == place


def test_before_every_slot_stands_the_one_before_it() -> None:
    block = torch.tensor([[5, 6, 7], [8, 9, 10]])
    assert tokens_before(torch.tensor([3, 4]), block).tolist() == [[3, 5, 6], [4, 8, 9]]
    several = torch.arange(12).view(2, 3, 2)
    assert tokens_before(torch.tensor([3, 4]), several).tolist() == [
        [[3, 3], [0, 1], [2, 3]],
        [[4, 4], [6, 7], [8, 9]],
    ]
