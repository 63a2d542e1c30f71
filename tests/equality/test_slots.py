"""Slots that are cached or computed in 8 bits say what the drafter's own layers say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.drafters.slots import CachedSlots, LayerSlots
from fairseq_aggdec.engine import int8
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.kernels.library import kernels
from tests.equality.test_gad import VARIANTS, drafter
from tests.support import make_batch, random_sources


def block_logits(slots: Any, prefixes: list[list[int]], block_size: int) -> Tensor:
    features = slots.block_features(prefixes, block_size)
    found: Tensor = slots.slot_logits(features)
    return found


PUBLISHED = {"published_form": True, "src_embedding_copy": True}
FORMS = VARIANTS | {
    "published, 25 slots": PUBLISHED | {"block_size": 25, "decoder_layers": 3},
    "published, next, chain, causal": PUBLISHED
    | {"slot_predicts": "next", "slot_chain": True, "prefix_attention": "causal"},
}
ALL = pytest.mark.parametrize("variant", FORMS.values(), ids=FORMS)
needs_library = pytest.mark.skipif(kernels() is None, reason="no compiled kernels")


@needs_library
@ALL
def test_slots_in_8_bits_say_nearly_the_same(variant: dict[str, Any]) -> None:
    model, net_input = drafter(**variant), make_batch(random_sources(5, 3))["net_input"]
    with torch.inference_mode():
        encoder_out = model.encoder(**net_input)
        found = []
        for slots in (CachedSlots(model), CachedSlots(model, Precision(int8=True))):
            slots.begin(net_input["src_tokens"], encoder_out)
            found.append(block_logits(slots, [[5], [6, 7, 8], [9]], 4).log_softmax(-1))
    assert isinstance(slots.reader.packed.layers[0].qkv, int8.Int8Linear)
    assert not torch.equal(*found)
    exact, rounded = found
    torch.testing.assert_close(rounded, exact, atol=0.2, rtol=0.0)


@needs_library
@ALL
def test_cached_slots_equal_the_models_own_layers(variant: dict[str, Any]) -> None:
    model = drafter(**variant)
    sample = make_batch(random_sources(5, 3))
    net_input = sample["net_input"]
    with torch.inference_mode():
        encoder_out = model.encoder(**net_input)
        fast, plain = CachedSlots(model), LayerSlots(model)
        for slots in (fast, plain):
            slots.begin(net_input["src_tokens"], encoder_out)
        prefixes: list[list[int]] = [[], [], []]
        for grown, size in (
            ([[], [], []], 5),
            ([[5], [6, 7, 8], [9]], 5),
            ([[4], [], [3, 3]], 2),
            ([[6], [5], [7]], 1),
        ):
            prefixes = [prefix + more for prefix, more in zip(prefixes, grown, strict=True)]
            found, expected = (block_logits(slots, prefixes, size) for slots in (fast, plain))
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        for slots in (fast, plain):
            slots.keep_rows([2, 1])
        prefixes = [prefixes[2] + [8], prefixes[1] + [4]]
        found, expected = (block_logits(slots, prefixes, 4) for slots in (fast, plain))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
