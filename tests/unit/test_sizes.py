"""The compiled library reads and writes nothing where sizes do not fit: those of its arguments, and those of files."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.kernels.layout import Layout, ProductForm
from fairseq_aggdec.kernels.library import (
    HeadsStruct,
    LayerStruct,
    Product,
    ShapeStruct,
    kernels,
    multiplies_bf16,
)
from fairseq_aggdec.kernels.stored import PARTS, Stored, is_part, key_of
from fairseq_aggdec.packed.files import BEGIN, DamagedError, read_tensors
from fairseq_aggdec.stored.loading import CheckpointError

pytestmark = pytest.mark.skipif(kernels() is None, reason="there are no compiled kernels")
KINDS = ("fp32", "int8", "bf16")
MISFIT = "sizes of its arguments do not fit"


def product(kind: str, outputs: int = 70, inputs: int = 40, bias: bool = True) -> Product:
    if kind == "bf16" and not multiplies_bf16():
        pytest.skip("no products in bfloat16")
    own = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, inputs, generator=own)
    given = torch.randn(outputs, generator=own) if bias else None
    return Product(weight, given, int8=kind == "int8", bf16=kind == "bf16")


def parts_of(found: Product) -> dict[str, Tensor]:
    parts = {part: getattr(found, part) for part in PARTS}
    return {part: tensor for part, tensor in parts.items() if tensor is not None}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_form_is_that_of_what_is_packed(kind: str, bias: bool) -> None:
    for outputs, inputs in ((70, 40), (64, 32), (1, 1), (513, 33)):
        found = parts_of(product(kind, outputs, inputs, bias))
        wanted = ProductForm(kind, inputs, outputs, bias).parts(Layout.of(kernels()))
        assert {part: (x.dtype, tuple(x.shape)) for part, x in found.items()} == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_other_sizes_make_no_product(kind: str) -> None:
    """In C++, whatever Python has compared."""
    right, bf16 = parts_of(product(kind)), kind == "bf16"
    x = torch.randn(3, 40)
    assert torch.equal(Product.of_parts(40, 70, False, bf16, **both(right))(x), product(kind)(x))
    for inputs, outputs in (
        *((40, 70 + 4096), (40, 200), (4096, 70), (40, 2**31), (40, 2**62), (2**62, 70)),
        *((-40, 70), (40, -70), (2**33, 2**33), (40, 0), (0, 70), (1, 1)),
    ):
        with pytest.raises(ValueError, match=MISFIT):
            Product.of_parts(inputs, outputs, False, bf16, **both(right))
    for part, tensor in right.items():
        for other in (tensor[:-1], torch.cat([tensor, tensor]), None):
            if part == "bias" and other is None:
                continue  # a product without one
            with pytest.raises(ValueError, match=MISFIT):
                Product.of_parts(40, 70, False, bf16, **both(right | {part: other}))
    room = torch.zeros(right["weight"].nbytes + 4, dtype=torch.uint8)
    if kind != "int8":
        moved = right | {"weight": room[1:-3]}
        with pytest.raises(ValueError, match=MISFIT):
            Product.of_parts(40, 70, False, bf16, **both(moved))


def both(parts: dict[str, Any]) -> dict[str, Tensor | None]:
    return {part: parts.get(part) for part in PARTS}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_compared_with_what_is_given(kind: str) -> None:
    found, x, y = product(kind), torch.randn(4, 40), torch.zeros(4, 70)
    call = kernels().aggdec_multiply
    for given, room in (
        *((160, 279), (160, 350), (159, 280), (161, 280), (200, 280), (120, 280), (-160, 280)),
        *((160, -280), (2**62, 280), (0, 280)),
    ):
        with pytest.raises(ValueError, match=MISFIT):
            call(found.address, x.data_ptr(), given, y.data_ptr(), room, 1)
    assert not y.any()
    call(found.address, x.data_ptr(), 160, y.data_ptr(), 280, 1)
    assert torch.equal(y, found(x))


def layer(channels: int, hidden: int) -> tuple[Any, list[Product]]:
    sizes = {
        "qkv": (3 * channels, channels),
        "own_out": (channels, channels),
        "cross_q": (channels, channels),
        "cross_kv": (2 * channels, 24),
        "cross_out": (channels, channels),
        "expand": (hidden, channels),
        "contract": (channels, hidden),
    }
    made = {name: product("fp32", *size) for name, size in sizes.items()}
    struct = LayerStruct()
    for name, one in made.items():
        setattr(struct, name, one.struct)
    return struct, [*made.values()]


def test_layers_are_compared_with_each_other() -> None:
    """A product that is right alone is wrong in another place."""
    call, shape = kernels().aggdec_check_layers, ShapeStruct(1, 16, 2, 1)
    struct, kept = layer(16, 48)
    call(ctypes.byref(struct), ctypes.byref(shape))
    for name in ("qkv", "own_out", "cross_q", "cross_kv", "cross_out", "expand", "contract"):
        other, wrong = layer(16, 48)
        larger = product("fp32", getattr(other, name).outputs + 64, getattr(other, name).inputs)
        setattr(other, name, larger.struct)
        with pytest.raises(ValueError, match=MISFIT):
            call(ctypes.byref(other), ctypes.byref(shape))
        del wrong
    for channels, heads in ((32, 2), (16, 3), (16, 0), (0, 1), (-16, 2)):
        with pytest.raises(ValueError, match=MISFIT):
            call(ctypes.byref(struct), ctypes.byref(ShapeStruct(1, channels, heads, 1)))
    del kept


def test_sources_and_heads_are_compared_with_their_products() -> None:
    struct, kept = layer(16, 48)
    shape, states, out = ShapeStruct(1, 16, 2, 1), torch.randn(3, 24), torch.zeros(3, 32)
    read = kernels().aggdec_read_source
    for channels, room in ((23, 96), (24, 95), (24, 128), (25, 96)):
        with pytest.raises(ValueError, match=MISFIT):
            read(
                *(ctypes.byref(struct), ctypes.byref(shape), states.data_ptr(), 3, channels),
                *(out.data_ptr(), room, 1),
            )
    heads = HeadsStruct(product("fp32", 32, 16).struct)
    heads.hidden = 16
    for wanted in (3, -1, 2**62):
        with pytest.raises(ValueError, match=MISFIT):
            kernels().aggdec_heads(ctypes.byref(heads), None, None, 1, wanted, None, 1)
    del kept


# -- headers of files

KEY = key_of("fp32", False, ["a.weight"])


def file_of(entries: Any, data: int = 64 * 40 * 4 + 256 + 24) -> Tensor:
    """A file whose header says that, with so many bytes behind it."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % BEGIN)
    whole = len(text).to_bytes(8, "little") + text + bytes(data)
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8)


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def sound() -> dict[str, Any]:
    strip = Layout.of(kernels()).strip
    return {
        "__metadata__": {"format": "pt"},
        f"{KEY}/weight": entry("F32", [64 // strip, 40, strip], 0, 10240),
        f"{KEY}/bias": entry("F32", [64], 10240, 10496),
        "gap.1": entry("U8", [24], 10496, 10520),
    }


NUMBERS: tuple[Any, ...] = (
    *(-1, 1, 63, 2**31, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, 2**64, 2**64 + 1, -(2**63)),
    *(1.0, 1e308, True, None, "1", [], [1], {}),
)


def forged() -> list[tuple[str, Any]]:
    """More than 200 headers: every number of every entry replaced by each of these, and others by hand."""
    found: list[tuple[str, Any]] = []
    for name in [one for one in sound() if one != "__metadata__"]:
        for part in ("shape", "data_offsets"):
            for at in range(len(sound()[name][part])):
                for number in NUMBERS:
                    made = sound()
                    if made[name][part][at] is number:
                        continue
                    made[name][part][at] = number
                    found.append((f"{name} {part} {at} {number!r}", made))
        for value in ("F64", "f32", "", None, 1, ["F32"], {}, "BF16", "I8"):
            found.append(
                (f"{name} dtype {value!r}", sound() | {name: sound()[name] | {"dtype": value}})
            )
        for part in ("dtype", "shape", "data_offsets"):
            found.append(
                (
                    f"{name} no {part}",
                    sound() | {name: {k: v for k, v in sound()[name].items() if k != part}},
                )
            )
            found.append((f"{name} {part} deep", sound() | {name: sound()[name] | {part: [[[1]]]}}))
        found.append((f"{name} more", sound() | {name: sound()[name] | {"x": 1}}))
        for value in (None, 1, "x", [], [1, 2]):
            found.append((f"{name} is {value!r}", sound() | {name: value}))
    whole = json.dumps(sound()).encode()
    found += [
        ("a name twice", whole[:-1] + b", " + whole[1:]),
        ("a list", b"[]"),
        ("nothing", b""),
        ("deep", b"[" * 100_000),
        ("deep objects", b'{"a":' * 100_000),
        ("no JSON", b"{"),
        ("NaN", whole.replace(b"10240", b"NaN")),
        ("infinite", whole.replace(b"10240", b"1e999")),
        ("long number", whole.replace(b"10240", b"9" * 5000)),
        ("no UTF-8", whole.replace(b"gap.1", b"\xff\xfe")),
        ("reversed", dict(reversed(sound().items()))),
        ("overlap", sound() | {"gap.1": entry("U8", [280], 10240, 10520)}),
        ("not aligned", {"gap.0": entry("U8", [24], 0, 24), "a": entry("F32", [2624], 24, 10520)}),
        ("empty at the end", sound() | {"z": entry("F32", [0], 10520, 10520)}),
        ("many dimensions", sound() | {"gap.1": entry("U8", [24] + [1] * 99, 10496, 10520)}),
    ]
    return found


def test_a_sound_header_is_read() -> None:
    found = read_tensors(file_of(sound()))
    assert {name: tuple(x.shape) for name, x in found.items()} == {
        name: tuple(one["shape"]) for name, one in sound().items() if name.startswith("[")
    }


def test_forged_headers_are_refused() -> None:
    """But for one that only says of bytes in between that they have a sign."""
    cases, read = forged(), []
    assert len(cases) > 200
    for name, header in cases:
        whole = file_of(header)
        try:
            tensors = read_tensors(whole)
        except DamagedError as error:
            assert str(error), name
            continue
        read.append(name)
        for tensor in tensors.values():
            first = tensor.data_ptr() - whole.data_ptr()
            assert 0 <= first <= first + tensor.nbytes <= len(whole), name
    assert read == ["gap.1 dtype 'I8'"]


@pytest.mark.parametrize("size", [0, 1, BEGIN - 9, BEGIN, 2**40, 2**63, 2**64 - 1])
def test_sizes_of_headers_are_compared_with_the_file(size: int) -> None:
    whole = file_of(sound())
    whole[:8] = torch.tensor([*size.to_bytes(8, "little")], dtype=torch.uint8)
    with pytest.raises(DamagedError):
        read_tensors(whole)
    for cut in (0, 7, 8, 100, len(whole) - 1):
        with pytest.raises(DamagedError):
            read_tensors(file_of(sound())[:cut])


def test_a_tensor_is_that_of_its_layer() -> None:
    layout, right = Layout.of(kernels()), parts_of(product("fp32", 70, 40))
    tensors = {f"{KEY}/{part}": tensor for part, tensor in right.items()}
    assert all(map(is_part, tensors))
    stored, form = Stored("a/checkpoint.pt", layout, tensors), ProductForm("fp32", 40, 70, True)
    found = stored.product(form, False, ["a.weight"])
    assert found is not None
    changes: list[Callable[[], tuple[Any, ProductForm]]] = [
        lambda: (tensors, ProductForm("fp32", 40, 70 + 4096, True)),
        lambda: (tensors, ProductForm("fp32", 40, 71, True)),
        lambda: (tensors, ProductForm("fp32", 41, 70, True)),
        lambda: (tensors, ProductForm("fp32", 40, 70, False)),
        lambda: ({f"{KEY}/weight": right["weight"]}, form),
        lambda: ({f"{KEY}/bias": right["bias"]}, form),
        lambda: (tensors | {f"{KEY}/bias": right["bias"].int()}, form),
        lambda: (tensors | {f"{KEY}/bias": right["bias"][:64]}, form),
        lambda: (tensors | {f"{KEY}/scales": right["bias"]}, form),
        lambda: (tensors | {f"{KEY}/weight": right["weight"].flatten()}, form),
    ]
    for change in changes:
        given, wanted = change()
        with pytest.raises(CheckpointError, match=r"damaged \(the \w+ of a.weight is not that of"):
            Stored("a/checkpoint.pt", layout, given).product(wanted, False, ["a.weight"])


OTHER_NAMES = (
    *("", "weight", "/weight", "[]/weight", "[" * 99_999 + "/weight", "null/weight"),
    *('["fp32", false]/weight', '["fp32", 0, "a"]/weight', '[1, false, "a"]/weight'),
    *('["fp32", false, 1]/weight', '{"a": 1}/weight', f"{KEY}/x", f"{KEY} /weight"),
)


@pytest.mark.parametrize("name", OTHER_NAMES, ids=range(len(OTHER_NAMES)))
def test_other_names_are_none_of_parts(name: str) -> None:
    assert not is_part(name)
