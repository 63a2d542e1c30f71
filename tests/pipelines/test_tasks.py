"""``--user-dir fairseq_aggdec`` with fairseq's tasks: the n-best lists of stock, by our engine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.pipelines.making import (
    BATCHES,
    SEARCH,
    SIZES,
    SPEECH_SIZES,
    WORDS,
    assert_same,
    ours,
    stock,
    write_model,
    write_speech,
    write_text,
)


@dataclass
class Pipeline:
    """A task with what it takes to train and to decode.

    Attributes:
        task, arch: their names.
        both: flags of training and of decoding.
        training, decoding: flags of one of them.
        sizes: of the model.
        words: of the dictionary's file.
    """

    task: str
    arch: str = "transformer"
    both: str = ""
    training: str = ""
    decoding: str = ""
    sizes: list[str] = field(default_factory=lambda: SIZES)
    words: list[str] = field(default_factory=lambda: WORDS)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Its data and its model."""
        if self.task == "speech_to_text":
            data = write_speech(folder / "data", "--prefix-size" in self.decoding)
        else:
            data = write_text(folder / "data", ["de", "en"], self.words)
        flags = [*shlex.split(self.both), *shlex.split(self.training), *self.sizes]
        return data, write_model(folder / "model.pt", data, self.task, self.arch, *flags)

    def flags(self) -> list[str]:
        """Of decoding."""
        return ["--task", self.task, *shlex.split(self.both), *shlex.split(self.decoding)]


SIMPLE = "--langs de,en --lang-pairs de-en,en-de"
TAGGED = [*WORDS, "__de__", "__en__"]
PIPELINES = {
    "translation": Pipeline("translation", both="-s de -t en"),
    "multi simple": Pipeline(
        "translation_multi_simple_epoch",
        both=f"{SIMPLE} --encoder-langtok src --decoder-langtok",
        decoding="-s de -t en",
    ),
    "multi simple, mBART tags": Pipeline(
        "translation_multi_simple_epoch",
        both=f"{SIMPLE} --encoder-langtok tgt --decoder-langtok --lang-tok-style mbart",
        decoding="-s de -t en --keep-inference-langtok",
    ),
    "multi simple, tags for bos and eos": Pipeline(
        "translation_multi_simple_epoch",
        both=f"{SIMPLE} --encoder-langtok src --decoder-langtok --lang-tok-replacing-bos-eos",
        decoding="-s de -t en",
    ),
    "multi simple, tags in the dictionary": Pipeline(
        "translation_multi_simple_epoch",
        both=f"{SIMPLE} --encoder-langtok src --decoder-langtok",
        decoding="-s de -t en",
        words=TAGGED,
    ),
    "multilingual": Pipeline(
        "multilingual_translation",
        "multilingual_transformer",
        both="--lang-pairs de-en,en-de --encoder-langtok tgt --decoder-langtok",
        decoding="-s de -t en",
    ),
    "mBART": Pipeline(
        "translation_from_pretrained_bart",
        "mbart_base",
        both="--langs de,en -s de -t en",
        decoding="--prepend-bos",
    ),
    "BART": Pipeline("translation", "bart_base", both="-s de -t en"),
    "semi-supervised": Pipeline(
        "semisupervised_translation",
        "multilingual_transformer",
        both="--lang-pairs de-en,en-de",
        decoding="-s de -t en",
    ),
    "online back-translation": Pipeline(
        "online_backtranslation",
        training="--share-all-embeddings",
        both="--mono-langs de,en --valid-lang-pairs de-en",
    ),
    "speech": Pipeline(
        "speech_to_text", "s2t_transformer", sizes=SPEECH_SIZES, decoding="--max-tokens 200"
    ),
    "speech with a prefix": Pipeline(
        "speech_to_text",
        "s2t_transformer",
        sizes=SPEECH_SIZES,
        decoding="--max-tokens 200 --prefix-size 1",
    ),
}
MORE = {
    "beam": "",
    "one": "--beam 1 --nbest 1",
    "part of two": "--distributed-world-size 2 --distributed-rank 1",
    "penalties": "--lenpen 2 --unkpen 1 --min-len 3 --max-len-a 0.5 --temperature 1.3",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    return {name: one.write(tmp_path_factory.mktemp("p")) for name, one in PIPELINES.items()}


@pytest.mark.parametrize(
    ("name", "more"),
    [("translation", more) for more in MORE]
    + [(name, more) for name in PIPELINES for more in ("beam", "one") if name != "translation"],
)
def test_generate(name: str, more: str, written: dict[str, tuple[Path, Path]]) -> None:
    data, model = written[name]
    command = [data, "--path", model, *BATCHES, *SEARCH, *PIPELINES[name].flags()]
    command += shlex.split(MORE[more])
    assert_same(ours(*command), stock(*command))
