"""Arguments of a kernel. It asks for no shapes: an address that it cannot read would not only fail, the process could
not use the GPU any more. So a launch is refused first."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# What the source calls the precision of numbers.
PRECISIONS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
LARGEST = 2**31 - 1  # number: kernels count with 32 bits
WORD = 16  # bytes that some kernels read at once
MOST_KNOWN = 512  # launches of a kernel that are remembered
# Tensors in the precision that a launch names.
NUMBERS = {
    *(
        "logits",
        "weight",
        "table",
        "slot",
        "queries",
        "memory",
        "mask",
        "out",
        "heard",
        "slots",
        "chained",
        "embedded",
    ),
    *("features", "written", "bias", "kept", "x", "gain", "shift", "residual", "y"),
}
HALF_WORDS = "seen", "hidden", "counts"  # structs of words of 4 bytes; other whole numbers have 8
# Tensors of which a kernel reads whole words at once, and those whose steps between rows are parameters.
_ATTENTION = {"queries", "kept"}
AT_ONCE = {
    "embedding": {"queries", "memory"},
    "follow": {"features", "written", "weight"},
    **{name: {"visibility"} for name in ("beam_step", "best_step")},
    "attend": _ATTENTION,
    "attend_slots": _ATTENTION,
    "cross_attend": {"x", "weight", "gain", "shift", "memory", "kept"},
    "logits": {"x", "weight", "gain", "shift", "kept"},
    "product": {"x", "weight", "gain", "shift", "kept"},
    "layer_norm": {"x", "gain", "shift", "y"},
}
STEPPED = {
    "embedding": {"at", "memory", "mask"},
    "attend": _ATTENTION | {"mask"},
    "attend_slots": _ATTENTION | {"mask"},
    "cross_attend": {"memory", "mask"},
    "sources": {"mask"},
    **{name: {"scores"} for name in ("ban", "look", "verify")},
}


# What a launch reads and writes: numbers of a tensor, as products of parameters and of whole numbers. What is missing
# follows from addresses and steps.
_ROWS = {"owners": "blocks"}
_BOARD = {
    **dict.fromkeys(("places", "last", "sums"), "blocks * width"),
    **dict.fromkeys(("depths", "rounds", "count", "flags"), "blocks"),
    "logits": "blocks * width * types",
    "exponentials": "blocks * width * parts * 2",
    "ends": "blocks * width",
}
SIZES: dict[str, dict[str, str]] = {
    "begin": _ROWS
    | {"window_tokens": "blocks * width", "outputs": "blocks * width", "length": "blocks"},
    "slots": _ROWS
    | dict.fromkeys(("window_tokens", "places", "seen", "masked"), "blocks * columns")
    | {"picked": "blocks * size", "last": "blocks"},
    "embedding": {
        "tokens": "blocks",
        "masked": "blocks",
        "slot": "channels",
        "out": "blocks * channels",
    },
    "sources": {
        **dict.fromkeys(("tokens", "mask", "hidden"), "blocks"),
        **dict.fromkeys(("embedded", "x"), "blocks * channels"),
    },
    "hear": {"best": "blocks", "chained": "blocks * channels"},
    "follow": {
        "last": "blocks",
        "block": "blocks * size",
        "best": "blocks * size * most",
        "features": "blocks * size * channels",
        "written": "blocks * size * most * channels",
    },
    "copy_block": _ROWS | {"block": "blocks * size"},
    "ban": {"logits": "blocks * types", "window_tokens": "blocks", "outputs": "blocks"},
    "look": {"seen": "blocks * 5"},
    "verify": _ROWS
    | dict.fromkeys(("window_tokens", "outputs"), "blocks * width")
    | {"logits": "blocks * width * types", "seen": "blocks * width * parts * 5", "flags": "blocks"},
    "largest": {"logits": "blocks * types", "tokens": "blocks"},
    "leaders": {"sums": "blocks * 2", "keys": "blocks * kept"},
    "best": {
        "logits": "blocks * types",
        "sums": "blocks * parts * 2",
        "ends": "blocks",
        "keys": "blocks * parts * kept",
        "values": "blocks * kept",
        "tokens": "blocks * kept",
    },
    "beam_step": _BOARD,
    "best_step": _BOARD,
    "attend": {"out": "blocks * size"},
    "attend_slots": {"out": "blocks * size"},
    "cross_attend": {
        **dict.fromkeys(("x", "kept", "out"), "slots * heads * size"),
        "weight": "heads * size * heads * size",
        "gain": "heads * size",
        "shift": "heads * size",
        "bias": "heads * size",
    },
    "logits": {
        "x": "slots * channels",
        "kept": "slots * channels",
        "y": "slots * types",
        "weight": "types * channels",
        "bias": "types",
        "seen": "slots * parts * 5",
        "gain": "channels",
        "shift": "channels",
    },
    "product": {
        "x": "rows * inputs",
        "kept": "rows * inputs",
        "weight": "outputs * inputs",
        "residual": "rows * outputs",
        "y": "rows * outputs",
        "bias": "outputs",
        "gain": "inputs",
        "shift": "inputs",
    },
    "layer_norm": {
        "x": "blocks * channels",
        "y": "blocks * channels",
        "gain": "channels",
        "shift": "channels",
    },
}


def aligned(x: Tensor) -> bool:
    """Tells whether the numbers of each row are side by side in whole words of 16 bytes, which all rows begin with."""
    if x.is_contiguous() and x.size(-1) * x.element_size() % WORD == 0:  # the usual case
        return x.data_ptr() % WORD == 0
    *rows, last = zip(x.shape, x.stride(), strict=True)
    steps = [last[0], *(step for size, step in rows if size > 1)]
    words = x.data_ptr() % WORD == 0 and not any(step * x.element_size() % WORD for step in steps)
    return words and last[1] == 1


class Signature:
    """The parameters of a kernel.

    Args:
        name: of the kernel.
        schema: of its operator.

    Attributes:
        parameters: their names, and whether the kernel writes there.
        known: what of arguments decides whether a kernel can read them -> places of those that are copied first. So
            arguments like those of an earlier launch are not checked again.
    """

    def __init__(self, name: str, schema: str):
        parameters = re.findall(r"(Tensor|int|float)(\(\w!\))?\?? (\w+)[,)]", schema)
        self.name, kinds = name, [kind for kind, _, _ in parameters]
        self.parameters = [(word, bool(written)) for _, written, word in parameters]
        words = [word for word, _ in self.parameters]
        self.precision = words.index("precision") if "precision" in words else None
        self.at_once, self.stepped = AT_ONCE.get(name, set()), STEPPED.get(name, set())
        self.numbers = {"logits"} if "logits" in words else NUMBERS
        self.tensors = [place for place, kind in enumerate(kinds) if kind == "Tensor"]
        self.integers = [place for place, kind in enumerate(kinds) if kind == "int"]
        self.sizes = {word: size.split(" * ") for word, size in SIZES.get(name, {}).items()}
        self.struct = struct.Struct("=" + "".join("d" if x == "float" else "q" for x in kinds))
        self.known = dict[tuple[Any, ...], tuple[int, ...]]()

    def read(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments as the kernel reads them; what it only reads is copied where it lies in another way.

        Raises:
            RuntimeError: the kernel cannot read them.
        """
        values = list(arguments)
        key = self._key(values)
        copied = self.known.get(key)
        if copied is None:
            copied = self._copied(values)
            if len(self.known) == MOST_KNOWN:
                self.known.clear()
            self.known[key] = copied
        for place in copied:
            values[place] = _contiguous(values[place])
        return values

    def words(self, values: Sequence[Any]) -> bytes:
        """The struct of the parameters that were read: words of 8 bytes, a tensor as its address, ``None`` as 0."""
        flat = list(values)
        for place in self.tensors:
            value = flat[place]
            flat[place] = 0 if value is None else value.data_ptr()
        return self.struct.pack(*flat)

    def _key(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """All that :meth:`_copied` asks of arguments."""
        key = [values[place] for place in self.integers]
        for place in self.tensors:
            x = values[place]
            key.append(
                x is not None and (x.dtype, x.device, x.shape, x.stride(), x.data_ptr() % WORD)
            )
        return tuple(key)

    def _copied(self, values: Sequence[Any]) -> tuple[int, ...]:
        """Places of what is copied before the kernel reads it.

        Raises:
            RuntimeError: the kernel cannot read it all the same.
        """
        devices = {values[place].device for place in self.tensors if values[place] is not None}
        copied, known = list[int](), len(devices) == 1
        for place, (word, written) in enumerate(self.parameters):
            value = values[place]
            if isinstance(value, Tensor):
                if not (written or word in self.stepped or self._reads(word, value)):
                    copied.append(place)
                    value = _contiguous(value)
                known = known and self._reads(word, value) and self._knows(word, value, values)
            elif isinstance(value, int):
                known = known and -LARGEST <= value <= LARGEST
            if not known:
                raise RuntimeError(f"the kernel {self.name} cannot read {word} as it is given")
        self._check_sizes(values)
        return tuple(copied)

    def _check_sizes(self, values: Sequence[Any]) -> None:
        """Compares the sizes of a launch with its tensors.

        Raises:
            RuntimeError: the kernel would read or write behind one.
        """
        by_name = {word: values[place] for place, (word, _) in enumerate(self.parameters)}
        for word, size in self.sizes.items():
            wanted = math.prod(int(one) if one.isdigit() else by_name[one] for one in size)
            if by_name[word] is not None and by_name[word].numel() < wanted:
                raise RuntimeError(
                    f"the kernel {self.name} would go behind {word}, which has {by_name[word].numel()} numbers: the "
                    f"launch is for {wanted}"
                )

    def _reads(self, word: str, x: Tensor) -> bool:
        if word in self.stepped:
            side_by_side = word != "mask" or x.stride(-1) == 1 or x.size(-1) == 1
        else:
            side_by_side = x.is_contiguous()
        return side_by_side and (word not in self.at_once or aligned(x))

    def _knows(self, word: str, x: Tensor, values: Sequence[Any]) -> bool:
        if self.precision is not None and word in self.numbers:
            return PRECISIONS.get(x.dtype) == values[self.precision]
        return x.dtype is not torch.int32 or word in HALF_WORDS


def _contiguous(x: Tensor) -> Tensor:
    """A copy, contiguous also where ``x`` is not."""
    return x.clone(memory_format=torch.contiguous_format)
