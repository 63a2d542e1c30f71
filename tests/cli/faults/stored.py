"""What a checkpoint holds beside weights: options that are code, options of another task, objects of old versions."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.logging import meters

from fairseq_aggdec.stored.nodes import configuration
from tests.cli.faults.bench import REFUSED, WARNED, WORKS, Bench, Case
from tests.cli.faults.files import Calls, python
from tests.cli.faults.options import GENERATE, method

State = dict[str, Any]
Make = Callable[[Bench, Path], None]


def edited(name: str, edit: Callable[[State, Path], Any], old: bool = False) -> Make:
    """A checkpoint of the bench with something changed, as ``evil.pt``."""

    def make(bench: Bench, tmp: Path) -> None:
        state = torch.load(bench.path(name), weights_only=True)
        changed = edit(state, tmp)
        whole = state if changed is None else changed
        torch.save(whole, tmp / "evil.pt", _use_new_zipfile_serialization=not old)

    return make


def of_the_model(state: State) -> dict[str, Any]:
    """The options of the model, to be changed in place."""
    model = state["cfg"]["model"]
    return vars(model) if isinstance(model, argparse.Namespace) else model


def code(tmp: Path) -> str:
    return f"[{python(tmp).removesuffix('.close()')}]"


def with_option(name: str, value: Callable[[Path], Any] = code) -> Callable[[State, Path], None]:
    def edit(state: State, tmp: Path) -> None:
        of_the_model(state)[name] = value(tmp)

    return edit


def with_older_options(state: State, tmp: Path) -> State:
    options = of_the_model(state) | {"task": "translation", "arch": "transformer"}
    options = {name: value for name, value in options.items() if not name.startswith("_")}
    return state | {"cfg": None, "args": argparse.Namespace(**options)}


def older(name: str) -> Callable[[State, Path], State]:
    def edit(state: State, tmp: Path) -> State:
        with_option(name)(state, tmp)
        return with_older_options(state, tmp)

    return edit


def fully_convolutional(state: State, tmp: Path) -> None:
    of_the_model(state).update(arch="fconv", _name="fconv", encoder_layers=code(tmp))


def interpolated(state: State, tmp: Path) -> None:
    of_the_model(state)["adaptive_softmax_cutoff"] = "${common.hidden}"
    state["cfg"]["common"]["hidden"] = code(tmp)


def in_omegaconf(state: State, tmp: Path) -> State:
    with_option("adaptive_softmax_cutoff")(state, tmp)
    return as_omegaconf(state, tmp)


def as_omegaconf(state: State, tmp: Path) -> State:
    return state | {"cfg": configuration(state["cfg"])}


def as_array(tmp: Path) -> Any:
    return np.frombuffer(code(tmp).encode(), dtype=np.uint8).copy()


def meter_of(text: str) -> Any:
    found = meters.AverageMeter()
    vars(found)["adaptive_softmax_cutoff"] = text
    return found


CODE: dict[str, Callable[[State, Path], Any]] = {
    "adaptive_softmax_cutoff": with_option("adaptive_softmax_cutoff"),
    "bytes": with_option("adaptive_softmax_cutoff", lambda tmp: code(tmp).encode()),
    "an array of bytes": with_option("adaptive_softmax_cutoff", as_array),
    "behind an interpolation": interpolated,
    "older options": older("adaptive_softmax_cutoff"),
    "OmegaConf": in_omegaconf,
    "fconv": fully_convolutional,
    "the layers' attention": with_option("encoder_xformers_att_config"),
    "a meter among options": with_option("meter", lambda tmp: meter_of(code(tmp))),
    "options in options": with_option(
        "w2v_args", lambda tmp: argparse.Namespace(conv_feature_layers=code(tmp))
    ),
    "the environment": with_option("data", lambda tmp: "${oc.env:HOME}"),
    "a target of hydra": with_option("_target_", lambda tmp: "os.system"),
}


NUMBER = np.float64(0).__reduce__()[0]  # the function that numbers of NumPy are made by


def in_state(make: Callable[[], Any]) -> Callable[[State, Path], None]:
    def edit(state: State, tmp: Path) -> None:
        state["extra_state"]["x"] = make()

    return edit


def in_option(state: State, tmp: Path) -> None:
    of_the_model(state)["dropout"] = Calls(np.ndarray, (1,), "O", b"\1" * 8)


# Calls and states that make NumPy read or free memory of the file's choice.
MEMORY: dict[str, Callable[[State, Path], Any]] = {
    "an array at an address": in_state(lambda: Calls(np.ndarray, (1,), "O", b"\1" * 8)),
    "an option at an address": in_option,
    "a number at an address": in_state(lambda: Calls(NUMBER, np.dtype("O"), b"\1" * 8)),
    "an array of a size": in_state(lambda: Calls(np.ndarray, (2**40,))),
    "bytes of a size": in_state(lambda: Calls(bytes, 2**40)),
    "numbers of fields": in_state(lambda: np.zeros(1, "i4,O")),
}


def everywhere(group: str, edit: Callable[[State, Path], Any]) -> list[Case]:
    """A case for each kind of checkpoint and each command that reads one."""
    make, plain = edited("model", edit), method("greedy", "")
    drafter, lattice = edited("drafter", edit), edited("lattice", edit)
    found = []
    for command, options, one in (
        (GENERATE, method("gad", "").replace("{drafter}", "{tmp}/evil.pt"), drafter),
        (GENERATE, "--decoding lattice --path {tmp}/evil.pt --lattice {tables}", lattice),
        (GENERATE, f"{plain} --beam 2 --lm-path {{tmp}}/evil.pt", make),
        ("fairseq-interactive", plain.replace("{model}", "{tmp}/evil.pt"), make),
        ("fairseq-train", "--arch blockwise_transformer --base-checkpoint {tmp}/evil.pt", make),
        ("aggdec average-checkpoints", "DATA= --output {tmp}/new.pt {tmp}/evil.pt", make),
        ("scripts.recipes.grow", "DATA= {tmp}/evil.pt {tmp}/new.pt", make),
        ("aggdec distill", "--path {tmp}/evil.pt --output {tmp}/out", make),
        ("aggdec audit", "--path {tmp}/evil.pt --decoding greedy", make),
        ("aggdec upgrade-checkpoint", "DATA= {tmp}/evil.pt {tmp}/new.pt", make),
    ):
        names = [word for word in options.split() if word.startswith("--") and word != "--output"]
        title = " ".join((command, *names))
        found.append(Case(group, title, command, options, REFUSED, "evil.pt is refused", one))
    return found


def memory_cases() -> list[Case]:
    group, options = "memory of the process", method("greedy", "")
    options = options.replace("{model}", "{tmp}/evil.pt")
    found = [
        Case(group, f"{kind}, {form}", GENERATE, options, REFUSED, "evil.pt is refused", make)
        for kind, edit in MEMORY.items()
        for form, make in (
            ("archive", edited("model", edit)),
            ("old format", edited("model", edit, old=True)),
        )
    ]
    return found + everywhere(group, MEMORY["an array at an address"])


def code_cases() -> list[Case]:
    group = "code in options"
    found = []
    for number, (kind, edit) in enumerate(CODE.items()):
        path = ("{tmp}/evil.pt", "{model}:{tmp}/evil.pt")[number % 2]
        options = method("greedy", "").replace("{model}", path)
        old = number % 3 == 2
        make = edited("model", edit, old)
        found.append(Case(group, kind, GENERATE, options, REFUSED, "evil.pt is refused", make))
    make = edited("model", CODE["adaptive_softmax_cutoff"])
    found += everywhere(group, CODE["adaptive_softmax_cutoff"])
    # fairseq builds the checkpoint's own task here.
    options = "--path {tmp}/evil.pt"
    case = Case(group, "--path", "fairseq-validate", options, REFUSED, "is no plain value", make)
    found.append(case)
    for text in ("print(1)", "[1]", "{{'a':", "{{'dropout':open('x')}}"):
        options = method("greedy", f"--model-overrides {text}")
        title = f"--model-overrides {text}"
        found.append(Case(group, title, GENERATE, options, REFUSED, "--model-overrides"))
    return found


def with_folder(state: State, tmp: Path) -> None:
    """A run with a plugin stores its folder."""
    folder = tmp / "plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(python(tmp) + "\n")
    of_the_model(state)["user_dir"] = state["cfg"]["common"]["user_dir"] = str(folder)


def with_meters(state: State, tmp: Path) -> None:
    found = {"wall": meters.StopwatchMeter(), "loss": meters.AverageMeter()}
    state["extra_state"]["train_meters"] = collections.OrderedDict(found)


def without(name: str) -> Callable[[State, Path], State]:
    return lambda state, tmp: {key: value for key, value in state.items() if key != name}


def of_task(name: str) -> Callable[[State, Path], None]:
    def edit(state: State, tmp: Path) -> None:
        state["cfg"]["task"]["_name"] = name

    return edit


def as_meter(section: str) -> Callable[[State, Path], None]:
    def edit(state: State, tmp: Path) -> None:
        state["cfg"][section] = meters.AverageMeter()

    return edit


def other_cases() -> list[Case]:
    path = method("greedy", "").replace("{model}", "{tmp}/evil.pt")
    found = []
    for kind, edit in (
        ("a user_dir of its own", with_folder),
        ("meters", with_meters),
        ("OmegaConf", as_omegaconf),
        ("older options", with_older_options),
    ):
        for old in (False, True):
            name = f"{kind}, {'old format' if old else 'archive'}"
            make = edited("model", edit, old)
            found.append(Case("old checkpoints", name, GENERATE, path, WORKS, "", make))
    for name in ("extra_state", "optimizer_history", "cfg"):
        says = "has no entry"
        make = edited("model", without(name))
        found.append(Case("old checkpoints", f"no {name}", GENERATE, path, REFUSED, says, make))
    unregistered = with_option("_name", lambda tmp: "mine")
    found.append(
        Case(
            "old checkpoints",
            "an unknown architecture",
            GENERATE,
            path,
            REFUSED,
            "--arch mine",
            edited("model", unregistered),
        )
    )
    for task in (
        "translation_multi_simple_epoch",
        "translation_from_pretrained_bart",
        "multilingual_translation",
        "speech_to_text",
        "language_modeling",
    ):
        says = f"trained with --task {task}"
        make = edited("model", of_task(task))
        found.append(Case("other tasks", task, GENERATE, path, REFUSED, says, make))
    found.append(
        Case(
            "other tasks",
            "of somebody else",
            GENERATE,
            path,
            WARNED,
            "--task mine",
            edited("model", of_task("mine")),
        )
    )
    for section in ("model", "task"):
        make = edited("model", as_meter(section))
        says = f"its cfg.{section} is a AverageMeter, which holds no options"
        found.append(
            Case("other tasks", f"a meter as {section}", GENERATE, path, REFUSED, says, make)
        )
    langtok = edited("model", with_option("decoder_langtok", lambda tmp: True))
    found.append(
        Case(
            "other tasks", "language tokens", GENERATE, path, REFUSED, "--decoder-langtok", langtok
        )
    )
    return found


def cases() -> list[Case]:
    return [*memory_cases(), *code_cases(), *other_cases()]
