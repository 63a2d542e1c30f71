"""The compiled kernels in every set of instructions that this processor has, against PyTorch; and without them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.compiled import ACTIVATIONS as COMPILED
from fairseq_aggdec.engine.encoder import FastEncoder
from fairseq_aggdec.engine.int8 import PlainProduct
from fairseq_aggdec.engine.linear import fast_kernels
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.kernels import library
from fairseq_aggdec.kernels.gpu.largest import first_largest
from fairseq_aggdec.kernels.library import Product, kernels
from fairseq_aggdec.kernels.switches import INSTRUCTIONS, VARIABLE
from fairseq_aggdec.search.compiled.tables import by_operators
from tests.support import ACTIVATED, make_model, make_task
from tests.tables import best_tokens

ROOT = Path(__file__).resolve().parents[2]
ROWS = (1, 2, 3, 4, 5, 6, 7, 12, 31)
SOURCE = ROOT / "fairseq_aggdec" / "kernels" / "source"
PAD = 1
SHAPES = [(24, 40), (61, 130), (530, 64), (512, 1100), (1, 1)]


def compiled() -> list[str]:
    plain = library._open("plain")
    names = [] if plain is None else library.supported(plain)
    return [name for name in names if library._open(name) is not None]


needs_kernels = pytest.mark.skipif(not compiled(), reason="no compiler was there at installation")


@pytest.fixture(params=compiled())
def instructions(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(VARIABLE, request.param)
    kernels.cache_clear()
    torch.manual_seed(1)
    with torch.inference_mode():
        yield request.param
    kernels.cache_clear()


def test_the_best_instructions_are_chosen(instructions: str) -> None:
    assert INSTRUCTIONS[kernels().aggdec_instructions()] == instructions


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_products(instructions: str, shape: tuple[int, int], bias: bool, relu: bool) -> None:
    inputs, outputs = shape
    weight, offset = torch.randn(outputs, inputs), torch.randn(outputs) if bias else None
    product = Product(weight, offset, relu)
    x = torch.randn(max(ROWS), inputs)
    together = product(x)
    expected = F.linear(x, weight, offset)
    torch.testing.assert_close(
        together, expected.relu() if relu else expected, atol=1e-4, rtol=1e-4
    )
    for rows in ROWS:  # bit for bit, whatever stands beside it
        assert torch.equal(product(x[:rows]), together[:rows])
        assert torch.equal(product(x[-rows:].clone()), together[-rows:])


@pytest.mark.parametrize("inputs", [1, 3, 5, 17, 30, 64, 257])
def test_the_largest_products_of_8_bits(instructions: str, inputs: int) -> None:
    """Levels and weights at both ends, beside each other: the sums are exact, however a processor adds them."""
    signs = torch.tensor([[1.0], [-1.0]]).expand(2, inputs)
    mixed = torch.randn(3, inputs).sign()
    weight = torch.cat((signs, mixed, mixed * torch.rand(3, 1), torch.randn(130, inputs)))
    x = torch.cat(
        (signs, mixed, mixed.roll(1, 0), signs + 1, torch.zeros(1, inputs), torch.randn(2, inputs))
    )
    assert torch.equal(
        Product(weight, None, int8=True)(x), PlainProduct(weight, None, relu=False)(x)
    )


def in_bfloat16(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What a product is by definition: in each block of 32 inputs two chains of sums, every step rounded to fp32.

    fp64 has room for a product and the sum that it is added to.
    """
    missing = -x.size(1) % 32
    x, weight = (F.pad(part.bfloat16().double(), (0, missing)) for part in (x, weight))
    total = torch.zeros(len(x), len(weight))
    for block in range(0, x.size(1), 32):
        chains = [torch.zeros_like(total), torch.zeros_like(total)]
        for k in range(32):
            one, other = x[:, block + k, None], weight[None, :, block + k]
            chains[k // 16] = (chains[k // 16].double() + one * other).float()
        total = total + (chains[0] + chains[1])
    return total


@pytest.mark.parametrize("shape", [*SHAPES[:3], (1, 1), (3, 5), (32, 64), (257, 70)], ids=str)
@pytest.mark.parametrize("relu", [True, False])
def test_products_in_bfloat16(instructions: str, shape: tuple[int, int], relu: bool) -> None:
    """Bit for bit what they are by definition, whatever stands beside a row."""
    inputs, outputs = shape
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
    product = Product(weight, bias, relu, bf16=True)
    x = torch.randn(max(ROWS), inputs) * torch.logspace(-9, 9, max(ROWS)).unsqueeze(1)
    together, expected = product(x), in_bfloat16(x, weight) + bias
    assert torch.equal(together, expected.relu() if relu else expected)
    for rows in ROWS:
        assert torch.equal(product(x[:rows]), together[:rows])
        assert torch.equal(product(x[-rows:].clone()), together[-rows:])


def test_small_numbers_in_bfloat16_are_nothing(instructions: str) -> None:
    """Below 2^-126, as the tiles of AMX have it; a thread that computes in fp32 afterwards keeps them."""
    least = 2.0**-126
    weight = torch.tensor([[least / 2, 0.0], [least, 0.0], [0.5 * least, 1.0], [2**-70, 1.0]])
    x = torch.tensor([[1.0, 0.0], [0.5, 0.0], [2**-70, 0.0], [least / 4, 1.0]])
    found = Product(weight, None, bf16=True)(x)
    expected = torch.zeros(4, 4)
    expected[0, 1], expected[0, 3], expected[1, 3] = least, 2**-70, 2**-71
    expected[3, 2:] = 1.0
    assert torch.equal(found, expected)
    one = torch.tensor([[least / 4]])
    assert torch.equal(Product(torch.eye(1), None)(one), one)


KINDS = pytest.mark.parametrize("kind", [{}, {"int8": True}, {"bf16": True}], ids=str)


@KINDS
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_no_number_is_made_of_what_is_none(
    instructions: str, number: float, kind: dict[str, bool]
) -> None:
    """In each of 40 places, of more inputs than one vector holds and of fewer."""
    for inputs in (3, 40):
        weight, x = torch.randn(70, inputs), torch.randn(inputs, inputs).fill_diagonal_(number)
        assert not Product(weight, None, **kind)(x).isfinite().any()
        with_relu = Product(weight, None, True, **kind)(x)
        assert with_relu.isnan().all() or number == torch.inf  # ReLU keeps NaN, and makes 0 of -inf


@KINDS
def test_threads_change_nothing(instructions: str, kind: dict[str, bool]) -> None:
    product = Product(torch.randn(1100, 512), torch.randn(1100), **kind)
    x = torch.randn(20, 512)
    expected, threads = product(x), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(product(x), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("size", [1, 5, 16, 40, 64, 257])
def test_norm(instructions: str, size: int) -> None:
    x, weight, bias = torch.randn(4, size) * 3 + 1, torch.randn(size), torch.randn(size)
    found = torch.empty_like(x)
    norm = library.NormStruct(weight.data_ptr(), bias.data_ptr(), 1e-5)
    kernels().aggdec_norm(library.ctypes.byref(norm), x.data_ptr(), 4, size, found.data_ptr())
    torch.testing.assert_close(found, F.layer_norm(x, (size,), weight, bias), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("number", range(len(COMPILED)))
def test_activations(instructions: str, number: int) -> None:
    """Against PyTorch from small numbers to large ones; bit for bit wherever in a row a number stands."""
    activation = COMPILED[number]
    x = torch.cat(
        [torch.linspace(-12, 12, 4801), torch.randn(200) * 1e-4, torch.tensor(torch.nan)[None]]
    )
    whole, one = x.clone(), x.clone()
    kernels().aggdec_activate(number, whole.data_ptr(), len(x), 1)
    expected = x if activation is None else activation(x.clone())
    torch.testing.assert_close(whole, expected, atol=1e-6, rtol=1e-5, equal_nan=True)
    for i in range(len(x)):
        kernels().aggdec_activate(number, one[i:].data_ptr(), 1, 1)
    assert torch.equal(one.nan_to_num(), whole.nan_to_num())


def test_every_activation_is_compiled(instructions: str) -> None:
    for options in ACTIVATED.values():
        model = make_model(make_task(), 1, **options)
        for int8 in (True, False) if fast_kernels() else (True,):
            assert CachedDecoder(model.decoder, Precision(int8=int8)).compiled is not None
            assert FastEncoder(model.encoder, Precision(int8=int8)).compiled is not None
    other = make_model(make_task(), 1)
    other.decoder.layers[0].activation_fn = F.gelu
    assert CachedDecoder(other.decoder, Precision(int8=True)).compiled is None


def test_the_first_of_the_largest(instructions: str) -> None:
    for size in (1, 3, 16, 37, 320):
        x = torch.randint(-4, 4, (50, size)).float()
        x[x == -4] = -torch.inf
        x[7] = -torch.inf
        x[8:20][torch.rand(12, size) < 0.1] = torch.nan
        x[20:30][torch.rand(10, size) < 0.1] = torch.inf
        assert torch.equal(first_largest(x), x.max(-1).indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_of_other_types_and_views(dtype: torch.dtype) -> None:
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).to(dtype)
    turned = torch.randn(30, 3, generator=torch.Generator().manual_seed(2)).to(dtype).t()
    for rows in (x, x[:, 5:42], turned):
        assert torch.equal(first_largest(rows), rows.max(-1).indices)


@pytest.mark.parametrize("size", [5, 16, 37, 320, 1000])
@pytest.mark.parametrize("count", [1, 4, 6, 15, 16, 40])
def test_best_tokens(instructions: str, size: int, count: int) -> None:
    """Against the operators; numbers that are equal, -inf, NaN, padding that would be the best."""
    count = min(count, size)
    for levels in (0.5, 1000.0):
        logits = (torch.randn(30, size) * levels).round() * (8 / levels)
        logits[:, PAD] = 99.0
        logits[1, 3:] = -torch.inf
        logits[2, -1] = torch.nan
        logits[3, 2] = torch.inf
        wanted = torch.randint(size, (30,))
        wanted[4] = PAD
        found = best_tokens(logits, count, wanted, PAD, 3)
        expected = best_tokens(logits, count, wanted, PAD, 3, tables=by_operators)
        well = [n for n in range(30) if n not in (2, 3)]
        for part in (slice(count), slice(-1, None)):
            torch.testing.assert_close(
                found[well, part], expected[well, part], atol=2e-5, rtol=1e-5
            )
        assert found[:, 0].isnan().nonzero().flatten().tolist() == [2, 3]
        tokens = found[4:, count:-1].long()
        own = logits[4:].gather(1, tokens).masked_fill(tokens == PAD, -torch.inf)
        torch.testing.assert_close(
            own, logits[4:].index_fill(1, torch.tensor(PAD), -torch.inf).topk(count).values
        )
        masked = logits[4:].index_fill(1, torch.tensor(PAD), -torch.inf)
        in_order = masked.sort(dim=1, descending=True, stable=True).indices[:, :count]
        assert torch.equal(tokens, in_order)  # of equal ones the first comes first


@pytest.fixture
def _fresh() -> Iterator[None]:
    kernels.cache_clear()
    yield
    kernels.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_without_a_library_there_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says so, and what to do."""
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert kernels() is None and kernels() is None
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("the compiled kernels are missing") and "build_ext --inplace" in said


@needs_kernels
@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("installed", ["of these sources", "of other sources", "nowhere"])
def test_a_checkout_uses_the_kernels_of_the_installed_package(
    installed: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python that is started in a checkout imports its package, which has no libraries after ``pip install .``."""
    own, other = tmp_path / "checkout" / "kernels", tmp_path / "site-packages"
    own.mkdir(parents=True)
    shutil.copytree(SOURCE, own / "source")
    folder = other / "fairseq_aggdec" / "kernels"
    folder.mkdir(parents=True)
    if installed != "nowhere":
        for path in library.FOLDER.glob("_*.so"):
            shutil.copy(path, folder)
    if installed == "of other sources":
        with (own / "source" / "vector.h").open("a") as file:
            file.write("// other\n")
    monkeypatch.setattr(library, "__file__", str(own / "library.py"))
    monkeypatch.setattr(library, "SOURCES", own / "source")
    monkeypatch.setattr(library, "FOLDER", own)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(other)])
    assert (kernels() is not None) == (installed == "of these sources")
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [one[:32] for one in said] == ([] if kernels() is not None else [library.MISSING[:32]])


@needs_kernels
@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("name", ["none", "no-cpu"])
def test_none_where_none_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, name)
    assert kernels() is None
    assert not caplog.records


