"""Folders of packed weights that were forged: sizes that are not those of the model, with digests made anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_aggdec.convert.pack import pack
from tests.cli.faults.bench import REFUSED, WORKS, Bench, Case
from tests.fuzz.forging import Forged

OPTIONS = "--path {tmp}/packed --decoding greedy --gen-subset test"
OUT_PROJ = "encoder.layers.0.self_attn.out_proj.weight"


def part(forged: Forged, name: str) -> dict[str, Any]:
    (found,) = (key for key in forged.names() if OUT_PROJ in key and key.endswith(f"/{name}"))
    entry: dict[str, Any] = forged.entries[found]
    return entry


def more_outputs(forged: Forged) -> None:
    """The header and the file hold together: only the model tells that the layer has fewer outputs."""
    entry = part(forged, "weight")
    end = entry["data_offsets"][1]
    added = 4096 // 64 * (end - entry["data_offsets"][0])
    forged.data[end:end] = bytes(added)
    entry["shape"][0] *= 1 + 4096 // 64
    entry["data_offsets"][1] += added
    for name in forged.names(gaps=True):
        other = forged.entries[name]
        if other is not entry and other["data_offsets"][0] >= end:
            other["data_offsets"] = [one + added for one in other["data_offsets"]]


def without_bias(forged: Forged) -> None:
    part(forged, "bias")["dtype"] = "U8"
    part(forged, "bias")["shape"][0] *= 4


def moved(forged: Forged) -> None:
    forged.data[0:0] = b"\0"
    for name in forged.names(gaps=True):
        where = forged.entries[name]["data_offsets"]
        forged.entries[name]["data_offsets"] = [one + 1 for one in where]
    gap = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    forged.entries = {"gap.own": gap, **forged.entries}


FORGED: dict[str, tuple[Callable[[Forged], object], str]] = {
    "4,096 outputs more": (more_outputs, "is not that of its layer"),
    "a bias of bytes": (without_bias, "is not that of its layer"),
    "a shape of 2 ** 62": (
        lambda forged: part(forged, "weight").update(shape=[2**62, 2, 8]),
        "a shape has another size",
    ),
    "an offset behind the end": (
        lambda forged: part(forged, "weight").update(data_offsets=[0, 2**40]),
        "tensors do not follow each other",
    ),
    "a size below 0": (
        lambda forged: part(forged, "weight").update(shape=[-1, -1, 1]),
        "a size is no number",
    ),
    "another dtype": (
        lambda forged: part(forged, "weight").update(dtype="I32"),
        "is not that of its layer",
    ),
    "tensors that are not aligned": (moved, "a tensor is not aligned"),
    "a file outside": (
        lambda forged: forged.about["files"].update({"../data": "0"}),
        "it names no files",
    ),
}


def forged(edit: Callable[[Forged], object]) -> Callable[[Bench, Path], None]:
    def make(bench: Bench, tmp: Path) -> None:
        pack(bench.path("model"), bench.data, tmp / "packed", "fp32")
        found = Forged(tmp / "packed")
        edit(found)
        found.write()

    return make


def cases() -> list[Case]:
    group, command = "packed folders", "aggdec-generate"
    found = [
        Case(group, name, command, OPTIONS, REFUSED, says, forged(edit))
        for name, (edit, says) in FORGED.items()
    ]
    found.append(Case(group, "sound", command, OPTIONS, WORKS, "", forged(lambda _: None)))
    return found
