"""Reading M2 files and turning them into parallel text."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.recipes.aggressive.m2 import (
    AnnotatedSentence,
    Edit,
    M2Error,
    main,
    parallel_pairs,
    read_m2,
)

TWO_ANNOTATORS = """\
S The cat sat at mat .
A 3 4|||Prep|||on|||REQUIRED|||-NONE-|||0
A 4 4|||ArtOrDet|||the||a|||REQUIRED|||-NONE-|||0

S The dog .
A 1 2|||NN|||dogs|||REQUIRED|||-NONE-|||0
A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1

S Giant otters is an apex predator .
A 2 3|||SVA|||are|||REQUIRED|||-NONE-|||0
A 3 4|||ArtOrDet|||-NONE-|||REQUIRED|||-NONE-|||0
A 5 6|||NN|||predators|||REQUIRED|||-NONE-|||0
A 1 2|||NN|||otter|||REQUIRED|||-NONE-|||1

S Nothing to correct .
"""


def _read(tmp_path: Path, text: str) -> list[AnnotatedSentence]:
    path = tmp_path / "gold.m2"
    path.write_text(text, encoding="utf-8", newline="")
    return list(read_m2(path))


def test_reads_sentences_edits_and_annotators(tmp_path: Path) -> None:
    first, second, third, fourth = _read(tmp_path, TWO_ANNOTATORS)
    assert first.tokens == ("The", "cat", "sat", "at", "mat", ".")
    assert first.annotations[0] == (
        Edit(3, 4, "Prep", (("on",),), 0),
        Edit(4, 4, "ArtOrDet", (("the",), ("a",)), 0),
    )
    assert {a: len(edits) for a, edits in second.annotations.items()} == {0: 1, 1: 0}
    assert third.annotations[0][1].corrections == ((),)
    assert fourth.annotations == {0: ()}


def test_applies_corrections_of_one_annotator(tmp_path: Path) -> None:
    first, second, third, fourth = _read(tmp_path, TWO_ANNOTATORS)
    assert " ".join(first.corrected()) == "The cat sat on the mat ."
    assert " ".join(second.corrected(1)) == "The dog ."
    assert " ".join(third.corrected(0)) == "Giant otters are apex predators ."
    assert " ".join(third.corrected(1)) == "Giant otter is an apex predator ."
    assert " ".join(fourth.corrected(7)) == "Nothing to correct ."


def test_leaves_uncorrected_and_overlapping_edits_alone(tmp_path: Path) -> None:
    (sentence,) = _read(
        tmp_path,
        "S a b c d\n"
        "A 0 1|||UNK|||zzz|||REQUIRED|||-NONE-|||0\n"
        "A 1 3|||X|||B C|||REQUIRED|||-NONE-|||0\n"
        "A 2 4|||X|||overlap|||REQUIRED|||-NONE-|||0\n",
    )
    assert sentence.corrected() == ["a", "B", "C", "d"]


def test_unicode_line_separators_and_carriage_returns_do_not_end_a_line(tmp_path: Path) -> None:
    (sentence,) = _read(tmp_path, "S a\u2028b c\r\nA 0 1|||X|||A|||REQUIRED|||-NONE-|||0\r\n\r\n")
    assert sentence.tokens == ("a", "b", "c")
    assert sentence.corrected() == ["A", "b", "c"]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("A 0 1|||X|||a|||REQUIRED|||-NONE-|||0\n", 1, "before any S line"),
        ("S a\nA 0 1|||X|||a|||REQUIRED|||0\n", 2, "6 fields"),
        ("S a\nA 0 x|||X|||a|||REQUIRED|||-NONE-|||0\n", 2, "two integers"),
        ("S a\nA 0|||X|||a|||REQUIRED|||-NONE-|||0\n", 2, "two integers"),
        ("S a\n\nS b\nA 0 2|||X|||a|||REQUIRED|||-NONE-|||0\n", 4, "sentence of 1 tokens"),
        ("S a\nA 0 1|||X|||a|||REQUIRED|||-NONE-|||someone\n", 2, "annotator"),
        ("S a\nB oops\n", 2, "expected an S line"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, text: str, line: int, reason: str) -> None:
    with pytest.raises(M2Error, match=reason) as caught:
        _read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'gold.m2'}:{line}: ")


def test_characters_move_the_offsets() -> None:
    sentence = AnnotatedSentence(
        ("我", "喜欢", "吃", "苹果"),
        {0: (Edit(1, 2, "S", (("爱",),), 0), Edit(4, 4, "M", (("。",),), 0))},
    )
    characters = sentence.characters()
    assert characters.tokens == tuple("我喜欢吃苹果")
    assert [(e.start, e.end) for e in characters.annotations[0]] == [(1, 3), (6, 6)]
    assert "".join(characters.corrected()) == "".join(sentence.corrected()) == "我爱吃苹果。"


def test_pairs_of_all_annotators_without_repetition(tmp_path: Path) -> None:
    sentences = _read(tmp_path, TWO_ANNOTATORS)
    assert len(list(parallel_pairs(sentences))) == 4
    assert len(list(parallel_pairs(sentences, changed_only=True))) == 3
    everyone = list(parallel_pairs(sentences, annotator=None))
    assert [source for source, _ in everyone].count("Giant otters is an apex predator .") == 2
    assert len(everyone) == 6
    agreeing = AnnotatedSentence(("a",), {0: (), 1: ()})
    assert list(parallel_pairs([agreeing], annotator=None)) == [("a", "a")]


def test_empty_sides_are_no_training_pairs() -> None:
    deleted = AnnotatedSentence(("a",), {0: (Edit(0, 1, "U", ((),), 0),)})
    assert list(parallel_pairs([deleted, AnnotatedSentence((), {0: ()})])) == []


def test_command_writes_parallel_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = tmp_path / "gold.m2"
    gold.write_text(TWO_ANNOTATORS, encoding="utf-8")
    source, target = tmp_path / "x.src", tmp_path / "x.tgt"
    main(["--source", str(source), "--target", str(target), "--annotator", "all", str(gold)])
    assert capsys.readouterr().out.startswith("6 lines")
    assert source.read_text().count("\n") == target.read_text().count("\n") == 6
    main(["--source", str(source), str(gold)])
    assert source.read_text().splitlines()[1] == "The dog ."


def test_command_reports_a_malformed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = tmp_path / "gold.m2"
    gold.write_text("S a\nA broken\n", encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        main(["--source", str(tmp_path / "x"), str(gold)])
    assert caught.value.code == 2
    assert f"{gold}:2" in capsys.readouterr().err
