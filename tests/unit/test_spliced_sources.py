"""Spliced sources: where words begin, what a splice is made of, the folder that is written."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import IndexedDatasetBuilder
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.distill.distillation import DistillationError
from fairseq_aggdec.distill.distilled_folder import TEXT, DataFolder
from scripts.spliced_sources import cuts, splice, word_marks, write_spliced
from tests.unit.test_distillation import make_folder

WORDS = {
    "pieces": [["▁a"], ["▁b", "c"], ["▁", "d"], ["▁e", "c", "d"]],
    "units": [["a"], ["b@@", "c"], ["d@@", "a@@", "c"]],
    "symbols": [["a"], ["b"], ["c"], ["d"]],
}
SEEDS = st.integers(0, 2**32)


def dictionary_of(words: list[list[str]]) -> Dictionary:
    dictionary = Dictionary()
    for symbol in sorted({symbol for word in words for symbol in word}):
        dictionary.add_symbol(symbol)
    return dictionary


def sentence_of(words: list[list[str]], dictionary: Dictionary) -> np.ndarray:
    return np.array(
        [dictionary.index(symbol) for word in words for symbol in word] + [dictionary.eos()]
    )


def words_of(tokens: np.ndarray, words: list[list[str]], dictionary: Dictionary) -> list[list[str]]:
    """A sentence's words, each one of WORDS, found from the left; no end of one is the beginning of another."""
    symbols = [dictionary[token] for token in tokens[:-1]]
    found = []
    while symbols:
        word = max(
            (word for word in words if symbols[: len(word)] == word), key=len, default=symbols
        )
        assert word in words, symbols
        found.append(word)
        symbols = symbols[len(word) :]
    return found


@given(st.data(), st.sampled_from(sorted(WORDS)), SEEDS)
def test_a_splice_is_the_beginning_of_one_and_the_end_of_another(
    data: st.DataObject, kind: str, seed: int
) -> None:
    words = WORDS[kind]
    dictionary = dictionary_of(words)
    sentences = st.lists(st.sampled_from(words), min_size=2, max_size=9)
    one, other = data.draw(sentences), data.draw(sentences)
    made = splice(
        sentence_of(one, dictionary),
        sentence_of(other, dictionary),
        word_marks(dictionary),
        random.Random(seed),
    )
    found = words_of(made, words, dictionary)
    assert made[-1] == dictionary.eos()
    assert any(
        found == one[:cut] + other[start:]
        for cut in range(1, len(one))
        for start in range(1, len(other))
    )


@pytest.mark.parametrize("kind", sorted(WORDS))
def test_cuts_are_where_words_begin(kind: str) -> None:
    words = WORDS[kind]
    dictionary = dictionary_of(words)
    found = cuts(sentence_of(words, dictionary), word_marks(dictionary))
    assert found.tolist() == np.cumsum([len(word) for word in words])[:-1].tolist()


def test_a_mark_by_chance_is_none() -> None:
    words = [[letter] for letter in "abcdefghijklmnopqrstuvwxyz"]
    for stray in ("▁▁", "x@@"):
        dictionary = dictionary_of([*words, [stray]])
        found = cuts(sentence_of(words, dictionary), word_marks(dictionary))
        assert found.tolist() == list(range(1, len(words)))
    pieces = dictionary_of(WORDS["pieces"][:2])  # no word begins with the mark alone
    found = cuts(sentence_of(WORDS["pieces"][:2], pieces), word_marks(pieces))
    assert found.tolist() == [1]
    units = dictionary_of([["▁"], *WORDS["units"]])
    assert word_marks(units)[0].all()
    characters = dictionary_of([["▁"], *words])  # sentencepiece of characters
    found = cuts(
        sentence_of([["a", "b"], ["▁", "c"], ["▁", "d", "e"]], characters), word_marks(characters)
    )
    assert found.tolist() == [2, 4]


