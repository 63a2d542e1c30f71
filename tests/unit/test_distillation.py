"""Files of distillation: torn lines, locks, what a merge refuses, what a filter drops; data folders."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import data_utils

from fairseq_aggdec.data import distillation, distilled_folder
from fairseq_aggdec.data.distillation import DistillationError, Filter, Output, UnfinishedError
from fairseq_aggdec.data.distilled_folder import DataFolder
from tests.support import make_dictionary

SUBSET = "train"


def make_header(batches: Sequence[Sequence[int]], shard: int, shards: int) -> dict[str, Any]:
    numbers = [number for batch in batches for number in batch]
    return {
        "teacher": ["abc"],
        "options": {"beam": 5, "max_len_b": 200},
        "subset": SUBSET,
        "sentences": len(numbers),
        "too_long": [],
        "batches": len(batches),
        "shards": shards,
        "shard": shard,
        distillation.NOTES: {"teacher": ["model.pt"]},
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


def write(
    folder: Path,
    batches: Sequence[Sequence[int]],
    shard: int = 0,
    shards: int = 1,
    most: int | None = None,
    **changed: Any,
) -> int:
    """Decodes up to ``most`` batches of a shard; returns how many were there already."""
    own = distillation.own_batches(batches, shard, shards)
    header = make_header(batches, shard, shards) | changed
    with distillation.exclusive(distillation.shard_path(folder, SUBSET, shard, shards)) as opened:
        file = distillation.ShardFile(opened, header, own)
        there = file.done
        for batch in own[there:][:most]:
            file.append([output_of(sentence) for sentence in batch])
    return there


# -- one shard


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_is_mended(seed: int, tmp_path: Path) -> None:
    """The file cut at any byte, again and again, ends as if nothing had happened."""
    generator, batches = random.Random(seed), random_batches(seed)
    write(tmp_path / "whole", batches)
    whole = distillation.shard_path(tmp_path / "whole", SUBSET, 0, 1).read_bytes()
    path = distillation.shard_path(tmp_path / "cut", SUBSET, 0, 1)
    write(tmp_path / "cut", batches)
    for _ in range(5):
        content = path.read_bytes()[: generator.randrange(len(whole))]
        path.write_bytes(content)
        there = write(tmp_path / "cut", batches, most=generator.randint(0, 4))
        # nothing that was whole is decoded again
        assert there == max(0, content.count(b"\n") - 1)
    write(tmp_path / "cut", batches)
    assert path.read_bytes() == whole


def test_a_batch_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    path = distillation.shard_path(tmp_path, SUBSET, 0, 1)
    with distillation.exclusive(path) as opened:
        file = distillation.ShardFile(opened, make_header([[0], [1]], 0, 1), [[0], [1]])
        assert path.read_bytes().count(b"\n") == 1
        file.append([output_of(0)])
        assert path.read_bytes().count(b"\n") == 2


def test_a_wrong_batch_is_not_written(tmp_path: Path) -> None:
    with distillation.exclusive(tmp_path / "shard") as opened:
        file = distillation.ShardFile(opened, make_header([[0, 1]], 0, 1), [[0, 1]])
        for wrong in ([1, 0], [0], [0, 1, 2], []):
            with pytest.raises(ValueError, match="comes next"):
                file.append([output_of(sentence) for sentence in wrong])
        file.append([output_of(0), output_of(1)])
        with pytest.raises(ValueError, match="comes next"):
            file.append([output_of(0), output_of(1)])
    assert (tmp_path / "shard").read_bytes().count(b"\n") == 2


@pytest.mark.parametrize(
    "line", [b"\n", b"[[0, fal\n", b"7\n", b"[1, 2]\n", b"[[99, false, []]]\n"]
)
def test_a_damaged_line_is_named(line: bytes, tmp_path: Path) -> None:
    batches = random_batches(1)
    write(tmp_path, batches)
    path = distillation.shard_path(tmp_path, SUBSET, 0, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], line, *lines[4:]]))
    with pytest.raises(DistillationError, match="line 4"):
        write(tmp_path, batches)


@pytest.mark.parametrize("line", [b"\n", b"[]\n", b"{}\n", b"{\n"])
def test_a_damaged_header_is_named(line: bytes, tmp_path: Path) -> None:
    write(tmp_path, [[0]])
    path = distillation.shard_path(tmp_path, SUBSET, 0, 1)
    path.write_bytes(line + path.read_bytes())
    for read in (lambda: write(tmp_path, [[0]]), lambda: distillation.collect(tmp_path, SUBSET)):
        with pytest.raises(DistillationError, match="line 1"):
            read()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"options": {"beam": 4, "max_len_b": 200}}, "--beam 5, not 4"),
        ({"options": {"beam": 5, "max_len_b": 200, "new": 1}}, "--new null, not 1"),
        ({"options": {"beam": 5}}, "--max-len-b 200, not null"),
        ({"teacher": ["abd"]}, "another teacher"),
        ({"teacher": ["abc", "abc"]}, "another teacher"),
        ({"sentences": 41}, "another sentences"),
    ],
)
def test_another_start_is_refused(changed: dict[str, Any], named: str, tmp_path: Path) -> None:
    batches = random_batches(2)
    assert write(tmp_path, batches, most=2) == 0
    path = distillation.shard_path(tmp_path, SUBSET, 0, 1)
    before = path.read_bytes()
    with pytest.raises(DistillationError, match=named):
        write(tmp_path, batches, **changed)
    assert path.read_bytes() == before
    assert write(tmp_path, batches, notes={"teacher": ["renamed.pt"]}) == 2


def test_siblings_must_agree(tmp_path: Path) -> None:
    batches = random_batches(3)
    write(tmp_path, batches, shard=1, shards=2, most=1)
    distillation.check_siblings(tmp_path, SUBSET, make_header(batches, 0, 2))
    distillation.check_siblings(tmp_path, "valid", make_header(batches, 0, 3))
    with pytest.raises(DistillationError, match="--distributed-world-size 2, not 3"):
        distillation.check_siblings(tmp_path, SUBSET, make_header(batches, 0, 3))
    other = make_header(batches, 0, 2) | {"teacher": ["abd"]}
    with pytest.raises(DistillationError, match="another teacher"):
        distillation.check_siblings(tmp_path, SUBSET, other)


def try_to_open(path: Path, answers: Any) -> None:
    try:
        with distillation.exclusive(path):
            answers.put("opened")
    except DistillationError as error:
        answers.put(str(error))


def open_elsewhere(path: Path) -> str:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=try_to_open, args=(path, answers))
    process.start()
    process.join()
    return answers.get()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "shard"
    with distillation.exclusive(path):
        assert "in use by another process" in open_elsewhere(path)
    assert open_elsewhere(path) == "opened"


# -- all shards


@pytest.mark.parametrize("shards", [1, 2, 3, 50])
def test_shards_make_the_whole(shards: int, tmp_path: Path) -> None:
    batches = random_batches(shards)
    for shard in range(shards):
        write(tmp_path, batches, shard, shards)
    found = distillation.collect(tmp_path, SUBSET)
    assert len(found.outputs) == 40
    for sentence, written in enumerate(found.outputs):
        expected = output_of(sentence)
        assert written is not None
        assert (written.sentence, written.cut) == (sentence, expected.cut)
        assert written.tokens.tolist() == expected.tokens.tolist()


def test_too_long_sentences_are_known(tmp_path: Path) -> None:
    write(tmp_path, [[0, 3]], sentences=4, too_long=[1, 2])
    outputs = distillation.collect(tmp_path, SUBSET).outputs
    assert [written is None for written in outputs] == [False, True, True, False]


def test_merging_waits_for_all(tmp_path: Path) -> None:
    batches = random_batches(4)
    with pytest.raises(UnfinishedError, match="nothing of train"):
        distillation.collect(tmp_path, SUBSET)
    write(tmp_path, batches, 0, 2)
    with pytest.raises(UnfinishedError, match="shard 1 of 2"):
        distillation.collect(tmp_path, SUBSET)
    owned = len(batches) // 2
    write(tmp_path, batches, 1, 2, most=owned - 1)
    with pytest.raises(UnfinishedError, match=f"{owned - 1} of {owned} batches"):
        distillation.collect(tmp_path, SUBSET)
    path = distillation.shard_path(tmp_path, SUBSET, 1, 2)
    write(tmp_path, batches, 1, 2)
    content = path.read_bytes()
    path.write_bytes(content[:-1])  # the last line is being written
    with pytest.raises(UnfinishedError, match=f"{owned - 1} of {owned} batches"):
        distillation.collect(tmp_path, SUBSET)
    path.write_bytes(content[:10])
    with pytest.raises(UnfinishedError, match="empty"):
        distillation.collect(tmp_path, SUBSET)


def rewrite(path: Path, row: int, sentence: int) -> None:
    """Gives a sentence of the file's first batch another number."""
    header, first, *rest = path.read_text().splitlines()
    batch = json.loads(first)
    batch[row][0] = sentence
    path.write_text("\n".join([header, json.dumps(batch), *rest, ""]))


