"""Checks of the checkpoints a command names, before fairseq decodes with them: one sentence each.

What a file holds is checked before fairseq loads it. Whether its embeddings fit the dictionaries shows when the model
is there and has brought the file's parameters into its own form: some files have rows that the model itself removes.
"""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omegaconf.errors import OmegaConfBaseException

from fairseq_aggdec.stored.loading import CheckpointError, checked_model
from fairseq_aggdec.stored.one_copy import OneCopy
from fairseq_aggdec.stored.options import check_names, option, printable

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

EMBEDDINGS = {
    "source": ("encoder.embed_tokens.weight", "--source-lang"),
    "target": ("decoder.embed_tokens.weight", "--target-lang"),
}
# Tasks whose sources, start tokens and dictionaries are those of fairseq's translation.
AGGDEC = "translation_aggdec"
AS_TRANSLATION = {"translation", AGGDEC}
# Methods by which a task decides these.
DECIDING = (
    "build_dataset_for_inference",
    "build_generator",
    "build_model",
    "inference_step",
    "load_dataset",
    "load_dictionary",
    "setup_task",
)
LANGUAGE_TOKENS = ("encoder_langtok", "decoder_langtok", "langs")


def check_files(
    cfg: Any, kind: str, chosen: bool = False, known: Mapping[str, Mapping[Any, Any]] | None = None
) -> dict[str, Mapping[Any, Any]]:
    """Checks what a task's configuration says about checkpoints: ``--path``, ``--lm-path``, ``--model-overrides``.

    Args:
        cfg: of the task.
        kind: the task of the plugin that it is, or is derived from.
        chosen: a task of fairseq, which the user has named: it decodes other tasks' checkpoints as stock does, and a
            warning says so.
        known: file of ``--path`` -> its state, where it has been read and checked by :func:`load_checkpoint`.

    Returns:
        file of ``--path`` -> its state.

    Raises:
        CheckpointError: a file that must not be loaded, or is of another task.
        ValueError: overrides that are no dictionary of plain values.
    """
    overrides = named(cfg, "model_overrides")
    if overrides is not None:
        check_overrides(overrides)
    paths = named(cfg, "model_paths", "path")
    states = check_models(paths, kind, getattr(cfg, "_name", None), chosen, known)
    language_model = named(cfg, "lm_path")
    if language_model is not None and (state := checked_model(language_model)) is not None:
        check_names(state, f"--lm-path {language_model}")
    return states


def named(cfg: Any, *names: str) -> str | None:
    """The first text that a task's configuration holds under one of these names, which it may take from another
    section; None where there is no such section."""
    for name in names:
        try:
            value = getattr(cfg, name, None)
        except OmegaConfBaseException:
            continue
        if isinstance(value, str) and not value.startswith("${"):
            return value
    return None


def number_of(cfg: Any, name: str) -> int | None:
    """A whole number that a task's configuration holds, which it may take from another section; or None."""
    try:
        value = getattr(cfg, name, None)
    except OmegaConfBaseException:
        return None
    return value if type(value) is int else None


def check_overrides(text: str) -> None:
    """Raises ``ValueError`` unless ``--model-overrides`` is a dictionary of plain values."""
    try:
        overrides = ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        overrides = None
    if not isinstance(overrides, dict):
        raise ValueError(
            f"--model-overrides {printable(text)}: it must be a dictionary of plain values, such as "
            "\"{'dropout': 0.1}\""
        )


def check_models(
    paths: str | None,
    kind: str,
    name: str | None = None,
    chosen: bool = False,
    known: Mapping[str, Mapping[Any, Any]] | None = None,
) -> dict[str, Mapping[Any, Any]]:
    """The states of the files of ``--path``.

    Raises:
        CheckpointError: a file cannot be decoded with the task.
    """
    from fairseq.utils import split_paths

    states = {}
    for path in split_paths(paths) if paths else ():
        state = (known or {}).get(path) or checked_model(path)
        if state is None:
            continue
        check_task(state, path, kind, name, chosen)
        check_names(state, path)
        if not chosen and not any(name.startswith("encoder.") for name in state["model"]):
            raise CheckpointError(
                f"{path} has no encoder: this task decodes encoder-decoder models."
            )
        states[path] = state
    return states


def check_direction(cfg: Any, states: Mapping[str, Mapping[Any, Any]]) -> None:
    """Warns of a model that was trained in the opposite direction: with a joint dictionary nothing else shows it.

    A checkpoint that stores no languages was trained in the direction of its data folder.

    Args:
        cfg: of a translation task, after ``setup_task``, which infers languages that are not named.
        states: of the models, by their files.
    """
    here = [named(cfg, f"{side}_lang") for side in EMBEDDINGS]
    for path, state in states.items():
        there = [option(state, f"task.{side}_lang", f"{side}_lang") for side in EMBEDDINGS]
        if there == [None, None]:
            there = list(of_folder(cfg))
        if None not in here and there == here[::-1] != here:
            logger.warning(
                "%s was trained from %s to %s, but decodes from %s to %s: exchange --source-lang and --target-lang, "
                "unless it knows both directions",
                *(path, *there, *here),
            )


def of_folder(cfg: Any) -> tuple[str | None, str | None]:
    """The languages that fairseq takes where none are named: those of the first file of the data folder."""
    from fairseq.data.data_utils import infer_language_pair

    folder = str(named(cfg, "data") or "").split(os.pathsep)[0]
    source, target = infer_language_pair(folder) if os.path.isdir(folder) else (None, None)
    return source, target


