"""Changes of folders of packed weights, whose digests are made anew as an attacker would."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_aggdec.packed.contents import digest_of
from fairseq_aggdec.packed.files import BEGIN, CHECKPOINT, WEIGHTS, digest
from fairseq_aggdec.stored.held_files import HeldFile
from fairseq_aggdec.stored.loading import ABOUT

TABLES = "lattice.source-target"  # of a lattice, a folder beside the weights
ODD: tuple[Any, ...] = (
    *(
        0,
        1,
        -1,
        2,
        63,
        64,
        4096,
        2**31 - 1,
        2**31,
        2**32 + 1,
        2**62,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63),
    ),
    *(1.5, 1e300, True, None, "", "64", [], [1], {}, "F32", "\ud800", "x" * 10_000),
)
DTYPES = ("F32", "BF16", "I8", "I32", "U8", "F16", "F64", "I64", "BOOL", "f32", "")
Json = dict[str, Any]


class Forged:
    """A folder taken apart; :meth:`write` puts it together, with new digests.

    Attributes:
        about: ``packed.json``. entries: of the header of the weights, in their order. data: what follows it.
        head: makes the bytes in front of the data from the entries; None: as it should be.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.about: Json = json.loads((folder / ABOUT).read_text())
        whole = (folder / WEIGHTS).read_bytes()
        size = int.from_bytes(whole[:8], "little")
        self.entries: Json = json.loads(whole[8 : 8 + size])
        self.data = bytearray(whole[8 + size :])
        self.head: Callable[[bytes], bytes] | None = None

    def names(self, gaps: bool = False) -> list[str]:
        return [
            name
            for name in self.entries
            if name != "__metadata__" and (gaps or not name.startswith("gap."))
        ]

    def write(self, anew: bool = True) -> None:
        header = json.dumps(self.entries).encode()
        if self.head is None:
            header += b" " * (-(8 + len(header)) % BEGIN)
            front = len(header).to_bytes(8, "little") + header
        else:
            front = self.head(header)
        (self.folder / WEIGHTS).write_bytes(front + bytes(self.data))
        files = self.about.get("files")
        for name in files if isinstance(files, dict) and anew else ():
            with contextlib.suppress(OSError, ValueError):
                files[name] = digest(HeldFile(self.folder / name))
        self.about.pop("digest", None)
        with contextlib.suppress(UnicodeError):
            self.about["digest"] = digest_of(self.about)
        (self.folder / ABOUT).write_text(json.dumps(self.about))


# -- what is changed; each says whether outputs may be others then


def a_number(forged: Forged, chance: random.Random) -> bool:
    """A size, offset or dtype of the header."""
    entry = forged.entries[chance.choice(forged.names())]
    part = chance.choice(["shape", "shape", "data_offsets", "dtype"])
    if part == "dtype":
        entry[part] = chance.choice([*DTYPES, *ODD])
    elif chance.random() < 0.1:
        entry[part] = chance.choice(ODD)
    else:
        at = chance.randrange(len(entry[part]))
        before = entry[part][at]
        near = (
            before + 1,
            before - 1,
            before * 2,
            before // 2,
            before + 64,
            before + 4096,
            -before,
        )
        entry[part][at] = chance.choice([*near, *ODD])
    return False


def larger(forged: Forged, chance: random.Random) -> bool:
    """Outputs or inputs of a product: header and data hold together, but are another layer's."""
    name = chance.choice(forged.names())
    entry, more = forged.entries[name], chance.choice([1, 16, 64, 4096])
    begin, end = entry["data_offsets"]
    at = chance.randrange(len(entry["shape"]))
    rest = (end - begin) // max(1, entry["shape"][at])
    entry["shape"][at] += more
    added = rest * more
    forged.data[end:end] = bytes(added)
    entry["data_offsets"][1] += added
    for other in forged.names(gaps=True):
        where = forged.entries[other]["data_offsets"]
        if other != name and where[0] >= end:
            where[0] += added
            where[1] += added
    return False


def smaller(forged: Forged, chance: random.Random) -> bool:
    """All entries of one size get another tensor's place."""
    one, other = (chance.choice(forged.names()) for _ in range(2))
    forged.entries[one]["data_offsets"] = [*forged.entries[other]["data_offsets"]]
    if chance.random() < 0.5:
        forged.entries[one]["shape"] = [*forged.entries[other]["shape"]]
    return one != other and forged.entries[one] == forged.entries[other]


