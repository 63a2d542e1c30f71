"""Checkpoints of every age load, or are refused in one sentence; ``aggdec upgrade-checkpoint`` is the way out."""

from __future__ import annotations

import argparse
import collections
import logging
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aggdec_images  # noqa: F401  (registers the task)
import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.logging import meters
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

from fairseq_aggdec import from_pretrained
from fairseq_aggdec.cli import upgrade_checkpoint
from fairseq_aggdec.stored.checkpoints import check_direction, check_overrides, check_task
from fairseq_aggdec.stored.loading import (
    CheckpointError,
    check_checkpoint,
    load_checkpoint,
    register_safe_globals,
)
from fairseq_aggdec.stored.nodes import configuration
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask
from scripts import random_models
from tests.support import make_dictionary

SMALL = ["--encoder-embed-dim", "16", "--decoder-embed-dim", "16", "--encoder-layers", "1"]
SMALL += ["--decoder-layers", "1", "--encoder-ffn-embed-dim", "32", "--decoder-ffn-embed-dim", "32"]
SMALL += ["--encoder-attention-heads", "2", "--decoder-attention-heads", "2"]
SMALL += ["--max-source-positions", "40", "--max-target-positions", "40"]
State = dict[str, Any]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for language in (random_models.SOURCE, random_models.TARGET):
        make_dictionary().save(str(folder / f"dict.{language}.txt"))
    random_models.write_checkpoint(folder / "model.pt", folder, "transformer", *SMALL)
    random_models.write_checkpoint(folder / "bart.pt", folder, "bart_base", *SMALL)
    return folder


@pytest.fixture
def state(data: Path) -> State:
    found: State = torch.load(data / "model.pt", weights_only=True)
    return found


def outputs(path: Path, data: Path) -> list[str]:
    symbols = make_dictionary().symbols[-6:]
    model = from_pretrained(path, data, decoding="stock", device="cpu", max_len_b=8)
    found: list[str] = model.translate([" ".join(symbols[:3]), " ".join(symbols[3:])])
    return found


def saved(state: Any, folder: Path, old: bool = False) -> Path:
    path = folder / "old.pt"
    torch.save(state, path, _use_new_zipfile_serialization=not old)
    return path


# -- files that stock fairseq loads


def with_meters(state: State) -> State:
    meter = meters.AverageMeter(round=3)
    meter.update(2.5)
    found = {"train_loss": meter, "wall": meters.StopwatchMeter(), "wps": meters.TimeMeter()}
    state["extra_state"]["train_meters"] = collections.OrderedDict(found)
    state["extra_state"]["counts"] = collections.defaultdict(list, {"a": [1]})
    return state


def as_omegaconf(state: State) -> State:
    cfg = configuration(state["cfg"])
    cfg.ema = OmegaConf.structured(EMAConfig)
    cfg.model.seed = "${common.seed}"
    return state | {"cfg": cfg}


def as_old_options(state: State) -> State:
    cfg = state["cfg"]
    flat: dict[str, Any] = {}
    for section in ("common", "dataset", "optimization", "checkpoint", "generation", "task"):
        flat |= {k: v for k, v in cfg[section].items() if v is not None and k != "_name"}
    model = cfg["model"]
    flat |= vars(model) if isinstance(model, argparse.Namespace) else model
    flat |= {"arch": "transformer", "task": "translation"}
    return {**state, "args": argparse.Namespace(**flat), "cfg": None}


def test_meters_load_under_their_old_name(state: State, tmp_path: Path) -> None:
    path = saved(with_meters(state), tmp_path, old=True)
    content = path.read_bytes()
    assert b"fairseq.logging.meters" in content
    path.write_bytes(content.replace(b"fairseq.logging.meters", b"fairseq.meters"))
    found = load_checkpoint(str(path))["extra_state"]
    assert found["train_meters"]["train_loss"].avg == 2.5
    assert found["counts"] == {"a": [1]} and type(found["counts"]) is dict


def test_a_row_that_the_model_removes_is_no_other_dictionary(data: Path, tmp_path: Path) -> None:
    """BART was trained with ``<mask>``, which the dictionaries of its fine-tuned models lack."""
    state = torch.load(data / "bart.pt", weights_only=True)
    for name in list(state["model"]):
        if "embed_tokens" in name or "output_projection" in name:
            weight = state["model"][name]
            state["model"][name] = torch.cat([weight, weight[:1]])
    path = saved(state, tmp_path)
    assert outputs(path, data) == outputs(data / "bart.pt", data)


