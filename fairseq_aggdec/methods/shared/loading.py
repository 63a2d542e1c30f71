"""Loading verifiers and drafters by role: what cannot work is refused in one sentence, before any model is built."""

from collections.abc import Mapping
from typing import Any

from fairseq.tasks import FairseqTask

from fairseq_aggdec.models.base_checkpoint import MASK_EMBEDDING
from fairseq_aggdec.models.nar_drafter import NarDrafterModel
from fairseq_aggdec.packed.folder import open_model
from fairseq_aggdec.stored.checkpoints import builds_no_translation, load_model
from fairseq_aggdec.stored.loading import CheckpointError
from fairseq_aggdec.stored.options import option as option_of


def load_drafter(path: str, task: FairseqTask, option: str = "--drafter-path") -> NarDrafterModel:
    """The drafter in a checkpoint, in evaluation mode on the CPU; ``option`` named the file, for messages.

    Args:
        path: a checkpoint, or a folder of ``aggdec pack``, whose packed weights the drafter then uses.

    Raises:
        FileNotFoundError, CheckpointError: no file, no drafter, or one of other data.
    """
    _check_kind(path, task, option)
    files = open_model(path)
    path, state = files.checkpoint, files.load()
    if MASK_EMBEDDING not in state["model"]:
        raise CheckpointError(
            f"{option} {path} is no drafter: name one trained with --arch nar_drafter there, and the verifier with "
            "--path."
        )
    _check_dictionaries(state["model"], path, task, option)
    drafter: NarDrafterModel = _build(state, path, task, option)
    files.attach(drafter)
    files.check()
    return drafter


def load_verifier(path: str, task: FairseqTask, option: str) -> Any:
    """The verifier in a checkpoint; as :func:`load_drafter`, with the roles exchanged."""
    files = open_model(path)
    path, state = files.checkpoint, files.load()
    if MASK_EMBEDDING in state["model"]:
        raise CheckpointError(f"{option} {path} is a drafter: name the verifier there.")
    verifier = _build(state, path, task, option)
    files.attach(verifier)
    return verifier


def _build(state: dict[str, Any], path: str, task: FairseqTask, option: str) -> Any:
    _check_languages(state, path, task, option)
    return load_model(path, state, task, option).eval()


def _check_kind(path: str, task: FairseqTask, option: str) -> None:
    kind = getattr(task, "kind", "translation")
    if builds_no_translation(kind):
        raise CheckpointError(
            f"{option} {path}: --task {kind} builds other models and has no drafters: use --decoding beam or greedy."
        )


def _check_languages(state: Mapping[str, Any], path: str, task: FairseqTask, option: str) -> None:
    settings = getattr(task, "settings", task.cfg)
    for side in ("source_lang", "target_lang"):
        there, here = option_of(state, f"task.{side}"), getattr(settings, side, None)
        if there and here and there != here:
            raise CheckpointError(
                f"{option} {path} was trained with --{side.replace('_', '-')} {there}, not {here}."
            )


def _check_dictionaries(
    parameters: Mapping[str, Any], path: str, task: FairseqTask, option: str
) -> None:
    dictionaries = {"encoder": task.source_dictionary, "decoder": task.target_dictionary}
    for part, dictionary in dictionaries.items():
        table = parameters.get(f"{part}.embed_tokens.weight")
        if table is not None and len(table) != len(dictionary):
            side = "source" if part == "encoder" else "target"
            raise CheckpointError(
                f"{option} {path} was trained with a {side} dictionary of {len(table)} types, the data's has "
                f"{len(dictionary)}."
            )
