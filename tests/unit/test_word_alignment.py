"""Word alignment: links of each direction against a slow reference, symmetrisation, files, programs, refusals."""

from __future__ import annotations

import math
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_aggdec.lattice.alignment import word_alignment
from fairseq_aggdec.lattice.alignment.fast_align_model import (
    COMBINE,
    NULL_CHANCE,
    START_TENSION,
    Link,
    Model,
)
from fairseq_aggdec.lattice.alignment.word_alignment import Aligner, read_links
from scripts.recipes.lattice.align import read_text

TRANSLATION = {
    "das": "the",
    "haus": "house",
    "buch": "book",
    "alte": "old",
    "ist": "is",
    "rot": "red",
    "ein": "a",
}
needs_library = pytest.mark.skipif(
    find_spec("systran_align") is None, reason="systran-align has no wheel for this Python"
)
LINKS = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12)


def corpus(count: int, seed: int = 1) -> list[tuple[list[str], list[str]]]:
    """Sentences of random words, translated one by one, each second with its first two words swapped."""
    rng = np.random.default_rng(seed)
    pairs = []
    for number in range(count):
        source = rng.choice(list(TRANSLATION), rng.integers(2, 6), replace=False).tolist()
        target = [TRANSLATION[word] for word in source]
        if number % 2:
            target[:2] = target[1::-1]
        pairs.append((source, target))
    return pairs


def write_model(path: Path, chances: dict[tuple[str, str], float]) -> None:
    """A file in the form of the library: every word of ``chances`` and its probabilities."""
    words = ["<eps>", "|||", *sorted({word for pair in chances for word in pair} - {"<eps>"})]
    number = {word: at for at, word in enumerate(words, 1)}
    content = struct.pack("<ii", 2, len(words)) + b"".join(word.encode() + b"\0" for word in words)
    content += struct.pack("<i", len(words))
    for source in sorted({source for source, _ in chances}):
        row = [(number[y], chance) for (x, y), chance in chances.items() if x == source]
        content += struct.pack("<ii", number[source], len(row))
        content += b"".join(struct.pack("<if", *entry) for entry in row)
    path.write_bytes(content)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Random probabilities of both directions."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(4)
    paths = folder / "forward", folder / "reverse"
    sides = [list(TRANSLATION), list(TRANSLATION.values())]
    for path, (source, target) in zip(paths, (sides, sides[::-1]), strict=True):
        pairs = [(x, y) for x in ["<eps>", *source] for y in target if rng.random() < 0.7]
        write_model(path, {pair: float(rng.random() ** 6) for pair in pairs})
    return paths


def slow_links(model: Model, source: list[str], target: list[str]) -> list[int]:
    """The formula of the module, word by word."""
    chances = dict(zip(model.keys.tolist(), model.probabilities.tolist(), strict=True))

    def chance(one: str, two: str) -> float:
        key = model.words.get(one, 0) * (len(model.words) + 1) + model.words.get(two, 0)
        return chances.get(key, 1e-9)

    found = []
    for j, word in enumerate(target, 1):
        places = [
            math.exp(-model.tension * abs(i / len(source) - j / len(target)))
            for i in range(1, len(source) + 1)
        ]
        best, position = NULL_CHANCE * chance("<eps>", word), -1
        for i, (origin, place) in enumerate(zip(source, places, strict=True)):
            score = (1 - NULL_CHANCE) * place / sum(places) * chance(origin, word)
            if score > best:
                best, position = score, i
        found.append(position)
    return found


@pytest.mark.parametrize("tension", [0.0, 4.0, 9.0])
def test_links_are_those_of_the_formula(models: tuple[Path, Path], tension: float) -> None:
    sources, targets = map(list, zip(*corpus(40, seed=2), strict=True))
    sources[3], targets[5] = ["unknown", "haus"], ["house", "unknown", "unknown", "book"]
    for path, one, two in zip(models, (sources, targets), (targets, sources), strict=True):
        model = Model.read(path, tension)
        found = model.links(one, two)
        assert [row.tolist() for row in found] == [
            slow_links(model, *pair) for pair in zip(one, two, strict=True)
        ]
        assert any(-1 in row for row in found)