def test_another_dictionary_is_named(state: State, data: Path, tmp_path: Path) -> None:
    for side in ("encoder", "decoder"):
        name = f"{side}.embed_tokens.weight"
        state["model"][name] = torch.cat([state["model"][name]] * 2)
    path = saved(state, tmp_path)
    said = (
        rf"^{path} was trained with a source dictionary of \d+ types, but the one in {data} has \d+"
    )
    with pytest.raises(CheckpointError, match=said):
        outputs(path, data)
    with pytest.raises(CheckpointError, match=said):
        from_pretrained([data / "model.pt", path], data, device="cpu")


# -- aggdec upgrade-checkpoint


class Optimizer:
    """Of a module that is gone."""


def with_foreign(state: State) -> State:
    module = types.ModuleType("gone.optim")
    kind = type(
        "Optimizer", (Optimizer,), {"__module__": "gone.optim", "__qualname__": "Optimizer"}
    )
    vars(module)["Optimizer"] = kind
    sys.modules |= {"gone": types.ModuleType("gone"), "gone.optim": module}  # only to be pickled
    made = kind()
    made.steps = 3
    state["last_optimizer_state"] = {"object": made, "steps": 3}
    return state


def without_entries(state: State) -> State:
    return {name: state[name] for name in ("cfg", "model")}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (with_foreign, "left out last_optimizer_state.object: gone.optim.Optimizer"),
        (without_entries, "added extra_state"),
        (
            with_meters,
            "left out extra_state.train_meters.train_loss: fairseq.logging.meters.Average",
        ),
        (as_omegaconf, "nothing had to change"),
        (as_old_options, "nothing had to change"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
@pytest.mark.parametrize("old", [False, True], ids=["archive", "old format"])
def test_an_upgraded_file_loads(
    make: Callable[[State], State],
    said: str,
    old: bool,
    state: State,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, new = saved(make(state), tmp_path, old), tmp_path / "new.pt"
    before = path.read_bytes()
    for module in ("gone", "gone.optim"):
        sys.modules.pop(module, None)
    if make in (with_foreign, without_entries):
        with pytest.raises(CheckpointError, match=f"aggdec upgrade-checkpoint {path} NEW.pt"):
            load_checkpoint(str(path))
    upgrade_checkpoint.main([str(path), str(new)])
    assert said in capsys.readouterr().out
    assert path.read_bytes() == before
    assert outputs(new, data) == outputs(data / "model.pt", data)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.pt", "old.pt"]
    torch.serialization.clear_safe_globals()
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(str(new))
    finally:
        register_safe_globals()
    assert set(names) <= {"argparse.Namespace"}


class Calls:
    def __init__(self, function: Any, *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("old", [False, True], ids=["archive", "old format"])
def test_upgrading_runs_nothing(old: bool, state: State, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    code = f"open({str(trace)!r}, 'w')"
    state["extra_state"]["a"] = Calls(eval, code)
    state["extra_state"][Calls(exec, code)] = 1
    state["extra_state"]["b"] = [Calls(getattr, Calls(__import__, "os"), "system"), 2]
    path, new = saved(state, tmp_path, old), tmp_path / "new.pt"
    upgrade_checkpoint.main([str(path), str(new)])
    found = check_checkpoint(str(new))
    assert found is not None and found["extra_state"].keys() == {"train_iterator", "b"}
    assert found["extra_state"]["b"] == [2]
    assert not trace.exists()


def foreign_system(state: State) -> State:
    return state | {"x": Calls(__import__("os").system, "true")}


def evaluated(state: State) -> State:
    return state | {"cfg": state["cfg"] | {"model": {"encoder_layers": "exit()"}}}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (foreign_system, "names functions of the operating system"),
        (evaluated, "its option model.encoder_layers is no plain value"),
        (lambda state: state | {"cfg": None}, "does not say which model it holds"),
        (lambda state: {"weight": torch.ones(1)}, "was not written by fairseq"),
        (lambda state: [1], "was not written by fairseq"),
    ],
    ids=range(5),
)
def test_what_cannot_be_upgraded_is_refused(
    make: Callable[[State], Any], said: str, state: State, tmp_path: Path
) -> None:
    path = saved(make(state), tmp_path)
    with pytest.raises(CheckpointError, match=f"^{path} .*{said}"):
        upgrade_checkpoint.main([str(path), str(tmp_path / "new.pt")])
    assert [p.name for p in tmp_path.iterdir()] == ["old.pt"]


def test_the_copy_is_a_new_file(state: State, tmp_path: Path) -> None:
    path = saved(state, tmp_path)
    with pytest.raises(SystemExit, match=r"old\.pt exists"):
        upgrade_checkpoint.main([str(path), str(path)])
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        upgrade_checkpoint.main([str(tmp_path / "none.pt"), str(tmp_path / "new.pt")])
    (tmp_path / "text.pt").write_bytes(pickle.dumps("text"))
    with pytest.raises(CheckpointError, match=r"text\.pt cannot be read"):
        upgrade_checkpoint.main([str(tmp_path / "text.pt"), str(tmp_path / "new.pt")])


# -- the task of a checkpoint


def of_task(name: str) -> State:
    return {"cfg": {"task": {"_name": name}}}


class OwnLoss(TranslationTask):
    """Changes training only."""

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().train_step(*args, **kwargs)


class OwnStart(TranslationTask):
    def inference_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().inference_step(*args, **kwargs)


class Derived(TranslationAggdecTask):
    """A task of ours with another criterion, say."""


class DerivedStart(TranslationAggdecTask):
    def inference_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().inference_step(*args, **kwargs)


@pytest.mark.parametrize(
    ("own", "outcome"),
    [
        ("translation", ""),
        ("translation_aggdec", ""),
        ("own_loss", ""),
        ("derived", ""),
        ("own_start", "warned"),
        ("derived_start", "warned"),
        ("unknown", "warned"),
        ("translation_multi_simple_epoch", "refused"),
        ("translation_from_pretrained_bart", "refused"),
        ("translation_lev", "refused"),
        ("multilingual_translation", "refused"),
        ("semisupervised_translation", "refused"),
        ("speech_to_text", "refused"),
        ("denoising", "refused"),
        ("language_modeling", "refused"),
    ],
)
def test_a_checkpoint_of_another_task(
    own: str, outcome: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    others = {"own_loss": OwnLoss, "own_start": OwnStart}
    for name, task in {**others, "derived": Derived, "derived_start": DerivedStart}.items():
        monkeypatch.setitem(TASK_REGISTRY, name, task)
    said = f"a.pt was trained with --task {own}, which is not --task translation_aggdec"
    for state in (of_task(own), {"args": argparse.Namespace(task=own)}):
        if outcome == "refused":
            with pytest.raises(CheckpointError, match=f"^{said}.*decode it with --task {own}\\.$"):
                check_task(state, "a.pt", "translation_aggdec")
        else:
            check_task(state, "a.pt", "translation_aggdec")
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == (2 if outcome == "warned" else 0)
    assert all(said in warning for warning in warnings)


def test_a_derived_task_decodes_its_own_and_what_translation_trained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for own in ("derived_start", "translation", "translation_aggdec"):
        check_task(of_task(own), "a.pt", "translation_aggdec", "derived_start")
    assert not [r for r in caplog.records if r.levelno == logging.WARNING]


def test_images_and_texts_are_other_tasks() -> None:
    check_task(of_task("super_resolution"), "a.pt", "super_resolution")
    with pytest.raises(CheckpointError, match="--task translation, which is not --task super_res"):
        check_task(of_task("translation"), "a.pt", "super_resolution")
    check_task({"args": argparse.Namespace(arch="x")}, "a.pt", "translation_aggdec")  # the oldest


def test_another_task_is_refused_by_the_python_interface(
    state: State, data: Path, tmp_path: Path
) -> None:
    state["cfg"]["task"]["_name"] = "semisupervised_translation"
    with pytest.raises(CheckpointError, match="trained with --task semisupervised_translation"):
        outputs(saved(state, tmp_path), data)


@pytest.mark.parametrize("stored", ["ab", (None, None)])  # else the data folder tells the direction
@pytest.mark.parametrize(("languages", "warned"), [("ba", 1), ("ab", 0), ("aa", 0), ("xy", 0)])
def test_a_model_of_the_opposite_direction_is_named(
    languages: str, warned: int, stored: Any, state: State, tmp_path: Path, caplog: Any
) -> None:
    state["cfg"]["task"].update(zip(("source_lang", "target_lang"), stored, strict=True))
    (tmp_path / "test.a-b.a.bin").touch()
    source, target = languages
    given = argparse.Namespace(source_lang=source, target_lang=target, data=str(tmp_path))
    check_direction(given, {"model.pt": state})
    said = "model.pt was trained from a to b, but decodes from b to a: exchange --source-lang"
    assert caplog.text.count(said) == caplog.text.count("exchange") == warned


@pytest.mark.parametrize("text", ["print(1)", "[1]", "{", "{'a': open('x')}", "(" * 9999])
def test_overrides_are_plain_values(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--model-overrides .*dictionary of plain values"):
        check_overrides(text)
    check_overrides("{}")
    check_overrides("{'encoder_layers': 6, 'bpe': {'_name': 'gpt2'}}")
