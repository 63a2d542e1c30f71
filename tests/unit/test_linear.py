"""FastLinear, FastNorm, FastFeedForward against the modules they stand for."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import nn

from fairseq_aggdec.engine import linear
from fairseq_aggdec.engine.linear import (
    FastFeedForward,
    FastLinear,
    FastNorm,
    fold_bias,
    multiplies_bfloat16,
)

ROWS = (1, 2, 3, 4, 5, 20, 31, 33, 64, 65, 300)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        yield


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("shape", [(24, 40), (512, 1100)])
def test_linear(pack: bool, bias: bool, relu: bool, shape: tuple[int, int]) -> None:
    module = nn.Linear(*shape, bias=bias)
    fast = FastLinear([module], relu=relu, pack=pack)
    for rows in ROWS:
        x = torch.randn(rows, shape[0])
        kept = x.clone()
        expected = F.linear(x, module.weight, module.bias)
        assert_close(fast(x), expected.relu() if relu else expected)
        assert torch.equal(x, kept)


@pytest.mark.parametrize("pack", [True, False])
def test_modules_side_by_side(pack: bool) -> None:
    modules = [nn.Linear(24, 8), nn.Linear(24, 16, bias=False), nn.Linear(24, 4)]
    fast = FastLinear(modules, pack=pack)
    for rows in ROWS:
        x = torch.randn(rows, 24)
        assert_close(fast(x), torch.cat([module(x) for module in modules], dim=-1))


@pytest.mark.parametrize("pack", [True, False])
def test_three_dimensions(pack: bool) -> None:
    module = nn.Linear(24, 40)
    fast = FastLinear([module], pack=pack)
    for shape in ((2, 1, 24), (1, 5, 24), (3, 6, 24)):
        x = torch.randn(shape)
        assert_close(fast(x), module(x))


def test_a_view_that_is_not_contiguous() -> None:
    module = nn.Linear(24, 40)
    fast = FastLinear([module])
    x = torch.randn(6, 72)[:, 24:48]
    assert_close(fast(x), module(x))


@pytest.mark.parametrize("relu", [True, False])
def test_bfloat16(relu: bool) -> None:
    modules = [nn.Linear(24, 40).bfloat16(), nn.Linear(24, 8, bias=False).bfloat16()]
    fast = FastLinear(modules, relu=relu)
    for rows in ROWS:
        x = torch.randn(rows, 24).bfloat16()
        expected = torch.cat([module(x) for module in modules], dim=-1)
        found = fast(x)
        assert found.dtype is torch.bfloat16
        assert found.shape == expected.shape
        expected = expected.relu() if relu else expected
        torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_not_packed(dtype: torch.dtype) -> None:
    module = nn.Linear(24, 40).to(dtype)
    fast = FastLinear([module])
    assert fast.packed is None
    x = torch.randn(6, 24, dtype=dtype)
    assert torch.equal(fast(x), module(x))


def test_norm() -> None:
    module = nn.LayerNorm(24)
    nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    x = torch.randn(6, 24)
    assert torch.equal(FastNorm(module)(x), module(x))


def make_layer(normalize_before: bool, activation: str) -> TransformerDecoderLayerBase:
    from fairseq.models.transformer import TransformerConfig

    config = TransformerConfig()
    config.decoder.embed_dim, config.decoder.ffn_embed_dim, config.decoder.attention_heads = (
        16,
        24,
        2,
    )
    config.encoder.embed_dim = 16
    config.decoder.normalize_before = normalize_before
    config.activation_fn = activation  # type: ignore[assignment]
    return TransformerDecoderLayerBase(config).eval()


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("normalize_before", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_feed_forward(pack: bool, normalize_before: bool, activation: str) -> None:
    layer = make_layer(normalize_before, activation)
    x = torch.randn(6, 16)
    hidden = layer.final_layer_norm(x) if normalize_before else x
    expected = x + layer.fc2(layer.activation_fn(layer.fc1(hidden)))
    expected = expected if normalize_before else layer.final_layer_norm(expected)
    assert_close(FastFeedForward(layer, functools.partial(FastLinear, pack=pack))(x), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_a_carried_bias_changes_nothing(bias: bool) -> None:
    """It is part of the norm, and what is added is written to what it is added to; no bias, nothing to do."""
    norm, first = nn.LayerNorm(16), nn.Linear(16, 24)
    last = nn.Linear(24, 16, bias=bias)
    norm.bias.copy_(torch.randn(16))
    x = torch.randn(6, 16)
    begun = norm(x)
    expected = begun + last(first(begun).relu())
    fast, reader = FastNorm(norm), FastLinear([first], relu=True, pack=False)
    product = FastLinear([last], pack=False)
    fast.bias = fold_bias(fast.bias, reader, product)
    begun = fast(x)
    found = product.add_to(begun, reader(begun))
    assert_close(found, expected)
    assert (found is begun) == product.bias_folded == bias


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("avx2 fma", False), ("avx512_bf16 avx2", True), ("amx_bf16", True), ("asimd bf16", True)],
)
def test_bfloat16_is_what_the_processor_says(
    monkeypatch: pytest.MonkeyPatch, flags: str, expected: bool
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"flags : {flags}\n")
    assert multiplies_bfloat16.__wrapped__() is expected


@pytest.mark.parametrize(
    ("compiled", "multiplies", "library", "reason"),
    [
        (False, False, None, "without compiled kernels"),
        (False, True, object(), "without compiled kernels"),
        (True, False, object(), None),
        (False, True, None, None),
    ],
)
def test_what_speaks_against_bfloat16(
    compiled: bool,
    multiplies: bool,
    library: object,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linear, "multiplies_bf16", lambda: compiled)
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: multiplies)
    monkeypatch.setattr(linear, "kernels", lambda: library)
    found = linear.against_bfloat16()
    assert found is reason is None or (found and reason and reason in found)