def test_the_other_is_cut_as_far_in_it() -> None:
    dictionary = dictionary_of(WORDS["symbols"])
    one = sentence_of([["a"]] * 3, dictionary)
    other = sentence_of([["b"]] * 4 + [["c"]] * 3, dictionary)
    found = [
        words_of(
            splice(one, other, word_marks(dictionary), random.Random(seed)),
            WORDS["symbols"],
            dictionary,
        )
        for seed in range(20)
    ]
    # The one has 4 tokens, the other 8: cut in the middle of both, and in the first quarter.
    assert [["a"], ["a"], *[["c"]] * 3] in found and [["a"], ["b"], ["b"], *[["c"]] * 3] in found
    assert all(len(words) in (5, 6) for words in found)


def test_a_single_word_stays() -> None:
    words = WORDS["pieces"]
    dictionary = dictionary_of(words)
    one, other = sentence_of(words[3:], dictionary), sentence_of(words, dictionary)
    for pair in ((one, other), (other, one)):
        made = splice(*pair, word_marks(dictionary), random.Random(1))
        assert made.tolist() == pair[0].tolist()


@pytest.mark.parametrize("pair", ["src-tgt", "tgt-src"])
def test_the_folder(pair: str, tmp_path: Path) -> None:
    """A copy with one more part, of sources only, the same for the same seed; the parts that are there stay."""
    sources = [[4, 5, 6, 7], [5, 5, 4], [6], [7, 6, 5, 4, 4]]
    data = make_folder(tmp_path / "data", sources, pair)  # has train and train1
    texts = []
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        write_spliced(data, "train", tmp_path / name, seed)
        texts.append((tmp_path / name / TEXT / "train2.src").read_text(encoding="utf-8"))
    assert texts[0] == texts[1] != texts[2]
    made = DataFolder(tmp_path / "one", "src", "tgt")
    dictionary = Dictionary.load(str(made.dictionaries()[0]))
    for language in made.languages:
        assert (made.path / f"dict.{language}.txt").exists()
        for subset in ("train", "train1", "valid", "test"):
            sides = (folder.side(subset, language, dictionary) for folder in (made, data))
            kept, known = ([row.tolist() for row in side] for side in sides)
            assert kept == known
    part = made.side("train2", "src", dictionary)
    assert made.side("train2", "tgt", dictionary) is None
    assert [row[-1].item() for row in part] == [dictionary.eos()] * 8
    assert part[2].tolist() == part[6].tolist() == [6, dictionary.eos()]
    assert len(texts[0].splitlines()) == 8


@pytest.mark.parametrize("impl", ["cached", "lazy", "raw"])
def test_other_formats(impl: str, tmp_path: Path) -> None:
    """A set that fairseq reads in another way; without parts."""
    data = make_folder(tmp_path / "data", [[4, 5, 6, 7], [5, 5, 4]])
    dictionary = Dictionary.load(str(data.dictionaries()[0]))
    kept = [row.clone() for row in data.side("train", "src", dictionary)]
    for path in data.path.glob("train*"):
        path.unlink()
    prefix = str(data.path / "train.src-tgt.src")
    if impl == "raw":
        Path(prefix).write_text("".join(dictionary.string(row) + "\n" for row in kept))
    else:
        builder = IndexedDatasetBuilder(prefix + ".bin")
        for row in kept:
            builder.add_item(row)
        builder.finalize(prefix + ".idx")
    write_spliced(DataFolder(data.path, "src", "tgt", impl), "train", tmp_path / "new")
    made = DataFolder(tmp_path / "new", "src", "tgt").side("train1", "src", dictionary)
    assert [row[0].item() for row in made] == [row[0].item() for row in kept]
    assert {token for row in made for token in row.tolist()} <= {4, 5, 6, 7, dictionary.eos()}


# A warning of fairseq's reader.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", [[4, 5, 6]])
    empty = make_folder(tmp_path / "empty", [])
    bare = make_folder(tmp_path / "bare", [[4, 5, 6]])
    bare.dictionaries()[1].unlink()
    for folder, subset, message in (
        (data, "dev", "has no dev.src-tgt.src"),
        (empty, "train", "the set train of .* is empty or damaged"),
        (bare, "train", "has no dict.tgt.txt"),
    ):
        with pytest.raises(DistillationError, match=message):
            write_spliced(folder, subset, tmp_path / "new")
