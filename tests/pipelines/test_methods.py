"""Methods with models of the plugin, under tasks of fairseq: what stock finds with beam 1, or one sentence."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec.stored.loading import CheckpointError
from tests.pipelines.making import (
    BATCHES,
    SIZES,
    SPEECH_SIZES,
    USER_DIR,
    assert_same,
    decode,
    forgotten,
    ours,
    stock,
    write_model,
    write_speech,
    write_text,
)

PAIR = shlex.split("-s de -t en")
MANY = "translation_multi_simple_epoch"
LANGUAGES = shlex.split(
    "--langs de,en --lang-pairs de-en,en-de --encoder-langtok src --decoder-langtok"
)
PAIRS = shlex.split("--lang-pairs de-en,en-de --encoder-langtok tgt --decoder-langtok")
ARCHITECTURES = {
    "gad": "nar_drafter",
    "nar": "nar_drafter",
    "blockwise": "blockwise_transformer",
    "interleaved": "interleaved_transformer",
    "lattice": "lattice_transformer",
}
BLOCKS = {"gad", "nar", "blockwise"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("methods"), ["de", "en"])


def own(folder: Path, data: Path, decoding: str, task: str, *flags: str) -> Path:
    """A model of the method's architecture."""
    more = ["--block-size", "4"] if decoding in BLOCKS else []
    arch = ARCHITECTURES[decoding]
    return write_model(folder / f"{decoding}.pt", data, task, arch, *flags, *SIZES, *more)


def named(decoding: str, verifier: Path, model: Path) -> list[Any]:
    if decoding in ("gad", "nar"):
        return ["--decoding", decoding, "--path", verifier, "--drafter-path", model]
    return ["--decoding", decoding, "--path", model]


@pytest.fixture(scope="module")
def many(data: Path) -> Path:
    return write_model(data / "many.pt", data, MANY, "transformer", *LANGUAGES, *SIZES)


@pytest.mark.parametrize("decoding", ["gad", "blockwise"])
def test_drafts_for_many_languages(decoding: str, data: Path, many: Path, tmp_path: Path) -> None:
    model = own(tmp_path, data, decoding, MANY, *LANGUAGES)
    command = [data, *BATCHES, "--max-len-b", "14", "--task", MANY, *LANGUAGES, *PAIR]
    verifier = many if decoding == "gad" else model
    expected = stock(*command, "--path", verifier, "--beam", "1")
    assert_same(ours(*command, *named(decoding, verifier, model)), expected)


def test_a_drafter_alone_writes_no_tags(data: Path, many: Path, tmp_path: Path) -> None:
    model = own(tmp_path, data, "nar", MANY, *LANGUAGES)
    command = [data, *BATCHES, "--max-len-b", "14", "--task", MANY, *LANGUAGES, *PAIR]
    with forgotten():
        found = decode(*command, *USER_DIR, *named("nar", many, model))
    assert len(found.nbest) == 10 and "__" not in str(found.nbest)


@pytest.mark.parametrize("decoding", ["interleaved", "lattice"])
def test_searches_of_another_kind_refuse_many_languages(
    decoding: str, data: Path, many: Path, tmp_path: Path
) -> None:
    model = own(tmp_path, data, decoding, MANY, *LANGUAGES)
    command = [data, *BATCHES, "--task", MANY, *LANGUAGES, *PAIR, *named(decoding, many, model)]
    wanted = f"--task {MANY} does not go with --decoding {decoding}: its generator is its own"
    with forgotten(), pytest.raises(ValueError, match=wanted):
        decode(*command, *USER_DIR)


@pytest.mark.parametrize("task", ["multilingual_translation", "speech_to_text"])
def test_tasks_that_build_other_models(task: str, data: Path, tmp_path: Path) -> None:
    if task == "speech_to_text":
        folder, arch, sizes = write_speech(tmp_path / "speech"), "s2t_transformer", SPEECH_SIZES
        flags, pair = ["--max-tokens", "200"], []
    else:
        folder, arch, sizes, flags, pair = data, "multilingual_transformer", SIZES, PAIRS, PAIR
    training = flags if task != "speech_to_text" else []
    verifier = write_model(tmp_path / "verifier.pt", folder, task, arch, *training, *sizes)
    command = [folder, *BATCHES, "--task", task, *flags, *pair, *USER_DIR]
    for decoding in ARCHITECTURES:
        model = own(tmp_path, data, decoding, "translation", *PAIR)
        with forgotten(), pytest.raises(CheckpointError, match=f"--task {task}.* other models"):
            decode(*command, *named(decoding, verifier, model))
