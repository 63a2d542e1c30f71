"""Folders of packed weights: the same outputs bit for bit, nothing packed again, and no damage that is not refused."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fairseq_aggdec import from_pretrained
from fairseq_aggdec.cli import doctor, fairseq_commands
from fairseq_aggdec.cli.pack import main as pack_command
from fairseq_aggdec.convert.pack import pack
from fairseq_aggdec.kernels import library, stored
from fairseq_aggdec.kernels.library import Product, kernels, multiplies_bf16
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.packed import folder as packed_folder
from fairseq_aggdec.packed.contents import COMPARED, digest_of
from fairseq_aggdec.packed.files import CHECKPOINT, WEIGHTS, digest
from fairseq_aggdec.packed.folder import checkpoints, open_folder
from fairseq_aggdec.stored.held_files import HeldFile, stamp_of
from fairseq_aggdec.stored.loading import ABOUT, CheckpointError
from scripts import random_models
from tests.support import make_dictionary
from tests.unit.test_one_copy import SMALL

SYMBOLS = make_dictionary().symbols[4:]
LINES = [" ".join(random.Random(n).choices(SYMBOLS, k=3 + n)) for n in range(6)]
KINDS = ["fp32", "int8", "bf16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    for language in (random_models.SOURCE, random_models.TARGET):
        make_dictionary().save(str(folder / f"dict.{language}.txt"))
    name = folder / "model.pt"
    random_models.write_checkpoint(name, folder, "transformer", *SMALL, "--share-all-embeddings")
    return folder


def _names() -> list[str]:
    plain = library._open("plain")
    found = [] if plain is None else library.supported(plain)
    return [name for name in found if library._open(name) is not None]


@pytest.fixture(params=_names())
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(VARIABLE, request.param)
    kernels.cache_clear()
    yield request.param
    monkeypatch.undo()
    kernels.cache_clear()


def outputs(path: Path, data: Path | None, **options: Any) -> list[Any]:
    given = {"max_len_b": 12, "min_len": 4, "device": "cpu"} | options
    translator = from_pretrained(path, data, **given)
    return translator.generate(LINES)


def as_options(kind: str) -> dict[str, Any]:
    return {"int8": {"int8": True}, "bf16": {"dtype": "bf16"}}.get(kind, {})


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every product that is laid out anew."""
    made: list[int] = []
    plain = Product.__init__

    def counted(self: Product, *given: Any, **named: Any) -> None:
        made.append(1)
        plain(self, *given, **named)

    monkeypatch.setattr(Product, "__init__", counted)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_checkpoint(
    folder: Path, tmp_path: Path, kind: str, instructions: str, packing: list[int]
) -> None:
    if kind == "bf16" and not multiplies_bf16():
        pytest.skip("no products in bfloat16")
    pack(folder / "model.pt", folder, tmp_path / "out", kind)
    for options in ({"decoding": "greedy"}, {"beam": 3}):
        expected = outputs(folder / "model.pt", folder, **options, **as_options(kind))
        packing.clear()
        assert outputs(tmp_path / "out", None, **options) == expected
        assert packing == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_checkpoints_in_half_precision_are_packed(
    folder: Path,
    tmp_path: Path,
    kind: str,
    dtype: torch.dtype,
    packing: list[int],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Most published models are in it."""
    state, half = torch.load(folder / "model.pt", weights_only=True), tmp_path / "half.pt"
    state["model"] = {name: x.to(dtype) for name, x in state["model"].items()}
    torch.save(state, half)
    flags, out = [] if kind == "fp32" else [f"--{kind}"], tmp_path / "out"
    pack_command([str(half), str(folder), str(out), *flags])
    counts = re.search(r"with (\d+) of (\d+) products", capsys.readouterr().out)
    assert counts is not None and counts[1] == counts[2] != "0"
    expected = outputs(half, folder, **as_options(kind))
    packing.clear()
    caplog.set_level("INFO")
    assert outputs(out, None) == expected
    assert packing == []
    assert f"checkpoint.pt: {counts[1]} of {counts[1]} products are packed there" in caplog.text
    doctor.main([str(out), "--path", str(out / CHECKPOINT)])
    assert f"{counts[1]} of {counts[1]} products" in capsys.readouterr().out


DRAFTERS = {"shared encoder": True, "own encoder": False}
DRAFTED = {"decoding": "gad", "draft_tokens": "3"}


@pytest.mark.parametrize("kind", ["fp32", "int8"])
@pytest.mark.parametrize("shared", DRAFTERS.values(), ids=DRAFTERS)
def test_a_drafter_is_packed(
    folder: Path, tmp_path: Path, kind: str, shared: bool, packing: list[int]
) -> None:
    own = tmp_path / "drafter.pt"
    flags = ["--block-size", "4", "--share-decoder-input-output-embed"]
    flags += ["--share-verifier-encoder", str(folder / "model.pt")] if shared else []
    random_models.write_checkpoint(own, folder, "nar_drafter", *SMALL, *flags)
    pack(folder / "model.pt", folder, tmp_path / "out", kind)
    pack(own, folder, tmp_path / "packed", kind)
    expected = outputs(folder / "model.pt", folder, drafter_path=own, **DRAFTED, **as_options(kind))
    packing.clear()
    found = outputs(tmp_path / "out", None, drafter_path=tmp_path / "packed", **DRAFTED)
    assert found == expected
    assert packing == []


def test_a_drafter_in_another_precision_is_packed_anew(
    folder: Path, tmp_path: Path, packing: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "drafter.pt"
    flags = ["--block-size", "4", "--share-decoder-input-output-embed"]
    random_models.write_checkpoint(own, folder, "nar_drafter", *SMALL, *flags)
    pack(own, folder, tmp_path / "packed", "int8")
    expected = outputs(folder / "model.pt", folder, drafter_path=own, **DRAFTED)
    packing.clear()
    caplog.clear()
    found = outputs(folder / "model.pt", folder, drafter_path=tmp_path / "packed", **DRAFTED)
    assert found == expected
    assert packing
    (said,) = [one for one in caplog.messages if "another precision" in one]
    assert str(tmp_path / "packed") in said
    assert "fp32" in said


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["dense", "per-head"])
def test_block_heads_are_packed(
    folder: Path, tmp_path: Path, kind: str, layout: str, packing: list[int]
) -> None:
    if kind == "bf16" and not multiplies_bf16():
        pytest.skip("no products in bfloat16")
    heads = ["--block-size", "4", "--head-layout", layout, "--head-hidden-dim", "128"]
    model = tmp_path / "heads.pt"
    flags = [*SMALL, "--share-all-embeddings", *heads]
    random_models.write_checkpoint(model, folder, "blockwise_transformer", *flags)
    pack(model, folder, tmp_path / "out", kind)
    for options in ({"decoding": "blockwise"}, {"decoding": "greedy"}, {"beam": 2}):
        expected = outputs(model, folder, **options, **as_options(kind))
        packing.clear()
        assert outputs(tmp_path / "out", None, **options) == expected
        assert packing == []


def test_the_file_is_one_of_safetensors(folder: Path, tmp_path: Path) -> None:
    pack(folder / "model.pt", folder, tmp_path / "out", "int8")
    tensors = load_file(tmp_path / "out" / WEIGHTS)
    assert any(name.endswith("/weight") and x.dtype is torch.int8 for name, x in tensors.items())
    opened = open_folder(tmp_path / "out").stored
    assert opened is not None
    assert all(torch.equal(tensors[name], x) for name, x in opened.tensors.items())
    assert all(x.data_ptr() % 64 == 0 for x in opened.tensors.values())


def damaged(content: bytes, way: int, chance: random.Random) -> bytes:
    """A file with a bit turned, cut, with bytes turned, or with zeros put in."""
    found = bytearray(content)
    at, size = chance.randrange(len(content)), chance.choice([1, 8, 4096])
    if way == 0:
        found[at] ^= 1 << chance.randrange(8)
    elif way == 1:
        del found[at:]
    elif way == 2:
        found[at : at + size] = bytes(one ^ 255 for one in found[at : at + size])
    else:
        found[at:at] = bytes(size)
    return bytes(found)


def test_damage_is_refused(folder: Path, tmp_path: Path) -> None:
    """Every kind in every file; tests/fuzz/test_packed.py has more of them."""
    sound, chance = tmp_path / "sound", random.Random(1)
    pack(folder / "model.pt", folder, sound, "int8")
    for path in sorted(sound.iterdir()):
        before = path.read_bytes()
        for way in range(4):
            path.write_bytes(damaged(before, way, chance))
            with pytest.raises(CheckpointError, match=r"is damaged .*aggdec pack"):
                open_folder(sound)
        path.unlink()
        if path.name != ABOUT:  # without it the folder is none of packed weights
            with pytest.raises(CheckpointError, match=r"is damaged .*aggdec pack"):
                open_folder(sound)
        path.write_bytes(before)
    assert open_folder(sound).stored is not None


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has files count as written long ago."""
    monkeypatch.setattr(packed_folder, "SETTLED", -(10**9))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose sums are taken."""
    names: list[str] = []

    def noted(file: HeldFile) -> str:
        names.append(file.path.name)
        return digest(file)

    monkeypatch.setattr(packed_folder, "digest", noted)
    return names


def test_files_are_compared_once(
    folder: Path, tmp_path: Path, settled: None, read: list[str]
) -> None:
    """Until somebody writes to one, even one who sets its times back."""
    sound = tmp_path / "sound"
    pack(folder / "model.pt", folder, sound, "int8")
    for expected in (sorted(open_about(sound)["files"]), []):
        read.clear()
        open_folder(sound)
        assert sorted(read) == expected
    (sound / COMPARED).write_text("[" * 9)
    open_folder(sound)
    assert len(read) == len(open_about(sound)["files"])
    weights = sound / WEIGHTS
    before, times = weights.read_bytes(), weights.stat()
    weights.write_bytes(damaged(before, 0, random.Random(2)))
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(CheckpointError, match="is damaged"):
        open_folder(sound)
    other = tmp_path / "other"
    other.write_bytes(before)
    other.replace(weights)
    read.clear()
    assert open_folder(sound).stored is not None
    assert read == [WEIGHTS]


def test_a_header_that_the_disk_has_lost_is_named(
    folder: Path, tmp_path: Path, settled: None
) -> None:
    """No write has happened, so nothing is compared."""
    sound = tmp_path / "sound"
    pack(folder / "model.pt", folder, sound, "int8")
    weights = sound / WEIGHTS
    data = weights.read_bytes()
    weights.write_bytes(data[:9] + b"?" + data[10:])
    wanted = open_about(sound)["files"]
    known = {name: [whole, *stamp_of((sound / name).stat())] for name, whole in wanted.items()}
    (sound / COMPARED).write_text(json.dumps(known))
    with pytest.raises(CheckpointError, match=f"{WEIGHTS} is damaged .*aggdec pack"):
        open_folder(sound)


def test_files_that_are_being_written_are_compared_again(
    folder: Path, tmp_path: Path, read: list[str]
) -> None:
    pack(folder / "model.pt", folder, tmp_path / "out", "int8")
    for _ in range(2):
        read.clear()
        open_folder(tmp_path / "out")
        assert read


def open_about(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / ABOUT).read_text())
    return found


@pytest.mark.parametrize(
    "change", [{"layout": {"strip": 8, "depth": 4, "apart": 2}}, {"version": 0}]
)
def test_another_layout_is_packed_anew(
    folder: Path, tmp_path: Path, change: dict[str, Any], packing: list[int]
) -> None:
    pack(folder / "model.pt", folder, tmp_path / "out", "int8")
    about = open_about(tmp_path / "out") | change
    del about["digest"]
    (tmp_path / "out" / ABOUT).write_text(json.dumps(about | {"digest": digest_of(about)}))
    packing.clear()
    found = outputs(tmp_path / "out", None, decoding="greedy")
    assert packing
    assert found == outputs(folder / "model.pt", folder, decoding="greedy", int8=True)


def test_a_changed_parameter_is_packed_anew(folder: Path, tmp_path: Path) -> None:
    pack(folder / "model.pt", folder, tmp_path / "out", "int8")
    given = {"decoding": "greedy", "max_len_b": 12, "min_len": 4}
    packed, plain = (
        from_pretrained(path, folder, int8=True, **given)
        for path in (tmp_path / "out", folder / "model.pt")
    )
    before = packed.translate(LINES)
    assert before == plain.translate(LINES)
    own = torch.Generator().manual_seed(3)
    numbers = torch.randn(64, 128, generator=own) * 3
    for translator in (packed, plain):
        translator.models[0].decoder.layers[0].fc2.weight.data.copy_(numbers)
    assert packed.translate(LINES) == plain.translate(LINES) != before
    # A generator built now must not take what the file has for the old numbers.
    with stored.used(packed.models):
        layer = packed.models[0].decoder.layers[0].fc2
        assert stored.find("int8", False, [layer]) is None


def test_commands_take_the_folder(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(folder / "model.pt", folder, out, "int8")
    model = str(out / CHECKPOINT)
    assert checkpoints(["data", "--path", str(out)], True) == ["data", "--path", model, "--int8"]
    assert checkpoints([f"--path={out}:b.pt", "--int8", "drafts"], True) == [
        f"--path={model}:b.pt",
        "--int8",
        "drafts",
    ]
    assert checkpoints(["--path", "b.pt"], True) == ["--path", "b.pt"]
    shutil.rmtree(out)
    assert checkpoints(["--path", str(out)], True) == ["--path", str(out)]


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    pack(folder / "model.pt", folder, tmp_path / "out", "int8")
    with pytest.raises(SystemExit, match="exists: name a new folder"):
        pack(folder / "model.pt", folder, tmp_path / "out", "int8")
    with pytest.raises(SystemExit, match="is packed already"):
        pack(tmp_path / "out", folder, tmp_path / "other", "int8")


@pytest.mark.parametrize("command", ["generate", "interactive"])
def test_fairseqs_commands_use_packed_weights(
    folder: Path,
    tmp_path: Path,
    command: str,
    packing: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They read the checkpoint as stock does; what is mapped takes the place of what they have read."""
    pack(folder / "model.pt", folder, tmp_path / "out", "int8")
    side = f"{random_models.SOURCE}-{random_models.TARGET}.{random_models.SOURCE}"
    text = "".join(f"{line}\n" for line in LINES)
    for data in (folder, tmp_path / "out"):
        (data / f"test.{side}").write_text(text)
    found = []
    for path, more in ((folder / "model.pt", ["--int8"]), (tmp_path / "out", [])):
        languages = ["-s", random_models.SOURCE, "-t", random_models.TARGET]
        given = [str(folder), "--path", str(path), *languages, "--cpu", "--max-len-b", "12", *more]
        if command == "generate":
            given += ["--gen-subset", "test", "--dataset-impl", "raw"]
        monkeypatch.setattr("sys.argv", ["aggdec", *given])
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        packing.clear()
        capsys.readouterr()
        assert getattr(fairseq_commands, command)() == 0
        found.append([x for x in capsys.readouterr().out.splitlines() if x[:2] in ("H-", "P-")])
        assert bool(packing) == (path.name == "model.pt")
    assert len(found[0]) == 2 * len(LINES)
    assert found[0] == found[1]