@needs_library
def test_with_its_tension_the_links_are_those_of_the_library(tmp_path: Path) -> None:
    import systran_align

    lines = [f"{' '.join(source)} ||| {' '.join(target)}\n" for source, target in corpus(60)]
    (tmp_path / "corpus").write_text("".join(lines), encoding="utf-8")
    paths = tmp_path / "forward", tmp_path / "reverse"
    systran_align.generate_alignment_probabilities(
        str(tmp_path / "corpus"), *map(str, paths), favor_diagonal=True, variational_bayes=True
    )
    sources, targets = map(list, zip(*corpus(60, seed=3), strict=True))
    expected = systran_align.Aligner(*map(str, paths)).align_batch(sources, targets)
    forward, reverse = (Model.read(path, START_TENSION) for path in paths)
    combine = COMBINE["grow-diag-final-and"]
    for one, two, library in zip(
        forward.links(sources, targets), reverse.links(targets, sources), expected, strict=True
    ):
        there = {(i, j) for j, i in enumerate(one.tolist()) if i >= 0}
        back = {(i, j) for i, j in enumerate(two.tolist()) if j >= 0}
        assert combine(there, back) == set(library["alignments"])


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "forward"
    for content in (b"", b"\2\0", struct.pack("<ii", 2, 1) + b"word\0" + bytes(4), bytes(20)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="forward of systran-align has an unknown form"):
            Model.read(path)


# -- symmetrisation


@given(LINKS, LINKS)
def test_symmetrisations_lie_between_intersection_and_union(
    forward: set[Link], reverse: set[Link]
) -> None:
    found = {name: combine(set(forward), set(reverse)) for name, combine in COMBINE.items()}
    assert found["forward"] == forward
    assert found["reverse"] == reverse
    assert found["intersect"] == forward & reverse
    assert found["union"] == forward | reverse
    assert (
        found["intersect"] <= found["grow-diag"] <= found["grow-diag-final-and"] <= found["union"]
    )


def test_growing_takes_neighbours_and_the_end_takes_the_unlinked() -> None:
    forward = {(0, 0), (1, 1), (1, 0), (4, 4), (3, 0)}
    reverse = {(0, 0), (0, 1), (2, 2)}
    # 0-1 touches 0-0 and brings in target 1; then 1-0 brings in source 1, 1-1 nothing new, and 2-2 touches none of
    # these until 1-1 would; 3-0 and 4-4 touch nothing.
    grown = COMBINE["grow-diag"](forward, reverse)
    assert grown == {(0, 0), (0, 1), (1, 0)}
    assert COMBINE["grow-diag-final-and"](forward, reverse) == grown | {(4, 4), (2, 2)}


# -- files


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9)), max_size=4), max_size=8),
    st.integers(1, 4),
)
def test_links_are_read_in_parts(
    tmp_path_factory: pytest.TempPathFactory, lines: list[list[Link]], size: int
) -> None:
    path = tmp_path_factory.mktemp("links") / "links"
    path.write_text("".join(" ".join(f"{i}-{j}" for i, j in line) + "\n" for line in lines))
    parts = list(read_links(path, size))
    assert [len(counts) for _, counts in parts[:-1]] == [size] * len(parts[:-1])
    counted = [count for _, counts in parts for count in counts.tolist()]
    assert counted == [len(line) for line in lines]
    links = [tuple(link) for found, _ in parts for link in found.tolist()]
    assert links == [link for line in lines for link in line]