def exchanged(forged: Forged, chance: random.Random) -> bool:
    """The names of two tensors."""
    one, other = (chance.choice(forged.names()) for _ in range(2))
    swap = {one: other, other: one}
    forged.entries = {swap.get(name, name): entry for name, entry in forged.entries.items()}
    return True  # two layers of one form


def renamed(forged: Forged, chance: random.Random) -> bool:
    name = chance.choice(forged.names())
    key, _, _ = name.rpartition("/")
    new = chance.choice(
        [
            *(f"{key}/{other}" for other in ("weight", "bias", "scales", "sums", "x")),
            *(name + "x", "", "/weight", "[]/weight", "[" * 50_000 + "/weight", f"{key}"),
            name.replace("encoder", "decoder"),
            name.replace("true", "false"),
            name.replace("fp32", "int8"),
            name.replace("int8", "bf16"),
        ]
    )
    forged.entries = {new if one == name else one: x for one, x in forged.entries.items()}
    return True


def removed(forged: Forged, chance: random.Random) -> bool:
    name = chance.choice(forged.names())
    if chance.random() < 0.5:
        del forged.entries[name][chance.choice(["shape", "dtype", "data_offsets"])]
    else:
        entry = forged.entries.pop(name)
        if chance.random() < 0.8:
            entry |= {"dtype": "U8", "shape": [entry["data_offsets"][1] - entry["data_offsets"][0]]}
            order = sorted(
                {**forged.entries, "gap.own": entry}.items(),
                key=lambda one: one[1].get("data_offsets", [-1])[0],
            )
            forged.entries = dict(order)
    return False


def shifted(forged: Forged, chance: random.Random) -> bool:
    """Tensors that are not aligned."""
    by = chance.choice([1, 2, 3, 4, 32, 63, 64])
    forged.data[0:0] = bytes(by)
    for name in forged.names(gaps=True):
        where = forged.entries[name]["data_offsets"]
        forged.entries[name]["data_offsets"] = [one + by for one in where]
    gap = {"dtype": "U8", "shape": [by], "data_offsets": [0, by]}
    forged.entries = {"gap.own": gap, **forged.entries}
    return False


def cut(forged: Forged, chance: random.Random) -> bool:
    at = chance.randrange(len(forged.data))
    if chance.random() < 0.5:
        del forged.data[at:]
    else:
        forged.data += bytes(chance.choice([1, 4, 64, 4096]))
    return False


def in_front(forged: Forged, chance: random.Random) -> bool:
    """The size of the header, or its text."""
    way = chance.randrange(7)

    def head(text: bytes) -> bytes:
        padded = text + b" " * (-(8 + len(text)) % BEGIN)
        size, by = len(padded), chance.choice([1, -1, 8, 64, -64, BEGIN, 2**40, 2**62])
        if way == 0:
            return (max(0, size + by) % 2**64).to_bytes(8, "little") + padded
        if way == 1:
            return chance.randrange(2**64).to_bytes(8, "little") + padded
        if way == 2:
            return size.to_bytes(8, "little") + padded + bytes(chance.choice([1, 4, 64]))
        if way == 3:  # a name twice
            doubled = text[:-1] + b", " + text[1:-1] + b"}"
            doubled += b" " * (-(8 + len(doubled)) % BEGIN)
            return len(doubled).to_bytes(8, "little") + doubled
        if way == 4:
            deep = chance.choice([b"[", b'{"a":']) * 100_000
            deep += b" " * (-(8 + len(deep)) % BEGIN)
            return len(deep).to_bytes(8, "little") + deep
        turned = bytearray(padded)
        for _ in range(chance.choice([1, 3, 30])):
            turned[chance.randrange(len(text))] = chance.choice(b'0123456789{}[]":,-e.\xff\x00')
        return size.to_bytes(8, "little") + bytes(turned)

    forged.head = head
    return True


