"""Random checkpoints for weights-only loading, in a process that may end: python -m tests.fuzz.pickles SEED SECONDS

A stream makes and fills every thing that :func:`fairseq_aggdec.stored.data.safe_globals` lists, as training writes it
and with anything in any place: other values, things made before, functions of PyTorch's own list around it, states set
twice. What comes out is used as the package and fairseq use it. Prints the number of streams and of those that loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import itertools
import random
import resource
import struct
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy
import torch
from fairseq.dataclass import FairseqDataclass
from omegaconf import DictConfig
from torch import _weights_only_unpickler as loader

from fairseq_aggdec.cli.upgrade_checkpoint import plain
from fairseq_aggdec.stored import loading
from fairseq_aggdec.stored.data import Forgotten, NumberType, StoredArray, safe_globals
from fairseq_aggdec.stored.options import check_options

NAMES = sorted(name for _, name in safe_globals())
TORCH = (
    *("collections.OrderedDict", "collections.Counter", "builtins.set", "builtins.bytearray"),
    *("torch.Size", "torch.Tensor", "torch.nn.parameter.Parameter", "torch.float32"),
    *(f"torch._utils._rebuild_{name}" for name in ("tensor_v2", "device_tensor_from_numpy")),
    *("torch._utils._rebuild_parameter_with_state", "torch._tensor._rebuild_from_type_v2"),
)
NUMBERS = (0, 1, 2, 3, 8, 16, -1, 255, 2**31 - 1, 2**63 - 1, -(2**63), 10**30)
TEXTS = ("", "a", "_content", "_val", "__class__", "__dict__", "__setstate__", "data", "shape")
TEXTS += ("O", "f8", "V9", "i4,O", "<", "|", "${a}", "${oc.env:HOME}", "???", "cpu", "__array__")
# What loading may make, beside the things of the list themselves.
PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None), list, tuple, dict, set)
PLAIN += (OrderedDict, Counter, argparse.Namespace, numpy.number, numpy.bool_, NumberType)
PLAIN += (StoredArray, Forgotten, torch.Tensor, torch.UntypedStorage, torch.dtype, torch.layout)
PLAIN += (torch.device, FairseqDataclass, torch.TypedStorage)


class Stream:
    """One pickle in the operations that the loader knows; every method but the first two pushes one value."""

    def __init__(self, seed: int):
        self.chance, self.kept, self.depth = random.Random(seed), 0, 0
        self.code = bytearray(b"\x80\x02")

    def whole(self) -> bytes:
        for _ in range(self.chance.randint(1, 4)):
            self.made()
        return bytes(self.code) + b"."

    def put(self, *codes: bytes) -> None:
        self.code += b"".join(codes)

    # -- values

    def named(self, name: str) -> None:
        module, _, last = name.rpartition(".")
        self.put(f"c{module}\n{last}\n".encode())

    def text(self, text: str) -> None:
        code = text.encode()
        self.put(b"X", struct.pack("<I", len(code)), code)

    def number(self, number: int) -> None:
        size = number.bit_length() // 8 + 1
        self.put(b"\x8a", bytes([size]), number.to_bytes(size, "little", signed=True))

    def data(self, count: int) -> None:
        self.named("_codecs.encode")
        self.text("".join(self.chance.choice("\0\1\x7f") for _ in range(count)))
        self.text("latin1")
        self.put(b"\x86R")

    def value(self, value: Any) -> None:
        """A value of Python's; a function pushes its own. Now and then something else stands there."""
        if self.chance.random() < 0.04:
            self.anything()
        elif callable(value):
            value()
        elif isinstance(value, tuple | list):
            self.put(b"(" if isinstance(value, tuple) else b"](")
            for one in value:
                self.value(one)
            self.put(b"t" if isinstance(value, tuple) else b"e")
        elif isinstance(value, dict):
            self.put(b"}(")
            for key, one in value.items():
                self.value(key)
                self.value(one)
            self.put(b"u")
        elif isinstance(value, str):
            self.text(value)
        elif isinstance(value, bool) or value is None:
            self.put({None: b"N", True: b"\x88", False: b"\x89"}[value])
        else:
            self.number(value)

    def anything(self) -> None:
        chance, kind = self.chance, self.chance.randrange(7)
        if kind == 0 and self.kept:
            self.put(b"h", bytes([chance.randrange(self.kept)]))
        elif kind == 1:
            self.named(chance.choice((*NAMES, *TORCH)))
        elif kind == 2:
            self.data(chance.choice((0, 1, 8, 9, 4096)))
        elif kind == 3:
            self.value(chance.choice(NUMBERS))
        elif kind == 4:
            self.tensor()
        elif kind == 5 and self.depth < 4:
            self.made()
        else:
            self.text(chance.choice(TEXTS))

    def tensor(self) -> None:
        self.named("torch._utils._rebuild_tensor_v2")
        self.put(b"(")
        self.value(("storage", lambda: self.named("torch.FloatStorage"), "0", "cpu", 4))
        self.put(b"Q")
        for part in (0, (2, 2), (2, 1), False, lambda: self.named("collections.OrderedDict")):
            self.value(part)
        self.put(b")RtR")

    # -- things of the list

    def made(self) -> None:
        """One of them, as training writes it, more or less; kept to be named again."""
        self.depth += 1
        name = self.chance.choice(NAMES)
        arguments, state = self.parts(name)
        if self.chance.random() < 0.15:  # by a function of PyTorch that calls what it is given
            self.named("torch._tensor._rebuild_from_type_v2")
            own: Callable[[], None] = lambda: self.named(name)  # noqa: E731
            attributes = {self.chance.choice(TEXTS): self.anything}
            self.value((own, own, arguments, self.chance.choice((state, attributes))))
            self.put(b"R")
        else:
            self.named(name)
            self.value(arguments)
            self.put(self.chance.choice((b"R", b"\x81")) if arguments == () else b"R")
        if self.kept < 256:
            self.put(b"q", bytes([self.kept]))
            self.kept += 1
        for _ in range(self.chance.choice((0, 1, 1, 1, 1, 2)) if state is not None else 0):
            self.value(state)
            self.put(b"b")
        self.depth -= 1

    def kind(self) -> None:
        """A type of numbers, filled in or not."""
        self.named("numpy.dtype")
        self.value((self.chance.choice(("f8", "i8", "b1", "u2", "f2")), False, True))
        self.put(b"R")
        if self.chance.random() < 0.8:
            self.value((3, "<", None, None, None, -1, -1, 0))
            self.put(b"b")

    def node(self, key: Any = None) -> None:
        self.named("omegaconf.nodes.AnyNode")
        self.put(b")\x81")
        self.value({"_metadata": None, "_parent": None, "_val": self.chance.choice(TEXTS)})
        self.put(b"b")

    def parts(self, name: str) -> tuple[Any, Any]:
        """What a thing is called with, and the state that it gets: None where it gets none."""
        count, last = self.chance.randrange(4), name.rpartition(".")[2]
        match last:
            case "dtype":
                return ("f8", False, True), (3, "<", None, None, None, -1, -1, 0)
            case "scalar":
                return (self.kind, lambda: self.data(8)), None
            case "_reconstruct":
                start = (lambda: self.named("numpy.ndarray"), (0,), lambda: self.data(1))
                return start, (1, (count,), self.kind, False, lambda: self.data(8 * count))
            case "DictConfig":
                content = {str(key): self.node for key in range(count)}
                return (), {"_metadata": None, "_parent": None, "_content": content}
            case "ListConfig":
                return (), {"_metadata": None, "_content": [self.node] * count}
            case "Namespace" | "ContainerMetadata" | "Metadata":
                return (), {self.chance.choice(TEXTS): self.anything}
        if last.endswith("Node"):
            return (), {"_val": self.anything}
        if last.endswith("Meter"):
            return (), {"avg": self.anything, self.chance.choice(TEXTS): self.anything}
        return (), None


