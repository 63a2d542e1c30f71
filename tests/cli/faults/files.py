"""Checkpoints that hide code, are damaged or broken; drafters; tables; data folders."""

from __future__ import annotations

import argparse
import json
import math
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.cli.faults.bench import (
    MODELS,
    OWN_MODEL,
    PAIR,
    REFUSED,
    WARNED,
    Bench,
    Case,
    broken,
    edited_model,
    file_of,
    write_model,
)
from tests.cli.faults.options import GENERATE, method

# -- code in a checkpoint: every kind writes the file RAN when it runs

RAN = "code-ran"


class Calls:
    """Pickles as the call of a function."""

    def __init__(self, function: Any, *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def shell(tmp: Path) -> str:
    return f"touch {tmp / RAN}"


def python(tmp: Path) -> str:
    return f"open({str(tmp / RAN)!r}, 'w').close()"


def with_state(value: Any) -> dict[str, Any]:
    return {"model": {}, "cfg": None, "args": None, "extra_state": value}


def opcodes(text: str) -> bytes:
    """A pickle of protocol 0, written by hand."""
    return text.encode() + b"."


HOSTILE: dict[str, Callable[[Path], bytes | Any]] = {
    "os.system": lambda tmp: with_state(Calls(__import__("os").system, shell(tmp))),
    "eval": lambda tmp: with_state(Calls(eval, python(tmp))),
    "exec": lambda tmp: with_state(Calls(exec, python(tmp))),
    "subprocess": lambda tmp: with_state(
        Calls(__import__("subprocess").check_call, ["touch", str(tmp / RAN)])
    ),
    "open for writing": lambda tmp: with_state(Calls(open, str(tmp / RAN), "w")),
    "runpy": lambda tmp: with_state(Calls(__import__("runpy").run_path, str(tmp / "code.py"))),
    "pathlib": lambda tmp: with_state(Calls(Path.touch, tmp / RAN)),
    "getattr of a module": lambda tmp: with_state(
        Calls(getattr, Calls(__import__, "os"), "system")
    ),
    "a partial": lambda tmp: with_state(
        Calls(__import__("functools").partial(__import__("os").system, shell(tmp)))
    ),
    "torch.load in torch.load": lambda tmp: with_state(Calls(torch.load, str(tmp / "inner.pt"))),
    "numpy.load": lambda tmp: with_state(Calls(np.load, str(tmp / "inner.npy"), None, True)),
    "storage from bytes": lambda tmp: with_state(
        Calls(
            torch.storage._load_from_bytes,
            pickle.dumps(Calls(__import__("os").system, shell(tmp))),
        )
    ),
    "a model's weight": lambda tmp: {"model": {"w": Calls(eval, python(tmp))}, "cfg": None},
    "a key": lambda tmp: {"model": {}, "cfg": None, Calls(eval, python(tmp)): 1},
    "options with a call": lambda tmp: {
        "model": {},
        "args": argparse.Namespace(arch=Calls(eval, python(tmp))),
    },
    "the whole file": lambda tmp: Calls(eval, python(tmp)),
    "opcode GLOBAL": lambda tmp: opcodes(f"cposix\nsystem\n(S'{shell(tmp)}'\ntR"),
    "opcode INST": lambda tmp: opcodes(f"(S'{shell(tmp)}'\niposix\nsystem\n"),
    "opcode OBJ": lambda tmp: opcodes(f"(cposix\nsystem\nS'{shell(tmp)}'\no"),
    "opcode STACK_GLOBAL": lambda tmp: (
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c"
        + bytes([len(shell(tmp))])
        + shell(tmp).encode()
        + b"\x85R."
    ),
    "opcode BUILD": lambda tmp: opcodes(
        f"ccollections\nOrderedDict\n)R(dS'__setstate__'\ncbuiltins\neval\nsbS'{python(tmp)}'\nb"
    ),
    "opcode EXT": lambda tmp: b"\x80\x02\x82\x01.",
}


def hostile(kind: str, old: bool) -> Callable[[Bench, Path], None]:
    def make(bench: Bench, tmp: Path) -> None:
        (tmp / "code.py").write_text(python(tmp))
        torch.save(Calls(eval, python(tmp)), tmp / "inner.pt")
        np.save(
            tmp / "inner.npy",
            np.array([Calls(eval, python(tmp))], dtype=object),
            allow_pickle=True,
        )
        content = HOSTILE[kind](tmp)
        if isinstance(content, bytes):
            if old:
                (tmp / "evil.pt").write_bytes(content)
            else:  # as torch.save packs a pickle
                with zipfile.ZipFile(tmp / "evil.pt", "w") as archive:
                    archive.writestr("evil/data.pkl", content)
                    archive.writestr("evil/version", "3\n")
        else:
            torch.save(content, tmp / "evil.pt", _use_new_zipfile_serialization=not old)

    return make


def hostile_cases() -> list[Case]:
    found = []
    for number, kind in enumerate(HOSTILE):
        for old in (False, True):
            form = "old format" if old else "archive"
            role = (
                method("greedy", "").replace("{model}", "{tmp}/evil.pt"),
                method("gad", "").replace("{drafter}", "{tmp}/evil.pt"),
                method("greedy", "").replace("{model}", "{model}:{tmp}/evil.pt"),
            )[(2 * number + old) % 3]
            name = f"{kind}, {form}"
            found.append(
                Case("hidden code", name, GENERATE, role, REFUSED, "evil.pt", hostile(kind, old))
            )
    evil = hostile("eval", False)
    for command, options in (
        ("aggdec average-checkpoints", "DATA= --output {tmp}/new.pt {tmp}/evil.pt"),
        ("aggdec distill", "--path {tmp}/evil.pt --output {tmp}/out"),
        ("aggdec audit", "--path {tmp}/evil.pt --decoding greedy"),
        ("aggdec audit", "--path {model} --reference {tmp}/evil.pt --decoding greedy"),
        ("fairseq-train", "--arch blockwise_transformer --base-checkpoint {tmp}/evil.pt"),
    ):
        option = " ".join(w for w in options.split() if w.startswith("--") and w != "--output")
        found.append(Case("hidden code", option, command, options, REFUSED, "evil.pt", evil))
    return found


# -- checkpoints that are damaged, of something else, or broken


def cut(bench: Bench, tmp: Path) -> None:
    content = bench.path("model").read_bytes()
    (tmp / "bad.pt").write_bytes(content[: len(content) // 2])


def flipped(bench: Bench, tmp: Path) -> None:
    """The pickle is still an archive's, but its opcodes are noise."""
    with zipfile.ZipFile(tmp / "bad.pt", "w") as archive:
        archive.writestr("bad/data.pkl", b"\x80\x02}q\x00(X\x00")
        archive.writestr("bad/version", "3\n")


def zeros_inside(bench: Bench, tmp: Path) -> None:
    """A thousand bytes of a weight: PyTorch reads them in silence."""
    content = bytearray(bench.path("model").read_bytes())
    with zipfile.ZipFile(bench.path("model")) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
    begin = largest.header_offset + 256
    content[begin : begin + 1000] = bytes(1000)
    (tmp / "bad.pt").write_bytes(content)


def folder(bench: Bench, tmp: Path) -> None:
    (tmp / "bad.pt").mkdir()


def other_dictionary(bench: Bench, tmp: Path) -> None:
    """A model whose dictionaries have other sizes."""
    data = tmp / "other"
    shutil.copytree(bench.data, data)
    for path in data.glob("dict.*"):
        path.write_text("".join(f"x{i} 1\n" for i in range(50)))
    write_model(tmp / "bad.pt", data, MODELS["model"], 1)
    shutil.rmtree(data)


def damaged_cases() -> list[Case]:
    path = method("greedy", "").replace("{model}", "{tmp}/bad.pt")
    kinds: dict[str, Callable[[Bench, Path], object] | None] = {
        "empty": file_of("bad.pt", b""),
        "text": file_of("bad.pt", "a line of text\n"),
        "zeros": file_of("bad.pt", bytes(1000)),
        "cut short": cut,
        "noise in the archive": flipped,
        "zeros inside": zeros_inside,
        "a folder": folder,
        "another program's": edited_model("model", lambda state: {"weight": torch.ones(1)}),
        "no model in it": edited_model("model", lambda state: state | {"model": [1, 2]}),
        "a list": edited_model("model", lambda state: [1, 2]),
        "no encoder": edited_model("model", lambda state: state | {"model": {"w": torch.ones(1)}}),
        "another dictionary": other_dictionary,
        "not there": None,
    }
    found = [
        Case("damaged checkpoints", name, GENERATE, path, REFUSED, "bad.pt", make)
        for name, make in kinds.items()
    ]
    drafter = method("gad", "").replace("{drafter}", "{tmp}/bad.pt")
    for name in ("empty", "cut short", "a list", "another program's", "another dictionary"):
        case = Case("damaged drafters", name, GENERATE, drafter, REFUSED, "bad.pt", kinds[name])
        found.append(case)
    return found


def broken_cases() -> list[Case]:
    found = []
    for name in ("beam", "greedy", "iad", "gad", "nar", "blockwise", "interleaved", "lattice"):
        own = "drafter" if name == "nar" else OWN_MODEL.get(name, "model")
        options = method(name, "").replace(f"{{{own}}}", "{tmp}/bad.pt")
        for number in (math.nan, math.inf):
            make = broken(own, number)
            title = f"{name}: a weight of {number}"
            case = Case("broken models", title, GENERATE, options, REFUSED, "bad.pt gives", make)
            found.append(case)
    drafting = {
        "drafter": method("gad", "").replace("{drafter}", "{tmp}/bad.pt"),
    }
    for kind, options in drafting.items():
        says = "nothing is drafted"
        found.append(Case("broken drafters", kind, GENERATE, options, WARNED, says, broken(kind)))
    heads = broken("blockwise", weight="decoder.heads.contract.weight")
    options = method("blockwise", "").replace("{blockwise}", "{tmp}/bad.pt")
    # All heads read these units, the model's own too.
    found.append(
        Case("broken models", "block heads", GENERATE, options, REFUSED, "bad.pt gives", heads)
    )
    return found


# -- tables


def with_tables(edit: Callable[[Path], object]) -> Callable[[Bench, Path], None]:
    def make(bench: Bench, tmp: Path) -> None:
        shutil.copytree(bench.folder / "lattice", tmp / "tables")
        edit(tmp / "tables")

    return make


def header(**changed: Any) -> Callable[[Path], None]:
    def edit(tables: Path) -> None:
        path = tables / "header.json"
        found = json.loads(path.read_text()) | changed
        path.write_text(json.dumps({k: v for k, v in found.items() if v is not None}))

    return edit


def array(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(tables: Path) -> None:
        path = tables / f"{name}.npy"
        changed = change(np.load(path))
        path.unlink()
        np.save(path, changed)

    return edit


def put(value: float, at: int = 0) -> Callable[[Any], Any]:
    def change(numbers: Any) -> Any:
        numbers[at] = value
        return numbers

    return change


def open_bracket(tables: Path) -> None:
    """A header of NumPy whose shape does not end."""
    path = tables / "lexicon.keys.npy"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"}", b" ", 1))


TABLES: dict[str, Callable[[Path], object]] = {
    "no header": lambda tables: (tables / "header.json").unlink(),
    "header cut short": lambda tables: (tables / "header.json").write_text('{"format": 1,'),
    "header a list": lambda tables: (tables / "header.json").write_text("[]"),
    "another format": header(format=99),
    "no widths": header(widths=None),
    "widths of 0": header(
        widths=dict.fromkeys(("translation", "lexicon", "position", "offset"), 0)
    ),
    "no weights": header(weights=None),
    "a weight of 7": header(weights={"translation": 7, "position": 0.5}),
    "no length": header(length={}),
    "a length of NaN": header(length={"slope": math.nan, "intercept": 0}),
    "offsets of text": header(max_offset="8"),
    "huge offsets": header(max_offset=10**12),
    "no dictionaries": header(dictionaries=None),
    "a file missing": lambda tables: (tables / "lexicon.values.npy").unlink(),
    "a file cut short": lambda tables: (tables / "lexicon.values.npy").write_bytes(b"\x93NUMPY"),
    "an empty file": lambda tables: (tables / "lexicon.keys.npy").write_bytes(b""),
    "ids beyond the dictionary": array("translation.values", put(99999999)),
    "ids below 0": array("lexicon.values", put(-1)),
    "a probability of NaN": array("lexicon.probabilities", put(math.nan)),
    "a probability below 0": array("translation.probabilities", put(-0.5)),
    "starts that go back": array("translation.starts", put(10**9, 1)),
    "fewer values": array("translation.values", lambda numbers: numbers[:-1]),
    "keys in disorder": array("translation.keys", lambda numbers: numbers[::-1].copy()),
    "keys of text": array("lexicon.keys", lambda numbers: numbers.astype("U8")),
    "objects": array("lexicon.keys", lambda numbers: numbers.astype(object)),
    "a bracket that stays open": open_bracket,
}


def table_cases() -> list[Case]:
    options = method("lattice", "").replace("{tables}", "{tmp}/tables")
    return [
        Case("damaged tables", name, GENERATE, options, REFUSED, "tables", with_tables(edit))
        for name, edit in TABLES.items()
    ]


# -- data


def with_data(edit: Callable[[Path], object]) -> Callable[[Bench, Path], None]:
    def make(bench: Bench, tmp: Path) -> None:
        shutil.copytree(bench.data, tmp / "data")
        edit(tmp / "data")

    return make


DATA: dict[str, tuple[Callable[[Path], object], str]] = {
    "no dictionary": (lambda data: next(data.glob("dict.*")).unlink(), "dict."),
    "no test set": (
        lambda data: [path.unlink() for path in data.glob("test.*")],
        "Dataset not found",
    ),
    "another dictionary": (
        lambda data: [p.write_text("a 1\nb 1\n") for p in data.glob("dict.*")],
        "dictionary of 40 types",
    ),
    "a dictionary without counts": (
        lambda data: [p.write_text("a\nb\n") for p in data.glob("dict.*")],
        "each line has a word and its count",
    ),
    "a dictionary with a row twice": (
        lambda data: [p.write_text(p.read_text() * 2) for p in data.glob("dict.*")],
        "no word stands twice",
    ),
    "a set that is cut": (
        lambda data: [p.write_bytes(p.read_bytes()[:9]) for p in data.glob("test.*.bin")],
        "is cut",
    ),
    "a smaller test set of one side": (
        lambda data: [
            shutil.copy(path, path.with_name(path.name.replace("valid", "test")))
            for path in data.glob(f"valid.{PAIR}.{PAIR.split('-')[0]}.*")
        ],
        "",
    ),
}


def data_cases() -> list[Case]:
    options = "DATA={tmp}/data " + method("greedy", "")
    return [
        Case("data folders", name, GENERATE, options, REFUSED, says, with_data(edit))
        for name, (edit, says) in DATA.items()
        if says
    ]


def cases() -> list[Case]:
    return [
        *hostile_cases(),
        *damaged_cases(),
        *broken_cases(),
        *table_cases(),
        *data_cases(),
    ]
