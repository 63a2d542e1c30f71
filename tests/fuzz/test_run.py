"""The audit of random models: cases come from their number, a run resumes, and a wrong output is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fairseq_aggdec.audit.equality import Audit, Difference
from tests.fuzz import audits, budget, cases, run
from tests.fuzz.cases import Case

# A case with all methods, two of whose families have trees.
SMALL = replace(Case.of(3), large=True, sentences=6, batch_size=6)


def test_a_case_is_its_number() -> None:
    assert Case.of(7) == Case.of(7)
    some = [Case.of(seed) for seed in range(300)]
    assert len({str(case.shape) for case in some}) > 100
    assert len({str(case.options) for case in some}) > 100
    assert {case.models for case in some} == {1, 2, 3}
    assert {case.beam for case in some} == set(range(2, 11))
    assert {case.shape.get("decoder_layers", 0) for case in some} == {0, 1, 2, 3}
    for option, values in cases.VALUES.items():
        assert {case.options[option] for case in some} >= set(values)
    assert {case.wants("greedy") for case in some} == {True, False}
    assert all(Case.of(seed, large=True).wants("greedy") for seed in range(9))


@pytest.mark.parametrize("seed", [2, 3])
def test_a_case_with_all_methods_is_exact(seed: int) -> None:
    case = replace(Case.of(seed, large=True), sentences=6)
    record = run.decode(case)
    assert run.bugs(record) == 0, run.table([record])
    assert {"greedy", "gad tree", "beam, source", "int8 tree", "int8 gad", "strict iad"} <= set(
        record["methods"]
    )
    assert ("blockwise tree" in record["methods"]) == bool(case.heads)
    for one in record["methods"].values():
        assert one["sentences"] in (6, case.part)
        assert one["equal"] + one["ties"] == one["sentences"]


def test_scores_may_be_off_by_what_rounding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """And by no more."""
    session = audits.RandomSession(SMALL)
    weights = [p.clone() for m in session.models for p in m.parameters()]
    rounded = audits.rounding(session)
    assert 0.0 < rounded < 1e-3
    assert all(
        torch.equal(old, new)
        for old, new in zip(weights, session.models[0].parameters(), strict=False)
    )
    for allowed, bugs in ((1.0, False), (rounded / audits.ROUNDINGS / 1e6, True)):
        monkeypatch.setattr(audits, "rounding", lambda *_, by=allowed: by)
        monkeypatch.setitem(audits.equality.SCORE_TOLERANCE, "fp32", 1e-9)
        found = dict(audits.against_stock(session))
        assert any(audit.score_errors for audit in found.values()) == bugs


def test_every_kind_of_beam_is_given_what_rounding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    session = audits.RandomSession(SMALL)
    monkeypatch.setattr(audits, "decoded", lambda *_: iter(()))
    monkeypatch.setattr(audits, "rounding", lambda *_: 1.0)
    # Below nought even equal scores are errors: a processor may compute stock's very digits.
    monkeypatch.setitem(audits.equality.SCORE_TOLERANCE, "fp32", -1.0)
    narrow = dict(audits.beams(session, "stock", 1e-4, -1.0))
    assert all(audit.score_errors for audit in narrow.values()) and len(narrow) > 1
    found = dict(audits.against_stock(session))
    assert found.keys() == narrow.keys()
    assert not any(audit.score_errors for audit in found.values())


def record(case: Case, verdict: str = "") -> dict:
    differences = [Difference(3, 2, "a", "b", 2e-5, verdict)] if verdict else []
    audit = Audit(10, equal=10 - len(differences), differences=differences)
    return {"case": {"seed": case.seed}, "methods": {"greedy": run.found(audit)}}


def test_a_run_resumes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded: list[int] = []

    def decode(case: Case) -> dict:
        decoded.append(case.seed)
        return record(case, "tie" if case.seed == 5 else "")

    monkeypatch.setattr(run, "decode", decode)
    output = tmp_path / "new" / "out"
    given = ["--output", str(output), "--first", "1", "--step", "2"]
    assert run.main([*given, "--cases", "2"]) == 0
    assert decoded == [1, 3]
    state = output.with_name("out.jsonl")
    with state.open("a") as file:
        file.write('{"case": {"se')  # killed while it wrote
    assert run.main([*given, "--cases", "4"]) == 0
    assert decoded == [1, 3, 5, 7]
    assert [json.loads(line)["case"]["seed"] for line in state.open()] == decoded
    page = output.with_name("out.md").read_text()
    assert "40 decodings in 4 cases: 0 BUGs" in page
    assert "| 5 | greedy | 3 | 2.0e-05 | tie |" in page
    kept = json.loads(output.with_name("out.json").read_text())
    assert kept["methods"]["greedy"] == {"sentences": 40, "equal": 39, "ties": 1, "bugs": 0}
    assert kept["machine"]["versions"]["torch"] and kept["command"].startswith("python -m")
    capsys.readouterr()
    assert run.main([*given, "--report"]) == 0
    assert decoded == [1, 3, 5, 7]
    assert "40 decodings in 4 cases" in capsys.readouterr().out


def test_a_bug_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "decode", lambda case: record(case, "BUG"))
    assert run.main(["--cases", "1"]) == 1


def test_an_exception_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(case: Case) -> None:
        raise IndexError("no such row")

    monkeypatch.setattr(run, "audits", fail)
    assert run.main(["--first", "8", "--cases", "2"]) == 1
    shown = capsys.readouterr().out
    assert "| 8 | error | IndexError: no such row | | BUG |" in shown
    assert "2 cases: 2 BUGs" in shown


def test_the_command_repeats_a_case() -> None:
    line = run.command(replace(Case.of(8, large=True), real=("data", "a.pt"))).split()
    args = run.build_parser().parse_args(line[3:])
    assert (args.first, args.cases, args.large, args.real) == (8, 1, True, [["data", "a.pt"]])


def test_time_and_seeds_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZ_SEED", "12")
    monkeypatch.setenv("FUZZ_SECONDS", "0")
    assert list(budget.seeds()) == [12]
    monkeypatch.setenv("FUZZ_SECONDS", "1e9")
    assert [seed for seed, _ in zip(budget.seeds(), range(3), strict=False)] == [12, 13, 14]
    monkeypatch.delenv("FUZZ_SEED")
    chosen = budget.first_seed()
    assert budget.first_seed() == chosen
