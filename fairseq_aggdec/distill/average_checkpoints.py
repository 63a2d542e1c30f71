"""Average fairseq checkpoints into one that only decodes: no optimiser state, optionally half precision.

    aggdec average-checkpoints --output model.pt checkpoint_1.pt checkpoint_2.pt ...

The result loads with plain fairseq-generate (and as --finetune-from-model); training cannot resume from it.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

import fairseq_aggdec  # noqa: F401  (registers what weights-only loading may accept)
from fairseq_aggdec.compat import load_checkpoint
from fairseq_aggdec.records import results


def average(models: list[dict[str, Tensor]], half: bool) -> dict[str, Tensor]:
    """The mean of floating-point entries, computed in fp64; the first model's for all others.

    Entries that share memory (embeddings tied to the output) share it afterwards too: stored once.
    """
    first = models[0]
    for other in models[1:]:
        if other.keys() != first.keys():
            raise SystemExit("error: the checkpoints hold different parameters")
    means: dict[int, Tensor] = {}
    for name, value in first.items():
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
    found: dict[str, Any] = without_folders(options)
    model = found["model"]
    owner = ARCH_MODEL_REGISTRY.get(model.get("arch", model.get("_name")))
    if owner is not None and owner.__module__.startswith("fairseq_aggdec."):
        found["model"] = argparse.Namespace(**model)
    return found


def write(path: Path, model: dict[str, Tensor], options: dict[str, Any], trained: Any) -> None:
    """A checkpoint that can be loaded but not trained further: `trained` is the state of one that was trained."""
    kept = {"cfg": options, "args": None, "model": model}
    # Loading looks at these, though only training would use them.
    kept |= {"optimizer_history": trained["optimizer_history"], "last_optimizer_state": None}
    kept["extra_state"] = {"train_iterator": trained["extra_state"]["train_iterator"]}
    results.write(path, lambda partial: torch.save(kept, partial))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--half", action="store_true", help="store parameters in fp16")
    return parser


def main() -> None:
    args = build_parser().parse_args()
    states = [load_checkpoint(str(path)) for path in args.checkpoints]
    model = average([state["model"] for state in states], args.half)
    options: Any = OmegaConf.to_container(states[-1]["cfg"], resolve=True, enum_to_str=True)
    write(args.output, model, plain(options), states[-1])


if __name__ == "__main__":
    main()
