"""Data, models and runs for the tests of pipelines: fairseq's own commands in this process, with the plugin or not.

Models are random, with weights that make outputs depend on everything; they are written by stock fairseq.
"""

from __future__ import annotations

import itertools
import random
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.utils import import_user_module
from fairseq_cli import generate
from omegaconf import OmegaConf

import fairseq_aggdec
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.pipelines import takeover
from tests.cli.commands import Result, run
from tests.random_models import stir

USER_DIR = ["--user-dir", fairseq_aggdec.__path__[0]]
WORDS = [f"w{i}" for i in range(36)]
SIZES = shlex.split(
    "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 --decoder-embed-dim 16 "
    "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 --decoder-attention-heads 2 "
    "--max-source-positions 64 --max-target-positions 64"
)
SPEECH_SIZES = shlex.split(
    "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --conv-channels 16 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2"
)
BATCHES = shlex.split("--cpu --num-workers 0 --batch-size 5 --required-batch-size-multiple 1")
SEARCH = shlex.split("--beam 4 --nbest 3 --max-len-b 14")


# -- with the plugin and without


@contextmanager
def forgotten() -> Iterator[None]:
    """Nobody has asked for the plugin; afterwards, whoever had."""
    memo = import_user_module.__dict__.setdefault("memo", set())
    kept, asked = set(memo), list(takeover._enabled)
    memo.clear()
    takeover._enabled.clear()
    try:
        yield
    finally:
        memo.clear()
        memo.update(kept)
        takeover._enabled[:] = asked


@contextmanager
def counted() -> Iterator[list[Any]]:
    """The batches that our engine takes up."""
    taken: list[Any] = []
    start = Verifier.start

    def counting(self: Verifier, net_input: Any, *args: Any, **kwargs: Any) -> None:
        taken.append(net_input)
        start(self, net_input, *args, **kwargs)

    with mock.patch.object(Verifier, "start", counting):
        yield taken


@dataclass
class Run:
    """What came of a command.

    Attributes:
        nbest: sentence, score and text of every hypothesis, in the order in which they were printed.
        log: of the run.
        batches: that our engine took up.
        result: as it was printed.
    """

    nbest: list[tuple[str, float, str]]
    log: list[str]
    batches: int
    result: Result

    def left(self) -> list[str]:
        return [line for line in self.log if "left to stock fairseq" in line]


def decode(
    *arguments: str | Path, command: Callable[[], Any] = generate.cli_main, stdin: str = ""
) -> Run:
    with counted() as taken:
        result = run(command, *arguments, stdin=stdin)
    found = re.findall(r"^H-(\S+)\t(\S+)\t(.*)$", result.stdout, re.MULTILINE)
    nbest = [(name, float(score), text) for name, score, text in found]
    assert nbest
    return Run(nbest, result.log, len(taken), result)


@contextmanager
def stock_repaired() -> Iterator[None]:
    """Lets the task of mBART-25 run, which in stock fairseq reads an attribute that it lacks."""
    args = property(lambda self: self.cfg)
    with mock.patch.object(TranslationFromPretrainedBARTTask, "args", args, create=True):
        yield


def stock(*arguments: str | Path, **kwargs: Any) -> Run:
    """The oracle: the same command where nobody has asked for the plugin."""
    with forgotten(), stock_repaired():
        found = decode(*arguments, **kwargs)
    assert found.batches == 0
    return found


def of_stock(*arguments: str | Path, **kwargs: Any) -> tuple[Run, list[str]]:
    """With ``--user-dir``, of what is left to stock fairseq; and the lines of the log that say so."""
    with forgotten():
        found = decode(*arguments, *USER_DIR, **kwargs)
    assert found.batches == 0
    return found, found.left()


def ours(*arguments: str | Path, **kwargs: Any) -> Run:
    """With ``--user-dir``; our engine has decoded every batch, with its fast decoder."""
    with forgotten():
        found = decode(*arguments, *USER_DIR, **kwargs)
    assert not found.left(), found.left()
    assert found.batches > 0
    assert not [line for line in found.log if "left to stock fairseq" in line]
    return found


