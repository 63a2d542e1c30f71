"""Every case of the fault suite through its command, and the page that lists them."""

from __future__ import annotations

import functools
import io
import warnings
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec.cli import refusals
from fairseq_aggdec.cli.distill import UNFINISHED
from tests.cli.commands import ROOT
from tests.cli.faults import bench as work
from tests.cli.faults.bench import GENERATING, REFUSED, SENTENCES, WARNED, Bench, Case, Ended
from tests.cli.faults.elsewhere import ELSEWHERE
from tests.cli.faults.files import RAN
from tests.cli.faults.page import all_cases, page

CASES = all_cases()
LONGEST = 450  # letters of a message, without the places of this run
# What a person is not to be told: faults of ours, and the loader's advice to trust a file.
OURS = (AssertionError, AttributeError, IndexError, KeyError, NameError, TypeError)
OURS += (UnboundLocalError, ZeroDivisionError, MemoryError, RecursionError)
ADVICE = ("weights_only", "weights only", "trust", "unsafe")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("faults"))
    made.make()
    return made


def check_refused(case: Case, ended: Ended, places: list[str]) -> None:
    assert ended.error is not None, f"it ended well, with {ended.stdout[-300:]!r}"
    if (
        not case.as_stock
    ):  # there fairseq's own assertions count, which the commands make one line of
        assert not isinstance(ended.error, OURS), repr(ended.error)
    assert case.says in ended.message, ended.message
    said = ended.message
    for place in places:
        said = said.replace(place, "")
    assert 0 < len(said) <= LONGEST
    assert "\n" not in said.strip(), said
    assert not any(words in said.lower() for words in ADVICE), said
    assert not ended.hypotheses(), "something was decoded first"


def check_command(error: BaseException | None) -> None:
    """The commands ``aggdec-*`` and ``aggdec`` make one line of it and end with 2."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        assert error.code in (
            refusals.REFUSED,
            UNFINISHED,
        )  # the latter: shards are still to be decoded
        return

    def command(arguments: list[str]) -> None:
        assert error is not None
        raise error

    said = io.StringIO()
    with redirect_stderr(said):
        status = refusals.run("aggdec", command, [])
    assert status == refusals.REFUSED
    assert said.getvalue().startswith("aggdec: error: ")
    assert said.getvalue().count("\n") == 1
    assert "Traceback" not in said.getvalue()


def check_done(case: Case, ended: Ended, bench: Bench, tmp: Path) -> None:
    assert ended.error is None, repr(ended.error)
    if case.outcome == WARNED:
        assert any(case.says in line for line in ended.log), ended.log
    if case.command not in GENERATING:
        return
    found = ended.hypotheses()
    if case.lossless:
        stock = "--decoding beam --path {model}"
        for option in ("--unkpen", "--no-repeat-ngram-size", "--source-lang", "--target-lang"):
            words = case.options.split()
            if option in words and option != "--no-repeat-ngram-size":
                stock += f" {option} {words[words.index(option) + 1]}"
        if "{blockwise}" in case.options:
            stock = stock.replace("{model}", "{blockwise}")
        if case.as_stock:
            stock = f"--decoding stock {case.options}"
        assert found == oracle(bench, case.command, stock, case.stdin)
    assert found or case.command == "fairseq-interactive"
    if case.command == "fairseq-generate" and case.lossless:
        assert len(found) == SENTENCES["test"]


@functools.cache
def oracle(bench: Bench, command: str, options: str, stdin: str) -> Any:
    """Many cases have the same."""
    ended = work.run(bench, Case("", "", command, options, work.WORKS, stdin=stdin), bench.folder)
    assert ended.error is None
    return ended.hypotheses()


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_fault(case: Case, bench: Bench, tmp_path: Path) -> None:
    if case.make is not None:
        case.make(bench, tmp_path)
    before, own = work.contents(bench.folder), work.contents(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended = work.run(bench, case, tmp_path)
    if case.outcome == REFUSED:
        check_refused(case, ended, [str(tmp_path), str(bench.folder)])
        check_command(ended.error)
    else:
        check_done(case, ended, bench, tmp_path)
    after = work.contents(tmp_path)
    assert RAN not in after, "code of the file ran"
    assert work.contents(bench.folder) == before, "a file that others need was changed"
    assert {name: after.get(name) for name in own} == own, "a file was changed or lost"
    if case.outcome == REFUSED and not case.writes:
        assert after == own, "a refused command wrote something"


def test_hidden_code_would_run(bench: Bench, tmp_path: Path) -> None:
    """The corpus is what it says: loaded without care, its files do run code."""
    import pickle

    import torch

    from tests.cli.faults.files import HOSTILE, hostile

    ran = set()
    for number, kind in enumerate(HOSTILE):
        folder = tmp_path / str(number)
        folder.mkdir()
        hostile(kind, True)(bench, folder)
        content = (folder / "evil.pt").read_bytes()
        try:
            if content[:1] == b"\x80" and content[1:2] == b"\x02" and b"PROTO" not in content:
                torch.load(folder / "evil.pt", weights_only=False)
            else:
                pickle.loads(content)
        except Exception:
            pass
        if (folder / RAN).exists():
            ran.add(kind)
    assert len(ran) >= 17, set(HOSTILE) - ran


def test_every_class_has_its_cases() -> None:
    assert len(CASES) >= 120
    assert len({case.id for case in CASES}) == len(CASES)
    assert {case.outcome for case in CASES} == {REFUSED, WARNED, work.WORKS}
    assert all(case.says for case in CASES if case.outcome != work.WORKS)


@pytest.mark.parametrize("test", [test for _, test in ELSEWHERE.values()])
def test_the_other_tests_are_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    written = (ROOT / "docs" / "results" / "faults.md").read_text(encoding="utf-8")
    assert written == page(), "python -m tests.cli.faults > docs/results/faults.md"
