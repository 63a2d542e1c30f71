"""Random options of the command line: accepted and equal to stock, left to stock, or refused in one sentence."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.fuzz import budget, command_line
from tests.fuzz.command_line import Given, Outcome, difference, fault

TEST = "tests/fuzz/test_command_line.py::test_random_options"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return command_line.prepare(tmp_path_factory.mktemp("options"))


@pytest.mark.parametrize("decoding", ["beam", "iad"])
def test_usual_options_are_accepted(decoding: str, models: dict[str, Path]) -> None:
    """Else everything would be refused, and nothing would be a fault."""
    paths = {"--path": models["transformer"]}
    given = Given(decoding, {"--lenpen": 0.5}, {}, paths, models["transformer"].parent)
    ended = []

    def generate(arguments: list[str]) -> Outcome:
        ended.append(command_line.generate(arguments))
        return ended[-1]

    assert fault(given, generate) is None
    assert [outcome.status for outcome in ended] == [0, 0]
    assert [len(outcome.hypotheses) for outcome in ended] == [command_line.SENTENCES] * 2


def test_random_options(models: dict[str, Path]) -> None:
    folder = models["transformer"].parent
    for seed in budget.seeds():
        given = Given.of(seed, folder, models)
        found = fault(given)
        line = shlex.join(given.arguments())
        assert found is None, f"{budget.again(TEST, seed)}\naggdec-generate {line}\n{found}"


def test_what_is_a_fault(models: dict[str, Path]) -> None:
    given = Given("iad", {}, {}, {"--path": models["transformer"]}, models["transformer"].parent)
    right = Outcome(0, "", {"0": [(-1.0, "a")]})

    def said(ours: Outcome, stock: Outcome = right) -> str | None:
        return fault(given, lambda arguments: stock if "stock" in arguments else ours)

    assert said(right) is None
    assert "of stock" in (said(Outcome(0, "", {"0": [(-1.5, "a")]})) or "")
    assert "numbers of hypotheses" in (said(Outcome(0, "", {})) or "")
    assert said(Outcome(2, "aggdec-generate: error: --x\n", {})) is None
    assert "not in one" in (said(Outcome(2, "error: a\nerror: b\n", {})) or "")
    assert "ended with IndexError" in (said(Outcome(None, "IndexError: 3", {})) or "")
    assert said(right, Outcome(None, "AssertionError", {})) is None
    assert difference({"0": [(-1.0, "a")]}, {"0": [(-1.0, "b")]}) is None