def assert_same(found: Run, expected: Run) -> None:
    assert [(name, text) for name, _, text in found.nbest] == [
        (name, text) for name, _, text in expected.nbest
    ]
    for (name, score, _), (_, wanted, _) in zip(found.nbest, expected.nbest, strict=True):
        assert abs(score - wanted) < 1e-4, name


def assert_equal(found: Any, expected: Any) -> None:
    """Equal n-best lists, as generators and hubs give them."""
    assert len(found) == len(expected) > 0
    for own, theirs in zip(found, expected, strict=True):
        assert [h["tokens"].tolist() for h in own] == [h["tokens"].tolist() for h in theirs]
        for one, other in zip(own, theirs, strict=True):
            assert abs(float(one["score"]) - float(other["score"])) < 1e-4


# -- data


def write_text(folder: Path, languages: Sequence[str], words: Sequence[str] = WORDS) -> Path:
    """Dictionaries and a binarised test set of ten sentences for every pair."""
    folder.mkdir(parents=True, exist_ok=True)
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    for name in ("dict.txt", *(f"dict.{language}.txt" for language in languages)):
        dictionary.save(str(folder / name))
    _write_sets(folder, languages, dictionary, ["test"])
    return folder


def write_training(folder: Path, languages: Sequence[str]) -> Path:
    """The same with sets for training and validation."""
    write_text(folder, languages)
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    _write_sets(folder, languages, dictionary, ["train", "valid"])
    return folder


def _write_sets(
    folder: Path, languages: Sequence[str], dictionary: Dictionary, splits: Sequence[str]
) -> None:
    for split, (source, target) in itertools.product(splits, itertools.permutations(languages, 2)):
        for one in (source, target):
            path = folder / f"{split}.{source}-{target}.{one}"
            builder = make_builder(f"{path}.bin", "mmap", len(dictionary))
            for line in sentences():
                builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
            builder.finalize(f"{path}.idx")


def sentences() -> list[str]:
    """Of the test set."""
    generator = random.Random(3)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 9))) for _ in range(10)]


def write_speech(folder: Path, prefix: bool = False) -> Path:
    """Random features as a set of fairseq's speech-to-text task; ``prefix``: with a tag of the language."""
    folder.mkdir(parents=True, exist_ok=True)
    dictionary = Dictionary()
    for word in [*WORDS, "<lang:de>"]:
        dictionary.add_symbol(word)
    dictionary.save(str(folder / "dict.txt"))
    config = "vocab_filename: dict.txt\ninput_feat_per_channel: 8\ninput_channels: 1\n"
    (folder / "config.yaml").write_text(config + ("prepend_tgt_lang_tag: true\n" if prefix else ""))
    rows = ["id\taudio\tn_frames\ttgt_text\ttgt_lang"]
    generator = np.random.default_rng(2)
    for number in range(8):
        frames = int(generator.integers(9, 40))
        path = folder / f"{number}.npy"
        np.save(path, generator.normal(size=(frames, 8)).astype("float32"))
        rows.append(f"{number}\t{path}\t{frames}\tw1 w{number} w3\tde")
    (folder / "test.tsv").write_text("\n".join(rows) + "\n")
    return folder


# -- models


def write_model(path: Path, data: Path, task: str, arch: str, *flags: str, seed: int = 1) -> Path:
    """A random model as ``fairseq-train`` of stock would write it, without the optimiser."""
    with forgotten(), stock_repaired():
        parser = options.get_training_parser(default_task=task)
        given = [str(data), "--task", task, "--arch", arch, *flags]
        config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, given))
        torch.manual_seed(seed)
        model = tasks.setup_task(config.task).build_model(config.model)
    stir(model, seed)
    container = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    state = {"args": None, "cfg": container, "model": model.state_dict()}
    state |= {"optimizer_history": [{"best_loss": 0.0, "lr_scheduler_state": {}}]}
    state |= {"last_optimizer_state": None, "extra_state": {"train_iterator": {"epoch": 1}}}
    torch.save(state, path)
    return path
