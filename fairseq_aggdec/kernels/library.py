"""Finding, probing and calling the compiled library; the structures of ``source/`` as ctypes spells them.

The letters are those of ``source/kernels.cpp``.
"""

import ctypes
import functools
import hashlib
import importlib.machinery
import itertools
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.kernels.huge_pages import use_huge_pages
from fairseq_aggdec.kernels.layout import PANEL, Layout
from fairseq_aggdec.kernels.switches import CPU, INSTRUCTIONS, switches

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent  # of the libraries; tests take them from another
AT_ONCE = 512  # outputs whose weights are laid out together, a multiple of PANEL
LEVELS = 127  # largest weight in 8 bits
WORD = 8  # bytes of a whole number of the structures

REPAIR = (
    "run `python setup.py build_ext --inplace` in a checkout, or install the package again with pip"
)
MISSING = (
    "the compiled kernels are missing, so that decoding on a CPU is slower: where there is a C++ compiler, "
    + REPAIR
)
STALE = f"{{}} was compiled from other sources than this version's and is not used, which is slower: {REPAIR}"

NO_MEMORY = (
    "there is too little memory for this batch: take smaller ones (--batch-size, --max-tokens)"
)
MISFIT = -2  # what the library gives for arguments that do not fit, as threads.h has it
# Functions that need memory, and say whether they had it.
ALLOCATING = frozenset(
    f"aggdec_{name}"
    for name in (
        *("average", "multiply", "tables", "grow", "heads", "decode", "encode"),
        *("read_source", "check_product", "check_layers"),
    )
)

_int, _pointer = ctypes.c_int64, ctypes.c_void_p


SOURCES = Path(__file__).parent / "source"
KINDS = {"int64_t": _int, "double": ctypes.c_double}
POINTERS: dict[str, Any] = {"uint8_t": ctypes.c_char_p}
OF_NUMBERS: dict[str, Any] = {
    **{kind: ctypes.POINTER(_int) for kind in ("int64_t", "Change", "Pair", "Move")},
    "double": ctypes.POINTER(ctypes.c_double),
    "float": ctypes.POINTER(ctypes.c_float),
}


def structure(header: str, name: str, read: bool = False, **inner: Any) -> Any:
    """A structure of a C++ header as a class of ctypes: its fields are the header's, in their order.

    Args:
        header: in ``source/``.
        read: Python reads the numbers that its fields point to: ``found.tokens[:count]``; else these are addresses.
        inner: the classes of structures in it, by their names there.
    """
    text = re.sub(r"//.*", "", (SOURCES / header).read_text(encoding="utf-8"))
    body = re.search(rf"struct {name} \{{(.*?)\}};", text, re.DOTALL)
    assert body is not None, name
    fields = []
    for kind, declared in re.findall(r"(?:const )?(\w+)([^;]*);", body[1]):
        for one in declared.split(","):
            pointers = OF_NUMBERS if read else POINTERS
            of_kind = pointers.get(kind, _pointer) if "*" in one else (KINDS | inner)[kind]
            field, *lengths = re.findall(r"\w+(?=\[|\]|$)", one)
            for length in lengths:
                of_kind *= int(length)
            fields.append((field, of_kind))
    return type(f"{name}Struct", (ctypes.Structure,), {"_fields_": fields})


def constants(header: str) -> dict[str, float]:
    """The numbers that a C++ header in ``source/`` declares as ``constexpr double``, by their names."""
    text = (SOURCES / header).read_text(encoding="utf-8")
    pairs = re.findall(r"^constexpr double (\w+) = ([\d.]+);", text, re.MULTILINE)
    return {name: float(value) for name, value in pairs}


ProductStruct = structure("structs.h", "Product")
NormStruct = structure("structs.h", "Norm")
LayerStruct = structure("structs.h", "Layer", Norm=NormStruct, Product=ProductStruct)
ShapeStruct = structure("structs.h", "Shape", Norm=NormStruct)
StepStruct = structure("structs.h", "Step")
SourceStruct = structure("structs.h", "Source")
AcceptanceStruct = structure("structs.h", "Acceptance")
TableStruct = structure("structs.h", "TableCall")
HeadsStruct = structure("structs.h", "Heads", Product=ProductStruct)
ProposerStruct = structure("structs.h", "Proposer", Product=ProductStruct)
SlotsStruct = structure("structs.h", "Slots")


def digest() -> str:
    """Digest of the sources in ``source/``, with which ``setup.py`` stamps what it compiles."""
    whole = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.[ch]*")):
        whole.update(path.name.encode() + path.read_bytes())
    return whole.hexdigest()


def _stale(library: Any) -> bool:
    """Tells whether a library was compiled from other sources than those in ``source/``."""
    stamp = getattr(library, "aggdec_digest", None)
    if stamp is None:
        return True
    stamp.restype = ctypes.c_char_p
    return bool(stamp().decode() != digest())


