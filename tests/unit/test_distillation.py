"""Files of distillation: what a merge refuses, what a filter drops; data folders."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import data_utils

from fairseq_aggdec.distill import distillation, distilled_folder
from fairseq_aggdec.distill.distillation import Filter, Output
from fairseq_aggdec.distill.distilled_folder import DataFolder
from fairseq_aggdec.distill.shards import Distilled, collect, order_digest
from fairseq_aggdec.jobs.job import NOTES, Job
from tests.support import make_dictionary

SUBSET = "train"


def make_header(batches: Sequence[Sequence[int]], shards: int) -> dict[str, Any]:
    numbers = [number for batch in batches for number in batch]
    return {
        "teacher": ["abc"],
        "options": {"beam": 5, "max_len_b": 200},
        "subset": SUBSET,
        "sentences": len(numbers),
        "too_long": [],
        "batches": len(batches),
        "order of sentences": order_digest(batches),
        "shards": shards,
        NOTES: {"teacher": ["model.pt"]},
    }


def random_batches(seed: int, sentences: int = 40) -> list[list[int]]:
    generator = random.Random(seed)
    numbers = generator.sample(range(sentences), sentences)
    batches = []
    while numbers:
        size = generator.randint(1, 6)
        batches.append(numbers[:size])
        numbers = numbers[size:]
    return batches


def output_of(sentence: int) -> Output:
    """A stand-in for a teacher: any function of the sentence will do."""
    tokens = np.arange(4, 4 + sentence % 7, dtype=np.int32)
    return Output(sentence, sentence % 5 == 0, tokens)


def make_job(
    folder: Path, batches: Sequence[Sequence[int]], shards: int = 1, **changed: Any
) -> Job:
    job = Job(folder, SUBSET, make_header(batches, shards) | changed)
    job.begin()
    return job


def write(folder: Path, batches: Sequence[Sequence[int]], shards: int = 1, **changed: Any) -> Job:
    """Decodes all batches."""
    job = make_job(folder, batches, shards, **changed)

    def make(shard: int) -> bytes:
        own = batches[shard::shards]
        return distillation.write_batches([output_of(n) for n in batch] for batch in own)

    job.work(make)
    return job


# -- all shards


@pytest.mark.parametrize("shards", [1, 2, 3, 50])
def test_shards_make_the_whole(shards: int, tmp_path: Path) -> None:
    write(tmp_path, random_batches(shards), shards)
    found = collect(tmp_path, SUBSET)
    assert len(found.outputs) == 40
    for sentence, written in enumerate(found.outputs):
        expected = output_of(sentence)
        assert written is not None
        assert (written.sentence, written.cut) == (sentence, expected.cut)
        assert written.tokens.tolist() == expected.tokens.tolist()


def test_too_long_sentences_are_known(tmp_path: Path) -> None:
    write(tmp_path, [[0, 3]], sentences=4, too_long=[1, 2])
    outputs = collect(tmp_path, SUBSET).outputs
    assert [written is None for written in outputs] == [False, True, True, False]


# -- filter


@pytest.mark.parametrize(
    ("source_length", "length", "cut", "options", "reason"),
    [
        (3, None, False, {}, "too long"),
        (3, 0, False, {}, "empty"),
        (3, 0, True, {}, "empty"),
        (0, 3, False, {}, "empty"),
        (3, 4, True, {}, "cut"),
        (3, 4, True, {"keep_cut": True}, None),
        (1, 99, False, {}, None),
        (2, 5, False, {"max_length_ratio": 2.5}, None),
        (5, 2, False, {"max_length_ratio": 2.5}, None),
        (2, 6, False, {"max_length_ratio": 2.5}, "length ratio"),
        (6, 2, False, {"max_length_ratio": 2.5}, "length ratio"),
        (6, 2, True, {"max_length_ratio": 2.5}, "cut"),
        (6, 2, True, {"max_length_ratio": 2.5, "keep_cut": True}, "length ratio"),
    ],
)
def test_filter(
    source_length: int,
    length: int | None,
    cut: bool,
    options: Mapping[str, Any],
    reason: str | None,
) -> None:
    written = None if length is None else Output(0, cut, np.full(length, 4, dtype=np.int32))
    assert Filter(**options).reason(source_length, written) == reason


# -- data folders


def make_folder(path: Path, sources: Sequence[Sequence[int]], pair: str = "src-tgt") -> DataFolder:
    """Binarised train, train1, valid and test sets of these sources; targets are the sources reversed."""
    (path / distilled_folder.TEXT).mkdir(parents=True)
    dictionary = make_dictionary()
    for language in ("src", "tgt"):
        dictionary.save(str(path / f"dict.{language}.txt"))
        sides = [list(row) if language == "src" else list(row)[::-1] for row in sources]
        for subset in ("train", "train1", "valid", "test"):
            tokens = [torch.tensor([*side, dictionary.eos()]) for side in sides]
            name = f"{subset}.{pair}"
            distilled_folder.write_side(path, name, language, dictionary, tokens)
    return DataFolder(path, "src", "tgt")


@pytest.mark.parametrize("pair", ["src-tgt", "tgt-src"])
def test_subset_is_written(pair: str, tmp_path: Path) -> None:
    unknown = make_dictionary().unk()
    sources = [[5, unknown, 7], [8], [9, 10], [11, 12, unknown]]
    data = make_folder(tmp_path / "old", sources, pair)
    outputs = [
        Output(0, False, np.array([20, unknown], dtype=np.int32)),
        Output(1, False, np.array([], dtype=np.int32)),
        None,
        Output(3, True, np.array([21, 22, 23], dtype=np.int32)),
    ]
    new = tmp_path / "new"
    (new / distilled_folder.TEXT).mkdir(parents=True)
    dictionary = make_dictionary()
    distilled = Distilled({"subset": "train"}, outputs)
    rule = Filter(keep_cut=True)
    written = distilled_folder.write_subset(data, new, distilled, rule, (dictionary, dictionary))
    expected = {"src": [sources[0], sources[3]], "tgt": [[20, unknown], [21, 22, 23]]}
    for language, rows in expected.items():
        path = str(new / f"train.src-tgt.{language}")
        found = data_utils.load_indexed_dataset(path, dictionary)
        assert [row.tolist() for row in found] == [[*row, dictionary.eos()] for row in rows]
        lines = (new / distilled_folder.TEXT / f"train.{language}").read_text().splitlines()
        # text read back by fairseq's own means is the same ids
        read = [dictionary.encode_line(line, add_if_not_exist=False).tolist() for line in lines]
        assert read == [row.tolist() for row in found]
    dropped = (new / distilled_folder.TEXT / "train.dropped.tsv").read_text()
    assert dropped == "1\tempty\t\n2\ttoo long\t\n"
    assert written["kept"] == 2
    assert written["dropped"] == {"too long": 1, "empty": 1, "cut": 0, "length ratio": 0}
    assert written["mean_length"] == {"source": 3, "distilled": 2.5, "reference": 3}


@pytest.mark.parametrize(
    ("subsets", "copied"),
    [
        (["train"], {"valid", "test"}),
        (["train", "train1"], {"valid", "test"}),
        (["train", "valid"], {"test"}),
        (["valid"], {"train", "train1", "test"}),
    ],
)
def test_other_sets_are_copied(subsets: list[str], copied: set[str], tmp_path: Path) -> None:
    data = make_folder(tmp_path / "old", [[5, 6], [7]])
    (tmp_path / "new").mkdir()
    distilled_folder.copy_the_rest(data, tmp_path / "new", subsets)
    names = {f"{subset}.src-tgt" for subset in copied}
    found = {path.name for path in (tmp_path / "new").iterdir()}
    expected = {
        f"{name}.{side}.{end}"
        for name in names
        for side in ("src", "tgt")
        for end in ("bin", "idx")
    }
    assert found == expected | {"dict.src.txt", "dict.tgt.txt"}
    for name in found:
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "old" / name).read_bytes()