def numbers(forged: Forged, chance: random.Random) -> bool:
    """Weights, scales, sums: any bytes at all."""
    for _ in range(chance.choice([1, 10, 100])):
        at, size = chance.randrange(len(forged.data)), chance.choice([1, 4, 64, 4096])
        word = chance.choice([b"\xff", b"\x00", b"\x80", b"\x7f\x80", chance.randbytes(7)])
        part = (word * (size // len(word) + 1))[:size]
        forged.data[at : at + size] = part[: max(0, len(forged.data) - at)]
    return True


def said(forged: Forged, chance: random.Random) -> bool:
    """A value of packed.json, at any depth."""
    place: Any = forged.about
    while True:
        keys = [*place] if isinstance(place, dict) else []
        name = chance.choice(keys)
        if isinstance(place[name], dict) and place[name] and chance.random() < 0.8:
            place = place[name]
            continue
        break
    way = chance.randrange(4)
    if way == 0:
        del place[name]
    elif way == 1 and type(place[name]) is int:
        place[name] += chance.choice([1, -1, 8, 2**40])
    elif way == 2:
        outside = ("../x", "/etc/passwd", "a/b", "", ".", "..", "\0", "x" * 5000, "\ud800")
        place[chance.choice(outside)] = place.pop(name)
    else:
        place[name] = chance.choice(ODD)
    return True


def other_model(forged: Forged, chance: random.Random) -> bool:
    """A checkpoint with other shapes or options than those that were packed."""
    path = forged.folder / CHECKPOINT
    state = torch.load(path, weights_only=True)
    names = sorted(name for name, x in state["model"].items() if x.dim())
    name = chance.choice(names)
    before = state["model"][name]
    way = chance.randrange(5)
    if way == 0:
        state["model"][name] = torch.cat([before, before])
    elif way == 1:
        state["model"][name] = before[: len(before) // 2].clone()
    elif way == 2:
        state["model"][name] = before.to(chance.choice([torch.float16, torch.float64, torch.int32]))
    elif way == 3:
        options = state["cfg"]["model"]
        own = options if isinstance(options, dict) else vars(options)
        sizes = [key for key in own if key.endswith(("_dim", "_heads"))]
        if sizes:
            key = chance.choice(sorted(sizes))
            own[key] = chance.choice([1, 2, 3, 32, 128, 0, -1])
    else:
        del state["model"][name]
    torch.save(state, path)
    return True


def table(forged: Forged, chance: random.Random) -> bool:
    """A dictionary with more, fewer or other lines."""
    path = chance.choice(sorted(forged.folder.glob("dict.*.txt")))
    lines = path.read_text().splitlines()
    at = chance.randrange(len(lines))
    way = chance.randrange(5)
    if way == 0:
        del lines[at:]
    elif way == 1:
        lines.insert(at, f"new{chance.randrange(99)} 1")
    elif way == 2:
        lines.insert(at, lines[at])
    elif way == 3:
        lines[at] = chance.choice(
            ["word", "word x", "", "a b c", "\ufffd 1", "word -1", "word 9e9"]
        )
    else:
        del lines[at]
    path.write_text("\n".join(lines) + "\n")
    return True


def a_table(forged: Forged, chance: random.Random) -> bool:
    """A number, an array or the header of a lattice's tables."""
    path = chance.choice(sorted((forged.folder / TABLES).iterdir()))
    content, way = bytearray(path.read_bytes()), chance.randrange(6)
    if way < 2 and path.suffix == ".npy":  # a number of its list
        array = np.load(path)
        if array.size:
            odd = [0, 1, -1, 2, 36, 40, 41, 2**31 - 1, -(2**31)]
            array[chance.randrange(array.size)] = chance.choice([*odd, *range(99)])
        other = chance.choice(
            [array, array[:-1], np.repeat(array, 2), array.astype("f8"), array[None]]
        )
        np.save(path, other if way else array)
        return True
    if way == 2:
        del content[chance.randrange(len(content)) :]
    elif way == 3:
        other = chance.choice(sorted((forged.folder / TABLES).iterdir()))
        content[:] = other.read_bytes()
    elif way == 4:
        path.unlink()
        return True
    else:
        for _ in range(chance.choice([1, 3, 30])):
            content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content)
    return True


CHANGES = (
    *(
        a_number,
        a_number,
        a_number,
        larger,
        larger,
        smaller,
        exchanged,
        renamed,
        removed,
        shifted,
        cut,
    ),
    *(in_front, in_front, numbers, said, said, other_model, table),
)