@pytest.mark.parametrize(("sentence", "first"), [(11, 10), (40, 10), (-1, 10)])
def test_every_sentence_once(sentence: int, first: int, tmp_path: Path) -> None:
    """Sentence 10 has become another one's double or an unknown one."""
    batches = [[10, *range(10)], list(range(11, 40))]
    write(tmp_path, batches)
    distillation.collect(tmp_path, SUBSET)
    rewrite(distillation.shard_path(tmp_path, SUBSET, 0, 1), 0, sentence)
    with pytest.raises(DistillationError, match=f"2 sentences .* the first is {first}$"):
        distillation.collect(tmp_path, SUBSET)


def test_decoded_though_too_long(tmp_path: Path) -> None:
    write(tmp_path, [[0, 1]], sentences=2, too_long=[1])
    with pytest.raises(DistillationError, match=r"1 sentences .* the first is 1"):
        distillation.collect(tmp_path, SUBSET)


def test_shards_of_different_teachers_are_not_merged(tmp_path: Path) -> None:
    batches = random_batches(5)
    write(tmp_path, batches, 0, 2)
    write(tmp_path, batches, 1, 2, teacher=["abd"])
    with pytest.raises(DistillationError, match="another teacher"):
        distillation.collect(tmp_path, SUBSET)


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