def check_named(codes: Sequence[str | None], cfg: Any) -> None:
    """Raises ``ValueError`` for a language that fairseq has replaced, because only one of the two was named."""
    for side, code in zip(EMBEDDINGS, codes, strict=True):
        taken = named(cfg, f"{side}_lang")
        if code not in (None, taken):
            raise ValueError(
                f"--{side}-lang {code}: fairseq takes {taken}, as the data folder has it, unless both languages are "
                "named: add the other one"
            )


def check_task(
    state: Mapping[str, Any], path: str, kind: str, name: str | None = None, chosen: bool = False
) -> None:
    """Raises :class:`CheckpointError` if a checkpoint belongs to a task that prepares or starts sentences otherwise.

    A task of somebody else's that we cannot judge gets a warning.

    Args:
        kind: the task of the plugin that is to decode it.
        name: of that task, where it is one that somebody derived.
        chosen: by the user, who gets a warning where stock fairseq would decode it too.
    """
    trained = option(state, "task._name", "task") or "translation"
    if trained in (kind, name) or {trained, kind} <= AS_TRANSLATION:
        return
    difference = _difference(trained) if kind in AS_TRANSLATION else "another task"
    if difference is None:
        return
    said = f"{path} was trained with --task {trained}, which is not --task {name or kind} ({difference})"
    if builds_no_translation(kind) and trained in AS_TRANSLATION:
        raise CheckpointError(
            f"{said}: that task builds other models, so decode it with --task {trained}."
        )
    if difference == UNKNOWN or chosen:
        logger.warning("%s: compare its outputs with those of --task %s", said, trained)
        return
    raise CheckpointError(
        f"{said}: its outputs would be wrong, so decode it with --task {trained}."
    )


def builds_no_translation(kind: str) -> bool:
    """Tells whether a task of fairseq cannot build a model of its translation task: for many languages, or for
    speech."""
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
    from fairseq.tasks.speech_to_text import SpeechToTextTask

    return issubclass(
        TASK_REGISTRY.get(kind, object), (MultilingualTranslationTask, SpeechToTextTask)
    )


UNKNOWN = "this package does not know how it prepares its sentences"


def _difference(trained: str) -> str | None:
    """Tells how a task differs from fairseq's translation in decoding; None where it does not."""
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.translation import TranslationTask

    task = TASK_REGISTRY.get(trained)
    if task is None:
        return UNKNOWN
    task = getattr(task, "taken_over", None) or task
    if issubclass(task, TranslationTask):
        plain = TranslationTask, TASK_REGISTRY[AGGDEC]
        for name in DECIDING:
            if _function(task, name) not in [_function(one, name) for one in plain]:
                difference = f"it has its own {name}"
                break
        else:
            return None
    else:
        difference = "it prepares its sentences otherwise"
    stock = task.__module__.startswith(("fairseq.", "fairseq_aggdec."))
    return difference if stock else UNKNOWN


def _function(owner: type, name: str) -> Any:
    method = getattr(owner, name)
    return getattr(method, "__func__", method)


def check_built(cfg: Any, path: str) -> None:
    """Raises :class:`CheckpointError` if the options of a model belong to another task than translation.

    Models of older kinds keep all options of their training there; fairseq's hub replaces the task's name.
    """
    tokens = [name for name in LANGUAGE_TOKENS if getattr(cfg, name, None)]
    if tokens:
        raise CheckpointError(
            f"{path} was trained with --{tokens[0].replace('_', '-')}, so with language tokens that this task does "
            "not add: decode it with the task that it was trained with."
        )


def check_when_loaded(model: nn.Module, task: Any, data: str | None, path: str) -> None:
    """Has a model that is fresh from being built raise :class:`CheckpointError`, once, if its parameters do not fit.

    Args:
        task: has the dictionaries. data: their folder, and path: of the checkpoint, for the message.
    """

    def check(_: nn.Module, state: Mapping[str, Any], *rest: Any) -> None:
        handle.remove()
        built = model.state_dict()
        for side, (name, language) in EMBEDDINGS.items():
            if name in state and name in built and len(state[name]) != len(built[name]):
                types = len(getattr(task, f"{side}_dictionary"))
                raise CheckpointError(
                    f"{path} was trained with a {side} dictionary of {len(state[name])} types, but the one in {data} "
                    f"has {types}: name the data folder it was trained on, and check {language}."
                )

        for name, tensor in built.items():
            if name in state and state[name].shape != tensor.shape:
                shape, wanted = (tuple(one.shape) for one in (state[name], tensor))
                raise unfitting(path, f"{name} has the shape {shape}, not {wanted}")

    handle = model.register_load_state_dict_pre_hook(check)


UNFIT = ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError


def unfitting(path: str, reason: object) -> CheckpointError:
    """The error of a checkpoint whose options build another model than its parameters are of, or none."""
    said = str(reason).strip().split("\n")[0]
    return CheckpointError(
        f"{path} is damaged or was edited: its options and its parameters do not fit ({printable(said)})."
    )


def load_model(path: str, state: Mapping[str, Any], task: Any, option: str = "") -> Any:
    """The model in the state of a checkpoint that has been checked; ``option`` named the file.

    Raises:
        CheckpointError: the model has other dictionaries than the task, or an architecture that is not registered.
    """
    from fairseq import checkpoint_utils

    check_names(state, f"{option} {path}".strip())
    try:
        with OneCopy():
            (model,), _ = checkpoint_utils.load_model_ensemble([path], task=task, state=state)
    except CheckpointError as error:
        raise CheckpointError(f"{option} {error}".strip()) from None
    except UNFIT as error:
        raise unfitting(f"{option} {path}".strip(), error) from error
    return model


def path_of(paths: str | None, number: int) -> str:
    """The file that the model of that number comes from: fairseq builds those of ``--path`` in order."""
    from fairseq.utils import split_paths

    files: Sequence[str] = split_paths(paths) if paths else ()
    return files[number] if number < len(files) else "the checkpoint"