def _places() -> Iterator[Path]:
    """Folders with libraries of these sources: the package's own, then copies of the package that are installed.

    Python started in a checkout imports the checkout's package, which hides an installed one with its libraries.
    """
    here = Path(__file__).parent
    yield FOLDER
    if here != FOLDER:
        return
    for entry in sys.path:
        folder = Path(entry, *__name__.split(".")[:-1]).resolve()
        if folder != here.resolve() and folder.is_dir():
            yield folder


def _current(path: Path) -> bool:
    """Tells whether an installed library carries the digest of the sources in ``source/``; read without loading it."""
    return digest().encode() in path.read_bytes()


def _open(name: str) -> Any:
    """The library compiled for these instructions, None where there is none that fits."""
    problem = None if name != "plain" else MISSING
    for folder, suffix in itertools.product(_places(), importlib.machinery.EXTENSION_SUFFIXES):
        path = folder / f"_{name}{suffix}"
        try:
            if not path.is_file() or (folder != FOLDER and not _current(path)):
                continue
            library: Any = ctypes.CDLL(str(path))
            if _stale(library) or INSTRUCTIONS[library.aggdec_instructions()] != name:
                problem = STALE.format(path)
                continue
            for function in (library.aggdec_strip, library.aggdec_depth, library.aggdec_apart):
                function.restype = _int
            _declare(library)
        except (OSError, AttributeError) as error:
            problem = f"{path} does not load: {error}"
            continue
        return library
    if problem is not None:
        logger.warning("%s", problem)
    return None


def checked(result: int | None, function: Any, arguments: Any) -> int | None:
    """Checks what a function of the library gave, as ctypes hands it to an ``errcheck``.

    Raises:
        ValueError: sizes of its arguments do not fit each other; nothing was read or written.
        MemoryError: it gave another negative number or no address.
    """
    if result == MISFIT:
        raise ValueError(f"{function.__name__}: the sizes of its arguments do not fit each other")
    if result is None or result < 0:
        raise MemoryError(NO_MEMORY)
    return result


def _declare(library: Any) -> None:
    arguments = {
        "aggdec_check_product": (_pointer, *[_int] * 4),
        "aggdec_check_layers": (_pointer, _pointer),
        "aggdec_multiply": (_pointer, _pointer, _int, _pointer, _int, _int),
        "aggdec_activate": (_int, _pointer, _int, _int),
        "aggdec_average": (_pointer, *[_int] * 4),
        "aggdec_largest": (_pointer, _int, _int, _pointer),
        "aggdec_tables": (_pointer,),
        "aggdec_grow": (_pointer, _pointer),
        "aggdec_heads": (*[_pointer] * 3, _int, _int, _pointer, _int),
        "aggdec_move": (_pointer, *[_int] * 4, _pointer, _int),
        "aggdec_norm": (_pointer, _pointer, _int, _int, _pointer),
        "aggdec_decode": (_pointer, _pointer, _pointer, _pointer),
        "aggdec_encode": (_pointer,) * 3,
        "aggdec_read_source": (*[_pointer] * 3, _int, _int, _pointer, _int, _int),
    }
    for name, types in arguments.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
        if name in ALLOCATING:
            function.restype, function.errcheck = _int, checked
    library.aggdec_same.argtypes, library.aggdec_same.restype = (_pointer, _pointer, _int), _int
    library.aggdec_checksum.argtypes, library.aggdec_checksum.restype = (_pointer, _int), _int


@functools.cache
def kernels() -> Any:
    """The compiled library for the best instructions of this processor, None where there is none or it errs.

    A missing library is said once, as a warning, unless the environment asks for none.

    Raises:
        ValueError: the environment asks for what there is not.
    """
    best, off, _ = switches()
    plain = None if CPU in off else _open("plain")
    if plain is None:
        return None
    allowed = INSTRUCTIONS[: INSTRUCTIONS.index(best) + 1]
    for name in reversed([name for name in supported(plain) if name in allowed]):
        library = plain if name == "plain" else _open(name)
        if library is not None and _right(library, plain):
            library.in_bf16 = _agree(library, plain, bf16=True)
            return library
    return None


def multiplies_bf16() -> bool:
    """Tells whether :func:`kernels` has products in bfloat16 that are faster than PyTorch's."""
    library = kernels()
    return library is not None and library.aggdec_instructions() > 0 and library.in_bf16


def supported(plain: Any) -> list[str]:
    """Members of :data:`INSTRUCTIONS` that this processor has, the fastest last; asked of the plain library."""
    bits = plain.aggdec_supported()
    return [name for number, name in enumerate(INSTRUCTIONS) if bits >> number & 1]


