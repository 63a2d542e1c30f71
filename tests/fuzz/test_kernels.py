"""The compiled kernels with random shapes and values, in every set of instructions that this processor has.

The references are PyTorch's operators in fp64, or what the kernels promise: integers to the bit, and rows that do not
depend on what stands beside them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.engine.compiled import ACTIVATIONS as COMPILED
from fairseq_aggdec.engine.int8 import PlainProduct
from fairseq_aggdec.engine.plain.support import decoder_gap
from fairseq_aggdec.kernels import library
from fairseq_aggdec.kernels.gpu.largest import first_largest
from fairseq_aggdec.kernels.library import NormStruct, Product, kernels
from fairseq_aggdec.kernels.switches import VARIABLE
from tests.equality.test_cached_decoder import walk
from tests.fuzz import budget
from tests.fuzz.cases import transformer_shape
from tests.support import make_model, make_task
from tests.tables import best_tokens
from tests.unit.test_kernels import compiled

PAD, EOS, UNK, VOCABULARY = 1, 2, 3, 21
ULP = 2.0**-23
SMALLEST = 2.0**-126  # below it numbers have fewer digits


def numbers(chance: random.Random, *shape: int) -> Tensor:
    """Finite fp32 numbers of some kind: usual ones, denormals, huge ones, all of these, equal ones, ties, zeros."""
    kinds: list[Callable[[Tensor], Tensor]] = [
        lambda x: x,
        lambda x: x,
        lambda x: x * 1e-41,
        lambda x: x * 1e15,
        lambda x: x * 10 ** (torch.rand_like(x) * 30 - 18),
        lambda x: x + 1000,
        lambda x: torch.full_like(x, chance.choice((0.0, -0.0, 1.0, -3.7))),
        lambda x: x.round(),
        lambda x: x * (torch.rand_like(x) < 0.2),
    ]
    return chance.choice(kinds)(torch.randn(shape))


def size(chance: random.Random, most: int = 300) -> int:
    """Small ones, those around the width of vectors, others."""
    near = chance.choice((16, 32, 64, 128)) + chance.randint(-1, 1)
    return min(most, chance.choice((chance.randint(1, 9), near, chance.randint(1, most))))


def with_broken_rows(chance: random.Random, x: Tensor) -> tuple[Tensor, Tensor]:
    """A copy with NaN or infinity in some rows, and which these are, (N,) bool."""
    broken = torch.rand(len(x)) < 0.3
    x = x.clone()
    for row in broken.nonzero().flatten().tolist():
        x[row, chance.randrange(x.size(1))] = chance.choice((torch.nan, torch.inf, -torch.inf))
    return x, broken


def assert_within(found: Tensor, expected: Tensor, bound: Tensor | float) -> None:
    """Finite where the reference is, and no further from it than ``bound``; else the same NaN or infinity."""
    finite = expected.isfinite()
    assert torch.equal(found.isfinite(), finite)
    assert torch.equal(found[~finite].nan_to_num(7.0), expected[~finite].float().nan_to_num(7.0))
    error = (found.double() - expected).abs().masked_fill(~finite, 0.0)
    assert not (error > torch.as_tensor(bound)).any(), float(error.max())


# -- what is checked, of a library


def check_products(chance: random.Random, code: Any) -> None:
    rows, inputs, outputs = (
        chance.choice((0, 1, 2, chance.randint(1, 40))),
        size(chance),
        size(chance),
    )
    weight = numbers(chance, outputs, inputs)
    bias = numbers(chance, outputs) if chance.random() < 0.5 else None
    relu = chance.random() < 0.5
    product = Product(weight, bias, relu, library=code)
    x = numbers(chance, rows, inputs)
    magnitude = x.double().abs() @ weight.double().abs().t() + (0 if bias is None else bias.abs())
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    together = product(x)
    bound = (inputs + 3) * (ULP * magnitude + SMALLEST)
    assert_within(together, expected.relu() if relu else expected, bound)
    first, count = chance.randint(0, rows), chance.randint(0, rows)
    assert torch.equal(product(x[first : first + count].clone()), together[first : first + count])
    x, broken = with_broken_rows(chance, x)
    found = product(x)
    assert torch.equal(found[~broken], together[~broken])
    wanted = F.linear(x[broken], weight, bias)
    assert torch.equal(found[broken].isnan(), wanted.isnan())


def check_8_bits(chance: random.Random, code: Any) -> None:
    rows, inputs, outputs = (
        chance.choice((0, 1, 2, chance.randint(1, 40))),
        size(chance),
        size(chance),
    )
    weight = numbers(chance, outputs, inputs)
    bias = numbers(chance, outputs) if chance.random() < 0.5 else None
    relu = chance.random() < 0.5
    product, plain = (
        Product(weight, bias, relu, int8=True, library=code),
        PlainProduct(weight, bias, relu),
    )
    x = numbers(chance, rows, inputs)
    together = product(x)
    assert torch.equal(together, plain(x) if rows else x.new_empty(0, outputs))
    first, count = chance.randint(0, rows), chance.randint(0, rows)
    assert torch.equal(product(x[first : first + count].clone()), together[first : first + count])
    x, broken = with_broken_rows(chance, x)
    assert torch.equal(product(x)[~broken], together[~broken])


def check_norms(chance: random.Random, code: Any) -> None:
    rows, width = chance.choice((0, 1, chance.randint(1, 40))), size(chance)
    x, weight, bias = numbers(chance, rows, width), torch.randn(width), torch.randn(width)
    found, epsilon = torch.empty_like(x), chance.choice((1e-5, 1e-6, 1e-12))
    norm = NormStruct(weight.data_ptr(), bias.data_ptr(), epsilon)
    address = library.ctypes.addressof(norm)
    code.aggdec_norm(address, x.data_ptr(), rows, width, found.data_ptr())
    exact = x.double()
    expected = F.layer_norm(exact, (width,), weight.double(), bias.double(), epsilon)
    deviation = (
        (exact - exact.mean(1, keepdim=True)).square().mean(1, keepdim=True) + epsilon
    ).sqrt()
    # The mean is off by its rounding, which a small deviation makes large.
    unit = 8 * ULP * (width**0.5 + exact.abs().amax(1, keepdim=True) / deviation)
    assert_within(found, expected, unit * (weight.abs() + bias.abs() + 1) * (1 + expected.abs()))
    for row in range(rows):
        alone = torch.empty(width)
        code.aggdec_norm(address, x[row].data_ptr(), 1, width, alone.data_ptr())
        assert torch.equal(alone, found[row])


def check_activations(chance: random.Random, code: Any) -> None:
    number = chance.randrange(len(COMPILED))
    activation = COMPILED[number]
    x = numbers(chance, chance.choice((0, 1, size(chance))))
    found = x.clone()
    code.aggdec_activate(number, found.data_ptr(), len(x), 1)
    exact = x.double() if activation is None else activation(x.clone()).double()
    assert_within(found, exact, 1e-6 + 1e-5 * exact.abs())
    at = chance.randint(0, len(x))
    part = x[at:].clone()
    code.aggdec_activate(number, part.data_ptr(), len(part), 1)
    assert torch.equal(part, found[at:])


def check_largest(chance: random.Random, code: Any) -> None:
    rows, types = chance.choice((0, 1, 30)), size(chance)
    x, _ = with_broken_rows(chance, numbers(chance, rows, types))
    assert torch.equal(first_largest(x), x.max(-1).indices)


def check_best_tokens(chance: random.Random, code: Any) -> None:
    rows, types = chance.choice((0, 1, 30)), max(5, size(chance))
    count = chance.randint(1, min(types, chance.choice((4, 20))))
    x, wanted = numbers(chance, rows, types), torch.randint(types, (rows,))
    found = best_tokens(x, count, wanted, PAD, UNK)
    without = x.index_fill(1, torch.tensor(PAD), -torch.inf)
    tokens = found[:, count:-1].long()
    own = without.gather(1, tokens)
    assert torch.equal(own, without.topk(count).values)
    assert all(len(set(row)) == count for row in tokens.tolist())
    log_probs = x.double().log_softmax(-1)
    log_probs[:, PAD] = -torch.inf
    unit = 1e-5 + 4 * ULP * (x.double().abs().amax(1, keepdim=True) + 1)
    for part, taken in ((found[:, :count], tokens), (found[:, -1:], wanted.unsqueeze(1))):
        expected = log_probs.gather(1, taken)
        assert_within(part, expected, unit + 4 * ULP * expected.abs().nan_to_num(posinf=0.0))
    y, broken = with_broken_rows(chance, x)
    assert torch.equal(best_tokens(y, count, wanted, PAD, UNK)[~broken], found[~broken])


def check_layers(chance: random.Random, code: Any) -> None:
    """Encoder and decoder against the model's own, over random windows."""
    shape = transformer_shape(chance, (36, 36))
    model = make_model(make_task(), chance.randrange(10**6), **shape)
    assert decoder_gap(model.decoder) is None
    walk(model, chance.randrange(10**6), chance.random() < 0.8, chance.random() < 0.5, steps=3)


CHECKS = {
    name.removeprefix("check_"): check for name, check in globals().items() if name[:6] == "check_"
}


@pytest.fixture
def kept_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with torch.no_grad():
        yield monkeypatch
    monkeypatch.undo()
    kernels.cache_clear()


opened = functools.cache(library._open)


@pytest.mark.skipif(not compiled(), reason="no compiler was there at installation")
@pytest.mark.parametrize("name", CHECKS)
def test_kernels(name: str, kept_choice: pytest.MonkeyPatch) -> None:
    """A case is checked with every set of instructions."""
    for seed in budget.seeds(share=1 / len(CHECKS)):
        for instructions in compiled():
            kept_choice.setenv(VARIABLE, instructions)
            kernels.cache_clear()
            chance = random.Random(f"{name} {seed}")
            torch.manual_seed(seed)
            try:
                CHECKS[name](chance, opened(instructions))
            except Exception as error:
                line = budget.again(f"'tests/fuzz/test_kernels.py::test_kernels[{name}]'", seed)
                raise AssertionError(f"{instructions}: {line}\n{error}") from error
