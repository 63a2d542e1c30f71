"""Transformers of some sizes with random weights, for measurements of time and for tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from fairseq_aggdec.bench.recording import Record


@dataclass(frozen=True)
class Size:
    """Layers of encoder and of decoder, width, hidden units, attention heads, types of the dictionary."""

    layers: int
    dim: int
    hidden: int
    heads: int
    types: int

    def flags(self) -> list[str]:
        """The same as flags of any Transformer architecture."""
        found = []
        for side in ("encoder", "decoder"):
            found += [f"--{side}-layers={self.layers}", f"--{side}-embed-dim={self.dim}"]
            found += [f"--{side}-ffn-embed-dim={self.hidden}"]
            found += [f"--{side}-attention-heads={self.heads}"]
        return found


SIZES = {
    "tiny": Size(1, 32, 64, 2, 100),  # for tests
    "small": Size(3, 256, 1024, 4, 8120),  # that of the Multi30k recipe
    "base": Size(6, 512, 2048, 8, 32768),
    "big": Size(6, 1024, 4096, 16, 32768),
    "large": Size(12, 1024, 4096, 16, 256206),  # that of NLLB with 600 million parameters
}

# Drafters as the paper has them at these sizes.
DRAFTERS = {"base": "nar_drafter_base", "big": "nar_drafter_big"}
SHARED = "--share-all-embeddings"
SOURCE, TARGET, SPLIT = "source", "target", "test"


def prepare(
    folder: Path,
    size: str,
    records: Sequence[Record],
    drafter: Sequence[str] | None = None,
    heads: bool = False,
    more: Sequence[str] = (),
) -> list[str]:
    """Writes dictionaries, sources and random checkpoints; returns the arguments by which fairseq finds them.

    Args:
        folder: is made.
        size: one of :data:`SIZES`.
        records: whose sources have the lengths of those that are written.
        drafter: make a non-autoregressive drafter as well, with these options, for blocks as long as the longest
            recorded draft; None for no drafter.
        heads: the model gets per-head layers for such blocks, four times its width each, all of them learned.
        more: options of the model's architecture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = SIZES[size]
    dictionary = Dictionary()
    words = sizes.types - len(dictionary)
    for index in range(words):
        dictionary.add_symbol(f"w{index}")
    for side in (SOURCE, TARGET):
        dictionary.save(str(folder / f"dict.{side}.txt"))
    generator = random.Random(1)
    lines = (
        " ".join(f"w{generator.randrange(words)}" for _ in record.source[:-1]) for record in records
    )
    source = folder / f"{SPLIT}.{SOURCE}-{TARGET}.{SOURCE}"
    source.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    checkpoint = folder / f"{size}.pt"
    longest = max((len(i.drafted) for record in records for i in record.iterations), default=0)
    if heads:
        layers = ["--head-layout", "per-head", "--head-hidden-dim", str(4 * sizes.dim)]
        layers += ["--block-size", str(longest + 1)]
        write_checkpoint(
            checkpoint, folder, "blockwise_transformer", *sizes.flags(), SHARED, *layers, *more
        )
    else:
        write_checkpoint(checkpoint, folder, "transformer", *sizes.flags(), SHARED, *more)
    arguments = data_arguments(folder, checkpoint)
    if drafter is not None:
        path = folder / f"{size}-drafter.pt"
        arch = DRAFTERS.get(size, "nar_drafter")
        shared = ("--share-verifier-encoder", str(checkpoint), "--share-decoder-input-output-embed")
        block = ("--block-size", str(max(1, longest)))
        write_checkpoint(path, folder, arch, *sizes.flags(), *shared, *block, *drafter)
        arguments += ["--drafter-path", str(path)]
    return arguments


def data_arguments(folder: Path, checkpoint: Path) -> list[str]:
    """Command line for a folder of text lines that are tokenised already."""
    return [
        str(folder),
        *("--source-lang", SOURCE, "--target-lang", TARGET, "--gen-subset", SPLIT),
        *("--path", str(checkpoint), "--dataset-impl", "raw"),
    ]


def write_checkpoint(path: Path, data: Path, arch: str, *flags: str, seed: int = 1) -> None:
    """A freshly initialised model in a file as fairseq-train would write it, without the optimiser."""
    parser = options.get_training_parser(default_task="translation")
    args = options.parse_args_and_arch(
        parser,
        input_args=[
            str(data),
            *("--source-lang", SOURCE, "--target-lang", TARGET),
            *("--arch", arch, *flags),
        ],
    )
    config = convert_namespace_to_omegaconf(args)
    torch.manual_seed(seed)
    model = tasks.setup_task(config.task).build_model(config.model)
    container: dict[str, Any] = OmegaConf.to_container(config, resolve=True, enum_to_str=True)  # type: ignore[assignment]
    state = {"args": None, "cfg": container, "model": model.state_dict()}
    # Loading looks at these too.
    state |= {
        "optimizer_history": [{"best_loss": 0.0, "lr_scheduler_state": {}}],
        "last_optimizer_state": None,
    }
    state["extra_state"] = {"train_iterator": {"epoch": 1}}
    torch.save(state, path)
