"""Token-level GEC scores and copied runs: hand-worked sentences, general laws, the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.records.gec_score import EditCounts, TokenEdit, corpus_counts, extract_edits
from scripts.recipes.aggressive.gec_score import (
    copied_runs,
    copy_counts,
    main,
    score_sentences,
)
from scripts.recipes.aggressive.m2 import read_m2

SENTENCES = st.lists(st.sampled_from("abcd"), max_size=8)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("a b c", "a b c", []),
        ("", "", []),
        ("a b c", "a X c", [(1, 2, "X")]),
        ("a b c", "a c", [(1, 2, "")]),
        ("a c", "a b c", [(1, 1, "b")]),
        ("a b", "", [(0, 2, "")]),
        ("", "a b", [(0, 0, "a b")]),
        # word for word: two edits; otherwise neighbouring changes are one
        ("a b c", "X Y c", [(0, 1, "X"), (1, 2, "Y")]),
        ("a b c", "X c", [(0, 2, "X")]),
        ("a b c", "X Y Z b c", [(0, 1, "X Y Z")]),
        # a kept word separates
        ("a b c", "X b Y", [(0, 1, "X"), (2, 3, "Y")]),
    ],
)
def test_hand_worked_edits(source: str, target: str, expected: list[tuple[int, int, str]]) -> None:
    edits = [TokenEdit(start, end, tuple(text.split())) for start, end, text in expected]
    assert extract_edits(source.split(), target.split()) == edits


@given(SENTENCES, SENTENCES)
def test_edits_turn_source_into_target(source: list[str], target: list[str]) -> None:
    found = list(source)
    for edit in reversed(extract_edits(source, target)):
        found[edit.start : edit.end] = edit.correction
    assert found == target


def _counts(source: str, hypothesis: str, *references: str) -> EditCounts:
    split = [[text.split()] for text in (source, hypothesis, *references)]
    return corpus_counts(split[0], split[1], split[2:])


def test_hand_worked_counts() -> None:
    # gold: b -> X, d -> Y; proposed: b -> X, c deleted
    assert _counts("a b c d", "a X d", "a X c Y") == (0, 1, 2)  # one edit "b c" -> "X"
    assert _counts("a b c d e", "a X c e", "a X c Y e") == (1, 2, 2)
    assert _counts("a b", "a b", "a b") == (0, 0, 0)


def test_the_better_annotator_counts() -> None:
    assert _counts("a b c", "a X c", "a b Y", "a X c") == (1, 1, 1)
    # nothing was changed, and one annotator agrees
    assert _counts("a b c", "a b c", "X b Y", "a b c") == (0, 0, 0)


def test_measures() -> None:
    counts = EditCounts(correct=3, proposed=4, gold=10)
    assert (counts.precision, counts.recall) == (0.75, 0.3)
    # 1.25 * P * R / (0.25 * P + R)
    assert counts.f_measure() == pytest.approx(1.25 * 0.75 * 0.3 / (0.25 * 0.75 + 0.3))
    assert EditCounts(0, 0, 0).f_measure() == 1.0
    assert EditCounts(0, 0, 5).f_measure() == 0.0
    assert EditCounts(0, 0, 5).precision == 1.0
    assert EditCounts(0, 5, 0).recall == 1.0


@pytest.mark.parametrize(
    ("source", "output", "runs"),
    [
        ("a b c d e", "a b c d e", [5]),
        ("a b c d e", "a b X d e", [2, 2]),
        ("a b c d e", "a b d e", [2, 2]),
        ("a b", "x y", []),
        ("", "", []),
    ],
)
def test_copied_runs(source: str, output: str, runs: list[int]) -> None:
    assert copied_runs(source.split(), output.split()) == runs


def test_only_long_runs_count_as_copied() -> None:
    counts = copy_counts(list("abcdefg"), list("abcXefY"))
    assert (counts.tokens, counts.copied, counts.runs, counts.in_runs) == (7, 3, 2, 5)
    assert counts.share == pytest.approx(3 / 7)
    assert counts.mean_run == pytest.approx(2.5)


def test_scores_of_lines() -> None:
    score = score_sentences(["a b c d", "e f"], ["a X c d", "e f"], [["a X c d", "e g"]])
    assert (score.precision, score.recall, score.changed_sentences) == (1.0, 0.5, 1)
    assert (score.copied_share, score.mean_copied_run) == (0.0, pytest.approx(5 / 3))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    texts = {"src": "a b\nc d\n", "out": "a X\nc d\n", "ref": "a X\nc Y\n", "short": "a b\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: str(tmp_path / name) for name in texts}


def test_command_prints_a_row_for_each_file(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--source", files["src"], "--references", files["ref"], "--hypothesis"]
    main([*arguments, f"mine={files['out']}", files["src"]])
    _, _, mine, source = capsys.readouterr().out.splitlines()
    assert mine.startswith("| mine | 100.00 | 50.00 | 83.33 | 1 | 1 | 2 |")
    assert source.startswith(f"| {files['src']} | 100.00 | 0.00 | 0.00 |")
    main([*arguments, f"mine={files['out']}", "--json"])
    assert json.loads(capsys.readouterr().out)["mine"]["recall"] == 0.5


def test_references_as_m2(tmp_path: Path) -> None:
    texts = {"src": "a b c\nd\n", "one": "a c\nd\n", "two": "a b X c\nY\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    source, one, two, gold = (str(tmp_path / name) for name in ("src", "one", "two", "gold"))
    references = ["--references", one, two, "--write-m2", gold]
    main(["--source", source, "--hypothesis", source, *references])
    sentences = list(read_m2(gold))
    assert [" ".join(s.tokens) for s in sentences] == ["a b c", "d"]
    assert [" ".join(s.corrected(0)) for s in sentences] == ["a c", "d"]
    assert [" ".join(s.corrected(1)) for s in sentences] == ["a b X c", "Y"]


def test_command_refuses_files_of_other_length(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(
            ["--source", files["src"], "--references", files["ref"], "--hypothesis", files["short"]]
        )
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert f"{files['short']} has 1 lines, but {files['src']} has 2" in message