# -- what is done with what came out


def parts_of(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from itertools.chain(value.keys(), value.values())
    elif isinstance(value, list | tuple | set):
        yield from value
    if not isinstance(value, type) and not callable(value):
        yield from getattr(value, "__dict__", {}).values()


def check_plain(value: Any) -> None:
    """Everything in a value is plain data, or a thing of the list."""
    listed = [one for one, _ in safe_globals()]
    mine = tuple(one for one in listed if isinstance(one, type))
    seen, todo = set[int](), [value]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        known = any(one is thing for thing in listed)
        known = known or one in loader._get_allowed_globals().values() if callable(one) else known
        of_omegaconf = type(one).__module__.startswith("omegaconf.")
        assert known or of_omegaconf or isinstance(one, (*PLAIN, *mine)), repr(type(one))
        assert not isinstance(one, numpy.ndarray)
        if not of_omegaconf:
            todo += parts_of(one)


def use(value: Any) -> None:
    """Reads all of it, as texts, numbers and options."""
    check_plain(value)
    for do in (
        repr,
        lambda one: plain(one, "", []),
        lambda one: check_options({"cfg": one}, "a.pt"),
        lambda one: numpy.asarray(one).sum(),
        lambda one: DictConfig(one, flags={"allow_objects": True}),
    ):
        with contextlib.suppress(Exception):
            do(value)
    gc.collect(0)


def storages(_: Any, key: Any) -> Any:
    return torch.storage.TypedStorage(
        wrap_storage=torch.zeros(4).untyped_storage(), dtype=torch.float32, _internal=True
    )


def main(first: int, seconds: float) -> None:
    loading.register_safe_globals()
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    sys.setrecursionlimit(400)
    end, loaded, number = time.monotonic() + seconds, Counter[str](), 0
    with mock.patch.object(loader.Unpickler, "persistent_load", storages):
        for number in itertools.count(1):
            print(first + number, end="\r", flush=True)  # of a stream that ends the process
            try:
                value = loader.load(io.BytesIO(Stream(first + number).whole()), encoding="utf-8")
            except Exception as error:
                loaded[type(error).__name__] += 1
            else:
                loaded["loaded"] += 1
                use(value)
            if time.monotonic() >= end:
                break
    print(f"{number} streams: {dict(loaded)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
