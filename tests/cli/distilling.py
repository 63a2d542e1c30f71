"""A tiny random teacher with data for distillation, and ``aggdec distill`` on it within the process of the test."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from unittest import mock

import torch
from fairseq.data import Dictionary

from fairseq_aggdec.cli import distill as tool
from fairseq_aggdec.distill import distilled_folder
from scripts import random_models
from tests.support import WORDS, make_dictionary

COMMAND = ["-m", "fairseq_aggdec.cli.main", "distill"]
SENTENCES = {"train": 200, "valid": 8, "test": 5}
LONGEST = 12  # --max-source-positions, </s> included
LANGUAGES = (random_models.SOURCE, random_models.TARGET)
PAIR = "-".join(LANGUAGES)
FILES = [f"train.{PAIR}.{language}.{end}" for language in LANGUAGES for end in ("bin", "idx")]
FILES += [f"text/train.{name}" for name in (*LANGUAGES, "dropped.tsv")]
OPTIONS = ["--cpu", "--batch-size", "4", "--beam", "3", "--max-len-b", "12"]
OPTIONS += ["--max-source-positions", str(LONGEST)]
COUNT = 25  # shards


def random_sentences(dictionary: Dictionary, seed: int, count: int) -> list[torch.Tensor]:
    """Lengths 1 to 14, with ``</s>`` up to 15: some do not fit the teacher; some words are unknown."""
    generator = random.Random(seed)
    choices = [*range(dictionary.nspecial, dictionary.nspecial + WORDS), dictionary.unk()]
    rows = [generator.choices(choices, k=generator.randint(1, 14)) for _ in range(count)]
    return [torch.tensor([*row, dictionary.eos()]) for row in rows]


def write_teacher(path: Path, data: Path, seed: int) -> None:
    """A random model with larger weights than a fresh one: its outputs vary, and many end by themselves."""
    random_models.write_checkpoint(
        path, data, "transformer_tiny", "--share-all-embeddings", seed=seed
    )
    state = torch.load(path, weights_only=True)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in state["model"].items():
        if parameter.dim() > 1:
            spread = 0.4 if "embed" in name else parameter.size(-1) ** -0.5
            parameter.normal_(0, spread, generator=generator)
    state["model"]["decoder.embed_tokens.weight"][make_dictionary().eos()] *= 2
    torch.save(state, path)


def write_folder(folder: Path) -> Path:
    """Binarised data and two teachers."""
    data, dictionary = folder / "data", make_dictionary()
    (data / distilled_folder.TEXT).mkdir(parents=True)
    for seed, language in enumerate(LANGUAGES):
        dictionary.save(str(data / f"dict.{language}.txt"))
        for subset, count in SENTENCES.items():
            name = f"{subset}.{PAIR}"
            rows = random_sentences(dictionary, len(subset) + seed, count)
            distilled_folder.write_side(data, name, language, dictionary, rows)
    for seed in (1, 2):
        write_teacher(folder / f"teacher{seed}.pt", data, seed)
    return folder


def arguments(folder: Path, output: Path, *more: str) -> list[str]:
    teacher = ["--path", str(folder / "teacher1.pt")]
    given = ["--output", str(output), *teacher, *OPTIONS, "--shard-size", "8"]
    return [str(folder / "data"), *given, *more]


def distill(folder: Path, output: Path, *more: str) -> None:
    """Runs distill.py in this process."""
    with mock.patch.object(sys, "argv", ["distill.py", *arguments(folder, output, *more)]):
        tool.main()


def shards(output: Path) -> dict[str, bytes]:
    """What was decoded so far."""
    folder = output / "shards"
    return {path.name: path.read_bytes() for path in folder.glob("train.*.shard")}


def contents(output: Path) -> dict[str, bytes]:
    return {name: (output / name).read_bytes() for name in FILES}
