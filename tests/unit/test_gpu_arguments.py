"""What a launch refuses, as a kernel would end the process; what it copies first."""

from __future__ import annotations

import ctypes
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators
from fairseq_aggdec.kernels.gpu.arguments import LARGEST, MOST_KNOWN, PRECISIONS, Signature, aligned
from fairseq_aggdec.kernels.gpu.attention import attend_own
from fairseq_aggdec.kernels.gpu.operators import SCHEMAS, SIGNATURES
from fairseq_aggdec.kernels.gpu.products import Norm, normed, product
from fairseq_aggdec.windows.grid import Visibility
from tests.strict.device.bookkeeping import COMPILER, build, fused_kernels

needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")


def arguments(name: str, **changed: Any) -> list[Any]:
    """Of a launch that its kernel can read; its tensors have one row of 64 numbers."""
    found: list[Any] = []
    for kind, word in re.findall(r"(Tensor|int|float)\S* (\w+)[,)]", SCHEMAS[name]):
        halves = word in operators.SIGNATURES[name].numbers and "precision" in SCHEMAS[name]
        tensor = torch.zeros(1, 64, dtype=torch.half if halves else torch.long)
        made = {"Tensor": tensor, "int": 1, "float": 0.5}[kind]
        found.append(changed.get(word, made))
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_can_be_read_is_given_as_it_is(name: str) -> None:
    given, signature = arguments(name), SIGNATURES[name]
    read = signature.read(given)
    assert all(one is other for one, other in zip(read, given, strict=True))
    assert len(signature.words(read)) == 8 * len(given)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_launch_is_compared_with_its_tensors(name: str) -> None:
    """More blocks, or slots and rows where blocks share them, than there is memory for."""
    more = {"product": "rows", "cross_attend": "slots", "logits": "slots"}.get(name, "blocks")
    with pytest.raises(RuntimeError, match=f"the kernel {name} would go behind .* 64 numbers"):
        SIGNATURES[name].read(arguments(name, **{more: 100_000}))


@needs_compiler
def test_structs_have_the_words_of_their_schemas() -> None:
    library = ctypes.CDLL(str(build()))
    for name, signature in SIGNATURES.items():
        assert getattr(library, f"words_of_{name}")() == len(signature.parameters), name


def test_structs_have_the_names_of_their_schemas() -> None:
    folder = Path(operators.__file__).parent / "source"
    source = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.cu"))
    source = re.sub(r"//.*", "", source)
    bodies = dict(re.findall(r"^struct (\w+) \{\n(.*?)^\};", source, re.DOTALL | re.MULTILINE))
    structs = dict(re.findall(r"__global__ [^{;]*?(\w+)\(const (\w+) p\)", source))
    for name, signature in SIGNATURES.items():
        names = re.findall(r"(\w+)[,;]", bodies[structs[name]])
        assert names == [known for known, _ in signature.parameters], name


def odd(*shape: int, dtype: torch.dtype = torch.half) -> Tensor:
    """Zeros that begin two bytes behind a multiple of 16."""
    return torch.zeros(1 + torch.Size(shape).numel(), dtype=dtype)[1:].view(shape)


HALVES = torch.zeros(4, 128, dtype=torch.half)


@pytest.mark.parametrize(
    "name, word, value",
    [
        ("product", "x", odd(2, 64)),
        ("product", "x", HALVES[:, ::2]),
        ("product", "gain", odd(64)),
        ("begin", "block", torch.zeros(3, 4, dtype=torch.long).t()),
        ("follow", "features", odd(2, 64)),
        ("attend", "at", torch.zeros(1, dtype=torch.long).expand(4)),
    ],
)
def test_what_is_only_read_is_copied(name: str, word: str, value: Tensor) -> None:
    place = [known for known, _ in SIGNATURES[name].parameters].index(word)
    (found,) = SIGNATURES[name].read(arguments(name, **{word: value}))[place : place + 1]
    assert found is not value and found.equal(value) and found.is_contiguous()
    assert found.data_ptr() % 16 == 0


@pytest.mark.parametrize(
    "name, word, value",
    [
        ("product", "kept", odd(2, 64)),
        ("product", "x", torch.zeros(2, 12, dtype=torch.half)),  # rows of 24 bytes
        ("layer_norm", "y", HALVES[:, :64]),
        ("product", "y", HALVES[:, ::2]),
        ("attend", "kept", HALVES[:, 4:]),
        ("attend", "queries", HALVES[:, 4:100]),
        ("attend", "mask", HALVES[:, ::2]),
        ("embedding", "memory", HALVES[:, 1:]),
        ("embedding", "table", HALVES.float()),
        ("embedding", "mask", HALVES.float()),
        ("embedding", "tokens", torch.zeros(4, dtype=torch.int32)),
        ("beam_step", "visibility", odd(1, 64)),
        ("verify", "logits", HALVES.bfloat16()),
        ("largest", "types", LARGEST + 1),
        ("look", "blocks", LARGEST + 1),
        ("begin", "numbers", torch.zeros(1, 7, dtype=torch.long, device="meta")),
    ],
)
def test_what_would_end_the_process_is_refused(name: str, word: str, value: Any) -> None:
    with pytest.raises(RuntimeError, match=f"the kernel {name} cannot read"):
        SIGNATURES[name].read(arguments(name, **{word: value}))


