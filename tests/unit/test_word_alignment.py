"""Word alignment: links against the original fast_align's, files, a program, refusals."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_aggdec.lattice.alignment import estimation
from fairseq_aggdec.lattice.alignment.word_alignment import Aligner, Link, read_links
from tests.origins.fast_align import captions

# Source ||| target ||| links ||| links with -r, as tests/origins/fast_align.py records them from the original.
RECORDED = [
    [part.split() for part in line.split("|||")]
    for line in Path(__file__).with_name("fast_align.txt").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("part", [estimation._PART, 5000])
def test_links_are_those_of_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(estimation, "_PART", part)
    pairs = [(source, target) for source, target, _, _ in RECORDED]
    expected = {
        "forward": [set(forward) for _, _, forward, _ in RECORDED],
        "reverse": [set(reverse) for _, _, _, reverse in RECORDED],
    }
    expected["union"] = list(map(set.union, *expected.values()))
    for symmetrisation, links in expected.items():
        count = Aligner(symmetrisation).align(iter(pairs), tmp_path / "new" / "links")
        lines = (tmp_path / "new" / "links").read_text().splitlines()
        assert [set(line.split()) for line in lines] == links
        assert count == sum(map(len, links))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["links"]


SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared with Multi30k and the links")
def test_links_of_4000_captions_are_those_of_the_original(tmp_path: Path) -> None:
    """Two places that are equally far from the diagonal differ by rounding: ten lines at most may."""
    pairs = captions(SHARED / "data" / "multi30k", 4000)
    found: dict[str, list[set[str]]] = {}
    for direction in ("forward", "reverse"):
        Aligner(direction).align(pairs, tmp_path / direction)
        lines = (tmp_path / direction).read_text().splitlines()
        found[direction] = [set(line.split()) for line in lines]
    found["union"] = list(map(set.union, found["forward"], found["reverse"]))
    for name, links in found.items():
        with gzip.open(SHARED / "cases" / "fast_align" / f"{name}-4000.gz", "rt") as lines:
            original = [set(line.split()) for line in lines]
        same = sum(own == other for own, other in zip(links, original, strict=True))
        assert len(original) == 4000 and same >= 3990, name


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


# -- words and numbers, a program

FAKE = f"""#!{sys.executable}
import sys
name, *options = sys.argv
if name.endswith("fail"):
    sys.exit(3)
for line in open(options[options.index("-i") + 1]):
    sides = [side.split() for side in line.split(" ||| ")]
    if name.endswith("silent"):
        break
    print(*(f"{{k}}-0" if "-r" in options else f"0-{{k}}" for k in range(len(sides["-r" not in options]))))
"""  # links to the first word of the other side


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    paths = {name: tmp_path / name for name in ("fast_align", "silent", "fail")}
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


def test_numbers_are_aligned_like_words(tmp_path: Path) -> None:
    pairs = [*PAIRS, *((source, target) for source, target, _, _ in RECORDED[:30])]
    numbers = {
        word: at for at, word in enumerate({w for pair in pairs for side in pair for w in side})
    }
    coded = [tuple([numbers[word] for word in side] for side in pair) for pair in pairs]
    for name, some in (("words", pairs), ("numbers", coded)):
        Aligner(iterations=2).align([(one, two) for one, two in some], tmp_path / name)
    assert (tmp_path / "words").read_text() == (tmp_path / "numbers").read_text()
    assert (tmp_path / "words").read_text().split("\n")[1:3] == ["", ""]


def test_the_original_program_aligns(tmp_path: Path, programs: dict[str, str]) -> None:
    def lines(symmetrisation: str) -> list[str]:
        Aligner(symmetrisation, program=programs["fast_align"]).align(PAIRS, tmp_path / "links")
        return (tmp_path / "links").read_text().splitlines()

    assert lines("forward") == ["0-0 0-1 0-2", "", "", "0-0"]
    assert lines("reverse") == ["0-0 1-0", "", "", "0-0"]
    assert lines("union") == ["0-0 0-1 0-2 1-0", "", "", "0-0"]


@pytest.mark.parametrize("program", [None, "fail"])
def test_nothing_to_align_is_no_error(
    tmp_path: Path, programs: dict[str, str], program: str | None
) -> None:
    aligner = Aligner("forward", program=program and programs[program])
    assert aligner.align([([], ["c"])], tmp_path / "links") == 0
    assert (tmp_path / "links").read_text() == "\n"


def test_what_fails_is_told(tmp_path: Path, programs: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="fail failed with status 3"):
        Aligner("forward", program=programs["fail"]).align(PAIRS, tmp_path / "links")
    assert not (tmp_path / "links").exists()
    with pytest.raises(RuntimeError, match="silent wrote fewer lines than it was given"):
        Aligner(program=programs["silent"]).align(PAIRS, tmp_path / "links")
    assert {path.name for path in tmp_path.iterdir()} == set(programs)


def test_wrong_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="--iterations is 0"):
        Aligner(iterations=0)
    with pytest.raises(FileNotFoundError, match="no program nowhere; name it with --fast-align"):
        Aligner(program="nowhere")


def test_what_a_killed_run_left_is_removed(tmp_path: Path, programs: dict[str, str]) -> None:
    (tmp_path / "links.align").mkdir()
    (tmp_path / "links.align" / "corpus").write_text("of before")
    Aligner("forward", program=programs["fast_align"]).align([(["a"], ["b"])], tmp_path / "links")
    assert (tmp_path / "links").read_text() == "0-0\n"
    assert not (tmp_path / "links.align").exists()