def test_counts() -> None:
    counts = distillation.count_reasons(["cut", None, "empty", "cut", None])
    assert counts == {"too long": 0, "empty": 1, "cut": 2, "length ratio": 0}


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
    distilled = distillation.Distilled({"subset": "train"}, outputs)
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
    assert written.kept == [0, 3]
    assert written.summary["dropped"] == {"too long": 1, "empty": 1, "cut": 0, "length ratio": 0}
    assert written.summary["mean_length"] == {"source": 3, "distilled": 2.5, "reference": 3}


def test_nothing_kept_is_refused(tmp_path: Path) -> None:
    """fairseq cannot read a set of no pairs."""
    data = make_folder(tmp_path / "old", [[5, 6]])
    (tmp_path / "new" / distilled_folder.TEXT).mkdir(parents=True)
    dictionary = make_dictionary()
    distilled = distillation.Distilled({"subset": "train"}, [None])
    with pytest.raises(distillation.DistillationError, match="no pair is left of 1"):
        distilled_folder.write_subset(
            data, tmp_path / "new", distilled, Filter(), (dictionary, dictionary)
        )
    assert not list((tmp_path / "new").glob("train.*"))


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


def test_a_missing_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(DistillationError, match=r"no dev\.src-tgt\.src"):
        DataFolder(tmp_path, "src", "tgt").prefix("dev")