def reads(x: Tensor) -> bool:
    """Tells whether the compiled library can read a tensor as it lies: fp32 on CPU, row after row."""
    return x.dtype is torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def _right(library: Any, plain: Any) -> bool:
    """Tells whether the library multiplies as PyTorch does, and in 8 bits bit for bit as the plain library.

    Few rows and many take other instructions in some libraries, and so do inputs that fill no register.
    """
    x, weight, bias = _sample()
    expected = F.linear(x, weight, bias)
    in_fp32 = Product(weight, bias, library=library)(x)
    plainly = Product(weight, bias, int8=True, library=plain)
    if (
        torch.allclose(in_fp32, expected, atol=1e-4)
        and torch.allclose(plainly(x), expected, atol=0.5)
        and _agree(library, plain, int8=True)
    ):
        return True
    logger.warning("the compiled kernels compute something else than PyTorch: not used")
    return False


def _agree(library: Any, plain: Any, **kind: bool) -> bool:
    """Tells whether two libraries give the same bits in 8 bits or in bfloat16."""
    x, weight, bias = _sample()
    ours, expected = (Product(weight, bias, library=of, **kind) for of in (library, plain))
    return all(torch.equal(ours(x[:rows]), expected(x[:rows])) for rows in (3, 19))


def _sample() -> list[Tensor]:
    """Inputs, a weight and a bias that libraries are tried with."""
    chance = torch.Generator().manual_seed(1)  # what is sampled later does not depend on the probe
    shapes = (19, 150), (70, 150), (70,)
    return [torch.randn(shape, generator=chance, dtype=torch.float32) for shape in shapes]


def in_levels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight (O, K) in 8 bits, int8 of the same shape, and the scale of each output, (O,) fp32.

    An output with a weight that is NaN or infinite has the scale NaN and no weights: whatever it reads, it is NaN.
    """
    weight = weight.float()
    scales = (weight.abs().amax(1) * (1 / LEVELS)).clamp_(min=1e-12)
    scales += scales - scales  # 0, or NaN where the scale is infinite
    levels = (weight / scales.unsqueeze(1)).round_().nan_to_num_().clamp_(-LEVELS, LEVELS)
    return levels.to(torch.int8), scales


class Product:
    """``activation(x W^T + b)`` in the compiled library: x (N, K) fp32 on CPU -> (N, O).

    Args:
        weight: (O, K) fp32; a copy is laid out.
        bias: (O,) or None, kept.
        relu: apply ReLU.
        int8: weights in 8 bits with a scale per output, x with a scale and a zero point per row.
        bf16: weights and x are rounded to bfloat16, sums are fp32.
        library: in place of :func:`kernels`.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        relu: bool = False,
        int8: bool = False,
        bf16: bool = False,
        library: Any = None,
    ):
        self.outputs, self.inputs = weight.shape
        self.library = library or kernels()
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self.scales: Tensor | None = None
        self.sums: Tensor | None = None
        layout = Layout.of(self.library)
        padded = -(-self.outputs // PANEL) * PANEL
        if int8:
            self.scales = torch.zeros(padded, dtype=torch.float32, device="cpu")
            self.sums = torch.zeros(padded, dtype=torch.int32, device="cpu")
        self.weight = torch.empty(0, device="cpu")
        for begin in range(0, self.outputs, AT_ONCE):
            part = weight.detach()[begin : begin + AT_ONCE]
            end = begin + len(part)
            if self.scales is not None and self.sums is not None:
                part, self.scales[begin:end] = in_levels(part)
                self.sums[begin:end] = part.sum(1, dtype=torch.int32)
            strips = layout.laid_out(part, int8, bf16)
            if not begin:
                self.weight = strips.new_empty(padded // layout.strip, *strips.shape[1:])
            first = begin // layout.strip
            self.weight[first : first + len(strips)] = strips
        use_huge_pages(self.weight.data_ptr(), self.weight.nbytes)
        self._point(relu, bf16)

    @classmethod
    def of_parts(
        cls, inputs: int, outputs: int, relu: bool, bf16: bool, **parts: Tensor | None
    ) -> "Product":
        """A product whose parts are laid out for :func:`kernels` already, as another one has them.

        Raises:
            ValueError: a part has another number of bytes than such a product.
        """
        self = cls.__new__(cls)
        self.inputs, self.outputs, self.library = inputs, outputs, kernels()
        vars(self).update(parts)
        self._point(relu, bf16)
        return self

    def _point(self, relu: bool, bf16: bool) -> None:
        parts = (self.weight, self.bias, self.scales, self.sums)
        addresses = [None if part is None else part.data_ptr() for part in parts]
        self.struct = ProductStruct(self.inputs, self.outputs, *addresses, relu, bf16)
        self.address = ctypes.addressof(self.struct)
        sizes = [0 if part is None else part.nbytes for part in parts]
        self.library.aggdec_check_product(self.address, *sizes)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.float().contiguous()
        y = x.new_empty(*x.shape[:-1], self.outputs)
        self.library.aggdec_multiply(
            *(self.address, x.data_ptr(), x.numel(), y.data_ptr(), y.numel()),
            torch.get_num_threads(),
        )
        return y
