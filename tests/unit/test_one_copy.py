"""Models are loaded in one copy: nothing drawn, tensors of the mapped file, pages given back, and the same numbers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from torch import nn

from fairseq_aggdec import from_pretrained
from fairseq_aggdec.kernels import mapped
from fairseq_aggdec.kernels.library import Product, kernels
from fairseq_aggdec.stored import loading
from fairseq_aggdec.stored.one_copy import OneCopy, adopt
from scripts import random_models
from tests.support import make_dictionary

SMALL = [f"--{side}-layers=1" for side in ("encoder", "decoder")]
SMALL += [f"--{side}-embed-dim=64" for side in ("encoder", "decoder")]
SMALL += [f"--{side}-ffn-embed-dim=128" for side in ("encoder", "decoder")]
SMALL += [f"--{side}-attention-heads=2" for side in ("encoder", "decoder")]
State = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    for language in (random_models.SOURCE, random_models.TARGET):
        make_dictionary().save(str(folder / f"dict.{language}.txt"))
    name = folder / "model.pt"
    random_models.write_checkpoint(name, folder, "transformer", *SMALL, "--share-all-embeddings")
    return folder


@pytest.fixture(autouse=True)
def files_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAPPED_FROM", 0)


def half(state: State) -> None:
    state["model"] = {
        name: x.half() if x.is_floating_point() else x for name, x in state["model"].items()
    }


def untied(state: State) -> None:
    """Other numbers under each name of a parameter that a model has once."""
    for number, name in enumerate(sorted(state["model"])):
        if name.endswith(("embed_tokens.weight", "output_projection.weight")):
            state["model"][name] = state["model"][name] + number


CHANGES: list[Callable[[State], None]] = [lambda state: None, half, untied]


@pytest.mark.parametrize("change", CHANGES, ids=["fp32", "fp16", "untied"])
def test_numbers_are_those_that_stock_loads(
    folder: Path, tmp_path: Path, change: Callable[[State], None]
) -> None:
    state = torch.load(folder / "model.pt", weights_only=True)
    change(state)
    path = str(tmp_path / "changed.pt")
    torch.save(state, path)
    ours = from_pretrained(path, folder).models[0]
    (stock,), _, _ = checkpoint_utils.load_model_ensemble_and_task([path])
    found, expected = (
        dict(model.named_parameters(remove_duplicate=False)) for model in (ours, stock)
    )
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        assert torch.equal(found[name], parameter), name
        assert found[name].dtype is parameter.dtype
        assert found[name].requires_grad == parameter.requires_grad
    assert len(set(map(id, found.values()))) == len(set(map(id, expected.values())))


def test_parameters_stand_in_the_file(folder: Path) -> None:
    model = from_pretrained(folder / "model.pt", folder).models[0]
    with mapped.read_once(folder / "model.pt"):
        places = mapped._clean.get()
    assert places, "the file is not mapped"
    for name, parameter in model.named_parameters():
        at = parameter.data_ptr()
        assert any(begin <= at and at + parameter.nbytes <= end for begin, end in places), name


def test_nothing_is_drawn_or_written_before_the_file_is_read() -> None:
    before = torch.get_rng_state()
    with OneCopy():
        drawn = nn.Linear(8, 8), nn.Embedding(8, 8, padding_idx=0), nn.LayerNorm(8)
        nn.init.xavier_uniform_(drawn[0].weight)
        nn.init.normal_(drawn[1].weight)
        assert torch.zeros(3).tolist() == [0.0] * 3
        assert torch.empty(3).fill_(2.0).tolist() == [2.0] * 3
    assert torch.equal(torch.get_rng_state(), before)
    nn.init.normal_(drawn[0].weight)
    assert not torch.equal(torch.get_rng_state(), before)


def test_shapes_that_do_not_fit_are_said_as_before() -> None:
    with OneCopy():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        adopt(model)
        state = {
            name: torch.zeros_like(x)
            for name, x in nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).state_dict().items()
        }
        with pytest.raises(RuntimeError, match="size mismatch for 1"):
            model.load_state_dict(state)


def test_what_was_written_to_is_never_given_back(tmp_path: Path) -> None:
    path = str(tmp_path / "x.pt")
    torch.save(torch.arange(2**16), path)
    clean, written = (torch.load(path, mmap=True, weights_only=True) for _ in range(2))
    written[5] = 7
    with mapped.read_once(path):
        for x in (clean, written):
            mapped.give_back(x)
    assert clean[5] == 5
    assert written[5] == 7
    assert written[6] == 6


@pytest.mark.skipif(kernels() is None, reason="there are no compiled kernels")
@pytest.mark.parametrize("kind", [{}, {"int8": True}, {"bf16": True}], ids=["fp32", "int8", "bf16"])
@pytest.mark.parametrize("outputs", [64, 70, 193])
def test_packing_in_parts_is_packing_at_once(
    kind: dict[str, bool], outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias, x = torch.randn(outputs, 150), torch.randn(outputs), torch.randn(7, 150)
    whole = Product(weight, bias, **kind)
    monkeypatch.setattr("fairseq_aggdec.kernels.library.AT_ONCE", 64)
    parts = Product(weight, bias, **kind)
    assert torch.equal(whole.weight.view(torch.uint8), parts.weight.view(torch.uint8))
    assert torch.equal(whole(x), parts(x))


def test_a_write_to_the_mapped_weights_is_seen(folder: Path) -> None:
    given = {"decoding": "greedy", "max_len_b": 8, "min_len": 8}
    translator = from_pretrained(folder / "model.pt", folder, **given)
    line = " ".join(make_dictionary().symbols[4:10])
    before = translator.translate([line])
    model = translator.models[0]
    model.decoder.layers[0].fc2.weight.data.copy_(torch.randn(64, 128) * 3)
    stock = from_pretrained(folder / "model.pt", folder, **given | {"decoding": "stock"}, beam=1)
    stock.models[0].load_state_dict(model.state_dict())
    assert translator.translate([line]) == stock.translate([line]) != before
    assert from_pretrained(folder / "model.pt", folder, **given).translate([line]) == before


def test_a_small_file_may_be_saved_to_while_its_model_lives(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped file that is written anew in its place ends the process."""
    monkeypatch.undo()
    model = tmp_path / "model.pt"
    shutil.copy(folder / "model.pt", model)
    state = loading.load_checkpoint(str(model))
    before = {name: x.clone() for name, x in state["model"].items()}
    torch.save({"model": state["model"]}, model)
    assert all(torch.equal(state["model"][name], x) for name, x in before.items())


@pytest.mark.parametrize("missing", ["MAPPINGS", "PLACES"])
def test_a_system_that_does_not_tell_where_files_are_mapped(
    missing: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"decoding": "greedy", "max_len_b": 8, "min_len": 8}
    line = " ".join(make_dictionary().symbols[4:10])
    before = from_pretrained(folder / "model.pt", folder, **given).translate([line])
    monkeypatch.setattr(mapped, missing, tmp_path / "missing")
    if missing == "PLACES":
        monkeypatch.setattr(mapped, "_can_scan", lambda: True)
    assert not mapped.Untouched([torch.zeros(9)]).written()
    assert from_pretrained(folder / "model.pt", folder, **given).translate([line]) == before


def test_a_write_in_a_forked_process_is_seen(tmp_path: Path) -> None:
    path = str(tmp_path / "x.pt")
    torch.save(torch.arange(2**16), path)
    numbers = torch.load(path, mmap=True, weights_only=True)
    before = mapped.Untouched([numbers])
    if not before.watched:
        pytest.skip("the system does not tell")
    assert not before.written()
    child = os.fork()
    if child == 0:
        numbers[5] = 7
        os._exit(before.written())
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert not before.written()
