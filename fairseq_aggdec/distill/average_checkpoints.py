"""Averages fairseq checkpoints into one that only decodes."""

import argparse
from pathlib import Path
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor

import fairseq_aggdec  # noqa: F401  (registers what weights-only loading may accept)
from fairseq_aggdec.records import results
from fairseq_aggdec.stored import progress


def average(models: list[dict[str, Tensor]], half: bool) -> dict[str, Tensor]:
    """The mean of floating-point entries, computed in fp64; the first model's for all others.

    Entries that share memory (embeddings tied to the output) share it afterwards too: stored once.
    """
    first = models[0]
    for other in models[1:]:
        if other.keys() != first.keys():
            raise SystemExit("error: the checkpoints hold different parameters")
    means: dict[int, Tensor] = {}
    for name, value in progress.passing(first.items(), "averaging", " tensors"):
        if value.is_floating_point() and value.data_ptr() not in means:
            stacked = torch.stack([model[name].double() for model in models])
            means[value.data_ptr()] = stacked.mean(0).to(torch.float16 if half else value.dtype)
    return {
        name: means[value.data_ptr()] if value.is_floating_point() else value
        for name, value in first.items()
    }


def without_folders(options: Any) -> Any:
    """Options in plain containers, absolute paths cut to their last part: a file to give away.

    Stock fairseq loads it under every PyTorch, without a plugin: a weights-only load takes a
    dictionary, but not the namespace that fairseq-train writes for most models.
    """
    if isinstance(options, argparse.Namespace):
        return without_folders(vars(options))
    if isinstance(options, dict):
        return {name: without_folders(value) for name, value in options.items()}
    if isinstance(options, list):
        return [without_folders(value) for value in options]
    # fairseq joins several paths by colons
    if isinstance(options, str) and options.startswith("/"):
        return ":".join(Path(part).name for part in options.split(":"))
    return options


def plain(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a run, :func:`without_folders`.

    fairseq hands the model's dictionary to the architecture, which drops what is not an option of fairseq itself. Those
    of the plugin, which have such options and are only loaded with it, get a namespace as from ``fairseq-train``.
    """
    plain_options: dict[str, Any] = without_folders(options)
    model = plain_options["model"]
    owner = ARCH_MODEL_REGISTRY.get(model.get("arch", model.get("_name")))
    if owner is not None and owner.__module__.startswith("fairseq_aggdec."):
        plain_options["model"] = argparse.Namespace(**model)
    return plain_options


def write(path: Path, model: dict[str, Tensor], options: dict[str, Any], trained: Any) -> None:
    """A checkpoint that can be loaded but not trained further: `trained` is the state of one that was trained."""
    kept = {"cfg": options, "args": None, "model": model}
    # Loading looks at these, though only training would use them.
    kept |= {"optimizer_history": trained["optimizer_history"], "last_optimizer_state": None}
    kept["extra_state"] = {"train_iterator": trained["extra_state"]["train_iterator"]}
    results.write(path, lambda partial: progress.save(kept, partial))
