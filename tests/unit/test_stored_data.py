"""A checkpoint makes data in weights-only loading, whatever it calls, fills in or sets: one row, one attack."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fairseq.logging import meters
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf
from torch import _weights_only_unpickler as loader

from fairseq_aggdec.stored import loading
from fairseq_aggdec.stored.data import StoredArray, only_named, safe_globals, scalar
from fairseq_aggdec.stored.held_files import HeldFile
from fairseq_aggdec.stored.loading import CheckpointError
from fairseq_aggdec.stored.nodes import REFUSES
from tests.fuzz.pickles import Stream, check_plain

loading.register_safe_globals()
PLAIN_ORDER = (3, "<", None, None, None, -1, -1, 0)
FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
ARRAY = "numpy.core.multiarray._reconstruct"


class Exact(Stream):
    """A stream without chance."""

    def __init__(self) -> None:
        super().__init__(0)

    def value(self, value: Any) -> None:
        self.chance.random = lambda: 1.0  # type: ignore[method-assign]
        super().value(value)


def call(name: str, *arguments: Any, states: tuple[Any, ...] = (), new: bool = False) -> Any:
    """Pushes what a call gives, after it has been filled in with each of the states."""

    def push(stream: Stream) -> None:
        stream.named(name)
        stream.value(tuple(bound(stream, one) for one in arguments))
        stream.put(b"\x81" if new else b"R")
        for state in states:
            stream.value(bound(stream, state))
            stream.put(b"b")

    return push


def bound(stream: Stream, value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(bound(stream, one) for one in value)
    if isinstance(value, dict):
        return {key: bound(stream, one) for key, one in value.items()}
    if isinstance(value, bytes):
        return lambda: (
            stream.named("_codecs.encode"),
            stream.value((value.decode("latin1"), "latin1")),
            stream.put(b"R"),
        )
    return (lambda: value(stream)) if callable(value) else value


def name(of: str) -> Callable[[Stream], None]:
    return lambda stream: stream.named(of)


def loaded(push: Callable[[Stream], None]) -> Any:
    stream = Exact()
    push(stream)
    return loader.load(io.BytesIO(bytes(stream.code) + b"."), encoding="utf-8")


def dtype(code: str = "i4", *states: Any) -> Any:
    return call("numpy.dtype", code, False, True, states=states or (PLAIN_ORDER,))


def array(*states: Any) -> Any:
    return call(ARRAY, name("numpy.ndarray"), (0,), b"b", states=states)


def node(value: Any) -> Any:
    return call("omegaconf.nodes.AnyNode", new=True, states=({"_val": value},))


def container(kind: str, content: Any, times: int = 1) -> Any:
    named = f"omegaconf.{kind.lower()}.{kind}"
    return call(named, new=True, states=({"_metadata": None, "_content": content},) * times)


def twice(stream: Stream) -> None:
    """Two options that are one, as a small file makes a huge configuration of."""
    node(1)(stream)
    stream.put(b"q\x00")
    again: Any = lambda s: s.put(b"h\x00")  # noqa: E731
    container("DictConfig", {"a": again, "b": again})(stream)


FILLED = (1, (2,), dtype(), False, b"\0" * 8)
SCALAR = "numpy._core.multiarray.scalar"
REFUSED: dict[str, Any] = {
    "a pointer": call("numpy.ndarray", (1,), "O", b"\1" * 8),
    "an array of a size": call("numpy.ndarray", (10**9,)),
    "an array as a type": call("numpy.ndarray", new=True),
    "an array filled in twice": array(FILLED, FILLED),
    "an array of objects": array((1, (1,), dtype("O"), False, [1])),
    "an array of too few bytes": array((1, (3,), dtype(), False, b"\0" * 8)),
    "an array of too many bytes": array((1, (1,), dtype(), False, b"\0" * 8)),
    "an array of no bytes": array((1, (2**62, 4), dtype(), False, b"")),
    "a negative size": array((1, (-1, -2), dtype(), False, b"\0" * 8)),
    "a list for bytes": array((1, (1,), dtype(), False, [1])),
    "an array that a tensor reads": call(
        "torch._utils._rebuild_device_tensor_from_numpy", array(FILLED), name("torch.int32"), "cpu"
    ),
    "an array's memory": call(FROM_TYPE, array(), name(ARRAY), (), {"data": b"x"}),
    "a number of an object": call(SCALAR, dtype("O"), b"\1" * 8),
    "a number of few bytes": call(SCALAR, dtype(), b"\1"),
    "a number of many bytes": call(SCALAR, dtype(), b"\1" * 8),
    "a number of something else": call(
        SCALAR, call("argparse.Namespace", states=({"code": "O", "order": "<"},)), b"\1" * 8
    ),
    "a type of texts": dtype("U4"),
    "a type of bytes": dtype("V8"),
    "a type of fields": dtype("i4,O"),
    "a type with fields": dtype("i4", (3, "<", None, ("a",), {"a": 1}, -1, -1, 0)),
    "a type within a type": dtype("i4", (3, "<", (1, (2,)), None, None, -1, -1, 0)),
    "a type of two orders": dtype("i4", PLAIN_ORDER, PLAIN_ORDER),
    "a huge number of bytes": call("builtins.bytes", 10**10),
    "a node of a function": node("${oc.env:HOME}"),
    "a list that is read": call(
        "builtins.set", container("ListConfig", [node("${oc.create:${oc.env:HOME}}")])
    ),
    "a container of a function": container("DictConfig", "${oc.env:HOME}"),
    "a configuration of content": call("omegaconf.dictconfig.DictConfig", {"a": 1}),
    "a configuration twice": container("DictConfig", {}, times=2),
    "a configuration of a class": container("DictConfig", name("torch.Tensor")),
    "an option in two places": twice,
    "an option that was not filled in": container("ListConfig", [call("omegaconf.nodes.AnyNode")]),
    **{f"a call of {of}": call(of, 9) for one, of in safe_globals() if one is only_named},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused(kind: str) -> None:
    with pytest.raises(
        (CheckpointError, TypeError, KeyError, torch.serialization.pickle.UnpicklingError)
    ):
        loaded(REFUSED[kind])


def test_no_class_with_memory_of_its_own_is_listed() -> None:
    """Each entry is ours, or one that stores what it is given in a Python object."""
    own = [argparse.Namespace, *(getattr(meters, name) for name in vars(meters) if "Meter" in name)]
    for thing, name in safe_globals():
        module = thing.__module__
        assert module == "fairseq_aggdec.stored.data" or thing in own, name
    listed = {
        one if isinstance(one, tuple) else (one, "")
        for one in torch.serialization.get_safe_globals()
    }
    assert {*safe_globals()} <= listed
    of_numpy = [
        thing for thing, _ in listed if str(getattr(thing, "__module__", "")).startswith("numpy")
    ]
    assert of_numpy == []


def test_what_training_writes() -> None:
    counts = loaded(array((1, (2, 2), dtype("b1"), True, b"\0\1\2\xff")))
    assert type(counts) is StoredArray
    assert numpy.asarray(counts).tolist() == [[False, True], [True, True]]  # no byte of its own
    assert numpy.asarray(counts, "int8").dtype == numpy.int8
    assert loaded(call(SCALAR, dtype("i4", (3, ">", *PLAIN_ORDER[2:])), b"\0\0\0\7")) == 7
    assert loaded(call("collections.defaultdict", name("builtins.list"))) == {}
    assert loaded(call("builtins.bytes")) == b""


def configuration() -> Any:
    made = OmegaConf.create(
        {
            "model": {"seed": "${common.seed}", "layers": [1, [2, None]], "missing": "???"},
            "common": {"seed": 3, "nothing": None, **({} if REFUSES else {5: True})},
            "empty": {},
        }
    )
    made.none = DictConfig(None)
    made.link = DictConfig("${common}")
    made.nothing = ListConfig(None)
    return made


def test_a_configuration_loads_as_it_was(tmp_path: Path) -> None:
    torch.save(configuration(), tmp_path / "a.pt")
    found, names = loading.read_stored(HeldFile(tmp_path / "a.pt"))
    assert names == [] and found == configuration()
    assert type(found) is DictConfig and type(found.model.layers) is ListConfig
    assert found.model.seed == 3 and found.link.seed == 3
    assert (
        type(found._get_node("link")) is DictConfig
        and type(found.common._get_node("seed")) is AnyNode
    )
    check_plain(found)


def test_what_the_user_has_listed_stays(tmp_path: Path) -> None:
    """Two things under one name: PyTorch takes either."""
    made = numpy.int64(3).__reduce__()[0]  # NumPy 1 and 2 have it in other modules
    own, name = [numpy.dtype, numpy.dtypes.Int64DType, made], f"{made.__module__}.scalar"
    torch.save([numpy.int64(3), numpy.arange(3)], tmp_path / "a.pt")
    with torch.serialization.safe_globals(own):
        loading.register_safe_globals()
        assert (scalar, name) not in torch.serialization.get_safe_globals()
        number, counts = torch.load(tmp_path / "a.pt", weights_only=True)
        assert number == 3 and numpy.asarray(counts).tolist() == [0, 1, 2]
    loading.register_safe_globals()
    assert (scalar, name) in torch.serialization.get_safe_globals()


def test_a_small_file_makes_no_endless_options(tmp_path: Path) -> None:
    options: Any = [1] * 10
    for _ in range(8):
        options = [options] * 10
    torch.save({"cfg": {"a": options}, "model": {}}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"a\.pt is refused: it has more than 100000 options"):
        loading.check_checkpoint(str(tmp_path / "a.pt"))
    text = {"cfg": {"a": "${" * 10**6}, "model": {}}
    torch.save(text, tmp_path / "a.pt")
    loading.check_checkpoint(str(tmp_path / "a.pt"))