def other(value: Any, chance: random.Random) -> Any:
    """An argument that differs from another one in what a kernel cannot see: it is told a number, or an address."""
    if not isinstance(value, Tensor):
        return chance.choice((1, 2, 0, LARGEST, LARGEST + 1, -LARGEST - 1)) if value == 1 else value
    dtype = chance.choice((value.dtype, *PRECISIONS, torch.int64, torch.int32, torch.bool))
    rows, width = chance.choice(((1, 64), (2, 64), (1, 12), (3, 8)))
    behind, step = chance.choice((0, 0, 1, 8)), chance.choice((1, 1, 2))
    room = torch.zeros(behind + rows * width * step, dtype=dtype)[behind:]
    made = room.view(rows, width * step)[:, ::step]
    return chance.choice((made, made, made.t(), made[:1].expand(4, -1), made.to("meta")))


def read_by(signature: Signature, given: Sequence[Any]) -> list[bool] | str:
    """Which arguments a kernel reads as they are given, or why it reads none."""
    try:
        found = signature.read(given)
    except RuntimeError as error:
        return str(error)
    return [one is two for one, two in zip(found, given, strict=True)]


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_was_read_before_lets_nothing_else_through(name: str) -> None:
    """Arguments that differ in one or two places from those that a kernel has read: it reads what a new one reads."""
    chance, known, plain = random.Random(name), Signature(name, SCHEMAS[name]), arguments(name)
    assert all(read_by(known, plain))
    for _ in range(1000):
        given = list(plain)
        for place in chance.choices(range(len(given)), k=chance.choice((1, 1, 2))):
            given[place] = other(given[place], chance)
        assert read_by(known, given) == read_by(Signature(name, SCHEMAS[name]), given)


def test_what_was_read_before_is_not_checked_again() -> None:
    given, signature = arguments("product", x=odd(2, 64)), Signature("product", SCHEMAS["product"])
    with mock.patch.object(signature, "_copied", wraps=signature._copied) as checked:
        for _ in range(3):
            found = signature.read(given)
            assert [one is two for one, two in zip(found, given, strict=True)].count(False) == 1
            assert checked.call_count == 1
        for rows in range(3 * MOST_KNOWN):  # it remembers so many
            signature.read(arguments("product", high=rows))
            assert len(signature.known) <= MOST_KNOWN
        assert checked.call_count == 1 + 3 * MOST_KNOWN
        wrong = arguments("product", y=HALVES[:, ::2])
        for _ in range(2):  # nothing is remembered of what was refused
            with pytest.raises(RuntimeError):
                signature.read(wrong)
        assert checked.call_count == 3 + 3 * MOST_KNOWN


def test_nothing_is_launched_where_nothing_is_asked() -> None:
    with mock.patch.object(operators, "module") as module:
        operators._launch("begin", *arguments("begin", blocks=0))
        assert not module.called
        operators._launch("begin", *arguments("begin", blocks=3))
    assert module().launch.call_args.args[2] == 3


@pytest.mark.parametrize("size", [8, 24, 40, 128])
def test_heads_begin_at_whole_words(size: int) -> None:
    """Of every precision, in slices of a fused product as in a cache."""
    for dtype in PRECISIONS:
        qkv = torch.zeros(3, 3 * 2 * size, dtype=dtype)
        assert all(aligned(part) for part in qkv.split(size, 1))
        assert not aligned(qkv[:, 1:]) and not aligned(qkv[:, : size - 1])


@needs_compiler
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_numbers_at_odd_places_give_the_same(dtype: torch.dtype) -> None:
    own = torch.Generator().manual_seed(3)

    def moved(x: Tensor) -> Tensor:
        return odd(*x.shape, dtype=dtype).copy_(x)

    x, weight, (gain, shift) = (
        torch.randn(size, 64, generator=own).to(dtype) for size in (5, 12, 2)
    )
    with fused_kernels(), torch.inference_mode():
        plain, other = Norm(gain, shift, 1e-5), Norm(moved(gain), moved(shift), 1e-5)
        assert product(x, weight.t(), None, norm=plain).equal(
            product(moved(x), moved(weight).t(), None, norm=other)
        )
        assert normed(x, plain).equal(normed(moved(x), other))


@needs_compiler
def test_no_key_is_stored_behind_the_last_place() -> None:
    """A window whose places are beyond the cache, which a fault elsewhere may give."""
    room = torch.zeros(1, 64, 32)
    at = torch.arange(62, 66)
    for few in (0, 99):
        with fused_kernels(), torch.inference_mode():
            attend_own(torch.ones(4, 48), room[:, :63], 4, 1, Visibility(at), few)
        assert room[0, 62].all() and not room[0, 63].any()