@pytest.mark.parametrize("bad", ["0-0 1", "0-0-1", "a-b", "0-0,1-1", "1 - 2", "-1-2"])
def test_a_line_of_another_form_is_named(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "links"
    path.write_text(f"0-0\n\n1-1 2-2\n{bad}\n0-0\n")
    with pytest.raises(ValueError, match=r"links, line 4: .* is not of the form 0-0 1-2"):
        list(read_links(path, 3))


def test_texts_of_different_length_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a b\n\nc\n")
    (tmp_path / "two").write_text("d\ne\n")
    pairs = read_text(tmp_path / "one", tmp_path / "two")
    assert [next(pairs), next(pairs)] == [(["a", "b"], ["d"]), ([], ["e"])]
    with pytest.raises(ValueError, match="different numbers of lines"):
        next(pairs)


# -- the aligners

FAKE = f"""#!{sys.executable}
import sys
name, *options = sys.argv
if name.endswith("fail"):
    sys.exit(3)
reverse = "-r" in options
for line in open(options[options.index("-i") + 1]):
    sides = [side.split() for side in line.split(" ||| ")]
    if len(sides) == 2:  # fast_align: links to the first word of the other side
        print(*(f"{{k}}-0" if reverse else f"0-{{k}}" for k in range(len(sides[not reverse]))))
    else:  # atools: the method and the files' first line
        print("7-7", *line.split())
"""


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    paths = {name: tmp_path / name for name in ("fast_align", "atools", "fail")}
    for path in paths.values():
        path.write_text(FAKE)
        path.chmod(0o755)
    return {name: str(path) for name, path in paths.items()}


PAIRS: list[tuple[list[str], list[str]]] = [
    (["a", "b"], ["c", "d", "e"]),
    ([], ["c"]),
    (["a"], []),
    (["|||"], ["c"]),
]


@needs_library
def test_systran_aligns_translations_and_leaves_empty_lines(tmp_path: Path) -> None:
    pairs = [*corpus(60), (["haus"], []), ([], [])]
    output = tmp_path / "new" / "links"
    count = Aligner(symmetrisation="intersect", iterations=4).align(iter(pairs), output)
    lines = output.read_text().splitlines()
    assert len(lines) == 62
    assert lines[60:] == ["", ""]
    right = 0
    for (source, target), line in zip(pairs, lines, strict=True):
        links = [tuple(map(int, link.split("-"))) for link in line.split()]
        right += sum(TRANSLATION[source[i]] == target[j] for i, j in links)
    words = sum(len(source) for source, _ in pairs[:60])
    assert count == sum(line.count("-") for line in lines)
    assert right >= 0.95 * max(words, count)
    assert [path.name for path in output.parent.iterdir()] == ["links"]


@needs_library
def test_numbers_are_aligned_like_words(tmp_path: Path) -> None:
    numbers = {word: number for number, word in enumerate([*TRANSLATION, *TRANSLATION.values()], 4)}
    pairs = corpus(30)
    coded = [tuple([numbers[word] for word in side] for side in pair) for pair in pairs]
    for name, some in (("words", pairs), ("numbers", coded)):
        Aligner(iterations=2).align([(one, two) for one, two in some], tmp_path / name)
    assert (tmp_path / "words").read_text() == (tmp_path / "numbers").read_text()


def test_programs_of_ones_own_align(tmp_path: Path, programs: dict[str, str]) -> None:
    def lines(symmetrisation: str) -> list[str]:
        aligner = Aligner(
            "fast_align", symmetrisation, 5, programs["fast_align"], programs["atools"]
        )
        aligner.align(PAIRS, tmp_path / "links")
        return (tmp_path / "links").read_text().splitlines()

    assert lines("forward") == ["0-0 0-1 0-2", "", "", "0-0"]
    assert lines("reverse") == ["0-0 1-0", "", "", "0-0"]
    assert lines("grow-diag") == ["7-7 0-0 0-1 0-2", "", "", "7-7 0-0"]


def test_nothing_to_align_is_no_error(tmp_path: Path, programs: dict[str, str]) -> None:
    aligner = Aligner("fast_align", "forward", fast_align=programs["fail"])
    assert aligner.align([([], ["c"])], tmp_path / "links") == 0
    assert (tmp_path / "links").read_text() == "\n"


def test_what_fails_is_told(
    tmp_path: Path, programs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Aligner("fast_align", "forward", fast_align=programs["fail"])
    with pytest.raises(RuntimeError, match="fail failed with status 3"):
        broken.align(PAIRS, tmp_path / "links")
    assert not (tmp_path / "links").exists()
    Path(programs["atools"]).write_text("#!/bin/sh\n")
    silent = Aligner("fast_align", "union", 5, programs["fast_align"], programs["atools"])
    with pytest.raises(RuntimeError, match="fast_align wrote fewer lines than it was given"):
        silent.align(PAIRS, tmp_path / "links")
    monkeypatch.setattr(word_alignment, "find_spec", lambda name: True)
    monkeypatch.setattr(word_alignment, "_ESTIMATE", "raise SystemExit('out of memory')")
    with pytest.raises(RuntimeError, match="systran-align failed with status 1: out of memory"):
        Aligner().align(PAIRS, tmp_path / "links")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["atools", "fail", "fast_align"]


def test_wrong_choices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--iterations is 0"):
        Aligner(iterations=0)
    with pytest.raises(FileNotFoundError, match="no program nowhere; name it with --fast-align"):
        Aligner("fast_align", fast_align="nowhere")
    with pytest.raises(FileNotFoundError, match="no program nowhere; name it with --atools"):
        Aligner("fast_align", fast_align=sys.executable, atools="nowhere")
    monkeypatch.setattr(word_alignment, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'systran-align"):
        Aligner()


def test_what_a_killed_run_left_is_removed(tmp_path: Path, programs: dict[str, str]) -> None:
    (tmp_path / "links.align").mkdir()
    (tmp_path / "links.align" / "corpus").write_text("of before")
    aligner = Aligner("fast_align", "forward", fast_align=programs["fast_align"])
    aligner.align([(["a"], ["b"])], tmp_path / "links")
    assert (tmp_path / "links").read_text() == "0-0\n"
    assert not (tmp_path / "links.align").exists()
