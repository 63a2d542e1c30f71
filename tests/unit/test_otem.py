"""OTEM and UTEM against cases that were worked by hand, and against a slow reference."""

from __future__ import annotations

import json
from math import exp, prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.recipes.interleaved import otem


def words(line: str) -> list[str]:
    return line.split()


REFERENCE = words("a dog sees the dog")


def slowly(pairs: list[tuple[list[str], list[str]]], over: bool) -> float:
    """OTEM (``over``) or UTEM without counters: every n-gram of a sentence is looked for in lists."""
    shares = []
    for n in range(1, (2 if over else 4) + 1):
        matches = total = 0
        for hypothesis, reference in pairs:
            found, wanted = (
                [side[i : i + n] for i in range(len(side) - n + 1)]
                for side in (hypothesis, reference)
            )
            for gram in {tuple(gram) for gram in (found if over else wanted)}:
                count, allowed = found.count(list(gram)), wanted.count(list(gram))
                matches += max(0, count - max(1, allowed) if over else allowed - count)
            total += len(found if over else wanted)
        shares.append(matches / max(1, total))
    lengths = [sum(len(pair[side]) for pair in pairs) for side in (0, 1)]
    penalty = 1.0
    if over and lengths[0] >= lengths[1] > 0:
        penalty = exp(1 - lengths[1] / lengths[0])
    if not over and lengths[1] >= lengths[0] > 0:
        penalty = exp(1 - lengths[0] / lengths[1])
    return float(penalty * prod(shares) ** (1 / len(shares)))


@given(
    st.lists(
        st.tuples(*[st.lists(st.sampled_from("abc"), min_size=1, max_size=9)] * 2),
        min_size=1,
        max_size=4,
    )
)
def test_scores_are_those_of_a_slow_reference(pairs: list[tuple[list[str], list[str]]]) -> None:
    assert otem.otem(pairs) == pytest.approx(slowly(pairs, over=True))
    assert otem.utem(pairs) == pytest.approx(slowly(pairs, over=False))


def test_scores_of_a_set_with_their_length_penalties() -> None:
    """Counts of sentences add up; OTEM punishes what is too long, UTEM what is too short."""
    pairs = [(words("a dog dog sees a dog"), REFERENCE), (words("so it is"), words("so it is"))]
    # Words: "dog" once and "a" once too often of 9. Pairs of words: "a dog" once too often of 7.
    mean = (2 / 9 * 1 / 7) ** 0.5
    assert otem.otem(pairs) == pytest.approx(exp(1 - 8 / 9) * mean)
    # Missing: "the" of 8 words, "sees the" and "the dog" of 6, "dog sees the" and "sees the dog" of 4, both of 2; and
    # "dog sees" is there, "a dog sees" is not.
    mean = (1 / 8 * 2 / 6 * 3 / 4 * 2 / 2) ** 0.25
    assert otem.utem(pairs) == pytest.approx(mean)
    short = [(words("so it"), words("so it is now"))]
    assert otem.otem(short) == 0
    assert otem.utem(short) == pytest.approx(exp(1 - 2 / 4) * (2 / 4 * 2 / 3) ** 0.25)


def test_files_of_both_kinds_and_the_table(tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("The dog runs.\nA cat.\n")
    (tmp_path / "lines.txt").write_text("The dog the dog The dog runs.\nA cat.\n")
    printed = "S-1\tx\nH-1\t-0.5\tA cat.\nH-0\t-0.5\tThe dog the dog The dog runs.\n"
    (tmp_path / "generate.txt").write_text(printed)
    given = ["--references", str(tmp_path / "ref"), "--output", str(tmp_path / "table")]
    for name in ("lines", "generate"):
        given += ["--system", f"c = 1, {name}={tmp_path / name}.txt"]
    otem.main(given)
    first, second = json.loads((tmp_path / "table.json").read_text())["results"]
    assert first.pop("system") == "c = 1, lines" and second.pop("system") == "c = 1, generate"
    assert first == second and first["otem"] > 0


@pytest.mark.parametrize(
    ("system", "says"), [("nothing", "give NAME=FILE"), ("a=ref2", "a: 1 hypotheses for 2 ref")]
)
def test_refusals(system: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ref").write_text("a\nb\n")
    Path("ref2").write_text("a\n")
    with pytest.raises(SystemExit, match=says):
        otem.main(["--references", "ref", "--system", system])