def test_a_structure_is_the_headers() -> None:
    fields = [name for name, _ in library.structure("structs.h", "Product")._fields_]
    assert fields == ["inputs", "outputs", "weight", "bias", "scales", "sums", "relu", "bf16"]
    norm = library.structure("structs.h", "Norm")
    assert [kind for _, kind in norm._fields_] == [*[ctypes.c_void_p] * 2, ctypes.c_double]
    shape = dict(library.structure("structs.h", "Shape", Norm=norm)._fields_)
    assert shape["first_norm"] is shape["end_norm"] is norm


def test_activations_are_the_headers() -> None:
    text = (SOURCE / "activations.h").read_text()
    names = re.search(r"enum Activation \{(.*?), ACTIVATIONS \}", text)
    assert names and len(names[1].split(",")) == len(COMPILED)


@needs_kernels
@pytest.mark.usefixtures("_fresh")
def test_a_library_of_other_sources_is_not_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One word of a comment is enough."""
    copy = tmp_path / "source"
    shutil.copytree(SOURCE, copy)
    monkeypatch.setattr(library, "SOURCES", copy)
    assert kernels() is not None
    with (copy / "vector.h").open("a") as file:
        file.write("// other\n")
    kernels.cache_clear()
    assert kernels() is None
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "was compiled from other sources" in said and "build_ext --inplace" in said


@needs_kernels
@pytest.mark.usefixtures("_fresh")
def test_a_library_that_errs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "linear", lambda x, weight, bias: x @ weight.t())
    assert kernels() is None


def test_a_broken_file_is_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    suffix = library.importlib.machinery.EXTENSION_SUFFIXES[0]
    (tmp_path / f"_plain{suffix}").write_bytes(b"not a library")
    assert library._open("plain") is None


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What building the kernels reads."""
    package = ROOT / "fairseq_aggdec"
    for path in (ROOT / "setup.py", package / "version.py", *SOURCE.rglob("*.[ch]*")):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return tmp_path


def build_without_compiler(checkout: Path) -> str:
    """What the build says; it goes to lib/ first."""
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace", "--build-lib", "lib"],
        cwd=checkout,
        env={"CC": "no-such-compiler", "CXX": "no-such-compiler", "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_missing_compiler_does_not_fail_the_build(checkout: Path) -> None:
    build_without_compiler(checkout)
    assert not list((checkout / "fairseq_aggdec" / "kernels").glob("*.so"))


def test_what_is_of_other_sources_is_compiled_again(checkout: Path) -> None:
    """However new it is: unpacked sources may be older than a library that was not compiled from them."""
    stamp, folder = library.digest(), checkout / "lib" / "fairseq_aggdec" / "kernels"
    folder.mkdir(parents=True)
    for content, compiled_again in ((stamp, False), ("another", True)):
        (folder / "_plain.so").write_text(f"a library with the stamp {content}")
        said = build_without_compiler(checkout)
        assert ("building 'fairseq_aggdec.kernels._plain'" in said) == compiled_again
