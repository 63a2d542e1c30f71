"""Replay: the iterations of a recorded run on models of other sizes with random weights.

What costs time in decoding is how many tokens each call reads and how many calls there are, not what the weights are.
So a model of Transformer-base or -big size gets sources of the recorded lengths, every system writes as many tokens as
the recorded output had, and the method's drafts are as long and as right as they were (see ``ReplayDrafter``). What
drafts with a model runs, too, at that size: a drafter with the verifier's encoder, or heads on the verifier.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.bench.recording_drafters import ReplayDrafter
from fairseq_aggdec.bench.sizes import SIZES

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
) -> list[str]:
    """Writes dictionaries, sources and random checkpoints; returns the arguments by which fairseq finds them.

    Args:
        folder: is made.
        size: one of :data:`SIZES`.
        records: what is to be replayed, done by the method itself: heads, for one, draft nothing at first.
        drafter: make a non-autoregressive drafter as well, with these options, for blocks as long as the longest
            recorded draft; None for no drafter.
        heads: the model gets per-head layers for such blocks, four times its width each, all of them learned.
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
            checkpoint, folder, "blockwise_transformer", *sizes.flags(), SHARED, *layers
        )
    else:
        write_checkpoint(checkpoint, folder, "transformer", *sizes.flags(), SHARED)
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


def lengths(records: Sequence[Record]) -> dict[int, int]:
    """Sentence of the replayed set -> tokens to write, ``</s>`` not counted."""
    return {index: len(record.output) - 1 for index, record in enumerate(records)}


def replay_drafter(session: Session, records: Sequence[Record]) -> ReplayDrafter:
    """The drafter for a session on a prepared folder; decodes the set once with our greedy to know what is right."""
    generator, _ = session.generator("greedy")
    to_write = lengths(records)
    outputs: dict[int, list[int]] = {}
    for sample in session.batches(1):
        sentence = sample["id"].item()
        force_length(generator, to_write[sentence])
        outputs[sentence] = session.decode(generator, sample)[0]["tokens"].tolist()
    first = session.task.target_dictionary.nspecial
    return ReplayDrafter(dict(enumerate(records)), outputs, (first, first + 1))


def force_length(generator: Any, tokens: int) -> None:
    """Makes a generator, stock or ours, write exactly so many tokens and ``</s>``."""
    generator.min_len = generator.max_len_b = tokens
    generator.max_len_a = 0
