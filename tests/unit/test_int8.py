"""Linear layers in 8 bits: near the layers they stand for, and only where they pay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fairseq_aggdec.decoding import int8
from fairseq_aggdec.decoding.int8 import Int8Linear, int8_available, linear
from fairseq_aggdec.decoding.linear import FastLinear

needs_int8 = pytest.mark.skipif(not int8_available(), reason="this torch has no such operators")


@needs_int8
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_close_to_the_layer(relu: bool, bias: bool, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    modules = [nn.Linear(48, units, bias=bias, dtype=dtype) for units in (40, 24)]
    x = torch.randn(rows, 48, dtype=dtype)
    with torch.inference_mode():
        expected = torch.cat([module(x) for module in modules], -1)
        found = Int8Linear(modules, relu)(x)
    largest = expected.abs().max()
    torch.testing.assert_close(
        found, expected.relu() if relu else expected, atol=float(largest) / 40, rtol=0
    )


@needs_int8
def test_nothing_and_a_weight_of_zeros() -> None:
    module = nn.Linear(16, 8)
    with torch.inference_mode():
        torch.testing.assert_close(
            Int8Linear([module])(torch.zeros(2, 16)), module(torch.zeros(2, 16))
        )
        module.weight.zero_()
        torch.testing.assert_close(
            Int8Linear([module])(torch.ones(2, 16)), module(torch.ones(2, 16))
        )


def test_only_large_weights_of_known_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(16, 8)
    assert isinstance(linear([module], int8=True), FastLinear)
    monkeypatch.setattr(int8, "LARGE_WEIGHT", 128)
    assert isinstance(linear([module], int8=False), FastLinear)
    assert isinstance(linear([module.half()], int8=True), FastLinear)
    expected = Int8Linear if int8_available() else FastLinear
    for dtype in (torch.bfloat16, torch.float32):
        assert isinstance(linear([module.to(dtype)], int8=True), expected)


def test_without_the_operators_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> None:
        raise AttributeError("qlinear_prepack")

    monkeypatch.setattr(int8, "_Product", missing)
    monkeypatch.setattr(int8, "LARGE_WEIGHT", 0)
    int8_available.cache_clear()
    assert not int8_available()
    assert isinstance(linear([nn.Linear(16, 8)], int8=True), FastLinear)
    int8_available.cache_clear()
