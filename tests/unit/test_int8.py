"""Linear layers in 8 bits: near the layers they stand for, and what their integers say, with and without kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_aggdec.engine.int8 import Int8Linear, PlainProduct, linear, row_levels
from fairseq_aggdec.engine.linear import FastLinear
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.engine.slot_attention import attend_alone
from fairseq_aggdec.kernels.library import in_levels, kernels
from fairseq_aggdec.kernels.switches import VARIABLE

ROWS = (1, 2, 5, 6, 7, 13, 40)


@pytest.fixture(params=["compiled", "none"], autouse=True)
def _kernels(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "none":
        monkeypatch.setenv(VARIABLE, "none")
    kernels.cache_clear()
    torch.manual_seed(1)
    with torch.inference_mode():
        yield
    kernels.cache_clear()


def in_integers(modules: list[nn.Linear], x: Tensor) -> Tensor:
    """What the layer says in 8 bits, from the definition: sums in fp64 of what the levels stand for."""
    outputs = []
    for module in modules:
        of_largest = module.weight.abs().amax(1, keepdim=True) / 127
        weight = (module.weight / of_largest).round()
        rows = []
        for row in x.float():
            low, high = min(0.0, float(row.min())), max(0.0, float(row.max()))
            step = (high - low) / 255
            zero = round(-low / step)
            levels = (row.double() / step).round().add(zero).clamp(0, 255)
            rows.append((levels - zero) * step)
        y = torch.stack(rows) @ (weight * of_largest).double().t()
        outputs.append(y if module.bias is None else y + module.bias)
    return torch.cat(outputs, -1)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("inputs", [48, 61, 530])
def test_what_the_integers_say(relu: bool, bias: bool, rows: int, inputs: int) -> None:
    modules = [nn.Linear(inputs, units, bias=bias) for units in (40, 29)]
    x = torch.randn(rows, inputs)
    found, expected = Int8Linear(modules, relu)(x), in_integers(modules, x)
    expected = (expected.relu() if relu else expected).float()
    # A level may be rounded the other way in fp32: one step of one input.
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-4)
    plain = torch.cat([module(x) for module in modules], -1)
    near = float(plain.abs().max()) / 40
    torch.testing.assert_close(found, plain.relu() if relu else plain, atol=near, rtol=0)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("relu", [False, True])
def test_the_plain_product_is_the_compiled_one_bit_for_bit(rows: int, relu: bool) -> None:
    modules = [nn.Linear(77, 100), nn.Linear(77, 3)]
    weight = torch.cat([module.weight for module in modules])
    bias = torch.cat([module.bias for module in modules])
    x = torch.randn(rows, 77) * torch.rand(rows, 1) * 9
    assert torch.equal(Int8Linear(modules, relu)(x), PlainProduct(weight, bias, relu)(x))


def test_levels_of_numbers_near_the_middle_between_two() -> None:
    """A scale whose last digit differs takes some of these to the other level."""
    span = torch.rand(2000, 1) * 1000 + 1
    middle = (torch.arange(255) + 0.5) * (span / 255)
    x = torch.cat([span, middle, middle.nextafter(span)], -1)
    module = nn.Linear(x.size(1), 7, bias=False)
    assert torch.equal(Int8Linear([module])(x), PlainProduct(module.weight, None, False)(x))


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    fast = Int8Linear([nn.Linear(96, 200)])
    x = torch.randn(40, 96) * torch.logspace(-3, 3, 40).unsqueeze(1)
    together = fast(x)
    for count in ROWS:
        for first in (0, 40 - count):
            assert torch.equal(fast(x[first : first + count]), together[first : first + count])
    assert torch.equal(fast(x.view(4, 10, 96)), together.view(4, 10, 200))


def test_levels() -> None:
    x = torch.tensor([[0.0, 1.0, 2.0], [-1.0, 0.0, 1.55], [-3.0, -1.5, -3.0], [0.0, 0.0, 0.0]])
    levels, scales, zeros = row_levels(x)
    assert zeros.flatten().tolist() == [0, 100, 255, 0]
    assert levels.tolist() == [[0, 128, 255], [0, 100, 255], [0, 127, 0], [0, 0, 0]]
    torch.testing.assert_close((levels - zeros) * scales, x, atol=0.01, rtol=0)
    weight, of_outputs = in_levels(torch.tensor([[0.5, -1.0], [0.0, 0.0]]))
    assert weight.tolist() == [[64, -127], [0, 0]]
    torch.testing.assert_close(of_outputs[0], torch.tensor(1 / 127))


def test_nothing_and_a_weight_of_zeros() -> None:
    module = nn.Linear(16, 8)
    assert torch.equal(Int8Linear([module])(torch.zeros(2, 16)), module.bias.expand(2, 8))
    module.weight.zero_()
    assert torch.equal(Int8Linear([module])(torch.ones(2, 16)), module.bias.expand(2, 8))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_none_stay_in_their_row(relu: bool, number: float) -> None:
    """They make their whole row NaN, wherever they stand; the other rows do not change."""
    fast, x = Int8Linear([nn.Linear(21, 40)], relu), torch.randn(3, 21)
    expected = fast(x)
    for place in (0, 3, 20):
        broken = x.clone()
        broken[1, place] = number
        found = fast(broken)
        assert found[1].isnan().all()
        assert torch.equal(found[::2], expected[::2])
    x[1, :2] = torch.tensor([3e38, -3e38])  # a range that is too large for fp32
    assert fast(x)[1].isnan().all()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_no_numbers_stay_in_their_output(relu: bool, number: float) -> None:
    module, x = nn.Linear(21, 40), torch.randn(3, 21)
    expected = Int8Linear([module], relu)(x)
    module.weight[5, 20] = number
    found = Int8Linear([module], relu)(x)
    others = [place for place in range(40) if place != 5]
    assert found[:, 5].isnan().all()
    assert torch.equal(found[:, others], expected[:, others])
    levels, scales = in_levels(module.weight)
    assert scales.isnan().nonzero().tolist() == [[5]] and not levels[5].any()


def test_only_on_cpu_in_kinds_that_are_known() -> None:
    module = nn.Linear(16, 8)
    assert isinstance(linear([module], Precision(int8=False)), FastLinear)
    for dtype in (torch.bfloat16, torch.float32):
        fast = linear([module.to(dtype)], Precision(int8=True))
        assert isinstance(fast, Int8Linear)
        x = torch.randn(3, 16, dtype=dtype)
        assert fast(x).dtype is dtype
        torch.testing.assert_close(fast(x), module(x), atol=0.05, rtol=0.05)
    assert isinstance(linear([module.half()], Precision(int8=True)), FastLinear)


def test_attention_one_query_after_the_other() -> None:
    q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    mask = torch.zeros(2, 1, 5, 7).masked_fill_(torch.rand(2, 1, 5, 7) < 0.4, -torch.inf)
    mask[..., 0] = 0
    for given in (None, mask, mask[:1], mask[:, :, :1]):
        expected = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=given)
        torch.testing.assert_close(attend_alone(q, k, v, given), expected)
    alone = attend_alone(q[1:, :, 2:3], k[1:], v[1:], mask[1:, :, 2:3])
    assert torch.equal(alone[0, :, 0], attend_alone(q, k, v, mask)[1, :, 2])
