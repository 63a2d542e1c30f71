"""The audit of random models: cases come from their number, a run goes on, and a wrong output is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fairseq_aggdec.audit.equality import Audit, Difference
from fairseq_aggdec.cli import audit_random
from fairseq_aggdec.evaluation import random_audits, random_cases
from fairseq_aggdec.evaluation.random_cases import Case


def test_a_case_is_its_number() -> None:
    assert Case.of(7) == Case.of(7)
    cases = [Case.of(seed) for seed in range(200)]
    assert len({str(case.shape) for case in cases}) > 100
    assert len({case.options for case in cases}) > 50
    assert {case.models for case in cases} == {1, 2}
    for option, values in random_cases.VALUES.items():
        found = {given for case in cases for given in case.options if given.startswith(option)}
        assert len(found) == len(values) - (False in values and values[0] is False)


FEW = dict.fromkeys((1, 8, 32, 120, 256), 6)


@pytest.mark.parametrize("seed", [2, 3])
def test_a_small_case_is_exact(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_cases, "SENTENCES", FEW)
    case = Case.of(seed)
    record = audit_random.decode(case)
    assert {"greedy", "gad tree", "beam, source", "int8 tree", "int8 gad"} <= set(record["methods"])
    assert ("blockwise tree" in record["methods"]) == bool(case.heads)
    for one in record["methods"].values():
        assert one["sentences"] in (6, case.part)
        assert one["bugs"] == 0
        assert one["equal"] + one["ties"] == one["sentences"]


def test_scores_may_be_off_by_what_rounding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """And by no more."""
    monkeypatch.setattr(random_cases, "SENTENCES", FEW)
    session = random_audits.RandomSession(Case.of(1))
    expected = random_audits.equality.decode_all(session, "stock", 6, 6)
    weights = [p.clone() for m in session.models for p in m.parameters()]
    rounded = random_audits.rounding(session, expected)
    assert 0.0 < rounded < 1e-3
    assert all(
        torch.equal(old, new)
        for old, new in zip(weights, session.models[0].parameters(), strict=False)
    )
    for allowed, bugs in ((1.0, False), (rounded / random_audits.ROUNDINGS / 1e6, True)):
        monkeypatch.setattr(random_audits, "rounding", lambda *_, by=allowed: by)
        monkeypatch.setitem(random_audits.equality.SCORE_TOLERANCE, "fp32", 1e-9)
        found = dict(random_audits.against_stock(session))
        assert any(audit.score_errors for audit in found.values()) == bugs


def test_every_kind_of_beam_is_given_what_rounding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_cases, "SENTENCES", FEW)
    session = random_audits.RandomSession(Case.of(1))
    monkeypatch.setattr(random_audits, "decoded", lambda *_: iter(()))
    monkeypatch.setattr(random_audits, "rounding", lambda *_: 1.0)
    monkeypatch.setitem(random_audits.equality.SCORE_TOLERANCE, "fp32", 1e-12)
    narrow = dict(random_audits.beams(session, "stock", 1e-4, 1e-12))
    assert all(audit.score_errors for audit in narrow.values()) and len(narrow) > 1
    found = dict(random_audits.against_stock(session))
    assert found.keys() == narrow.keys()
    assert not any(audit.score_errors for audit in found.values())


def record(case: Case, verdict: str = "") -> dict:
    differences = [Difference(3, 2, "a", "b", 2e-5, verdict)] if verdict else []
    audit = Audit(10, equal=10 - len(differences), differences=differences)
    return {"case": {"seed": case.seed}, "methods": {"greedy": audit_random.found(audit)}}


def test_a_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded: list[int] = []

    def decode(case: Case) -> dict:
        decoded.append(case.seed)
        return record(case, "tie" if case.seed == 5 else "")

    monkeypatch.setattr(audit_random, "decode", decode)
    state = tmp_path / "cases.jsonl"
    given = ["--state", str(state), "--first", "1", "--step", "2"]
    assert audit_random.main([*given, "--decodings", "20"]) == 0
    assert decoded == [1, 3]
    with state.open("a") as file:
        file.write('{"case": {"se')  # killed while it wrote
    assert audit_random.main([*given, "--decodings", "40", "--output", str(tmp_path / "out")]) == 0
    assert decoded == [1, 3, 5, 7]
    assert [json.loads(line)["case"]["seed"] for line in state.open()] == decoded
    page = (tmp_path / "out.md").read_text()
    assert "40 decodings in 4 cases: 0 BUGs" in page
    assert "| 5 | greedy | 3 | 2.0e-05 | tie |" in page
    assert audit_random.main([*given, "--report"]) == 0
    assert decoded == [1, 3, 5, 7]
    assert "40 decodings in 4 cases" in capsys.readouterr().out


def test_every_fourth_case_is_real(tmp_path: Path) -> None:
    first, second = ["data", "a.pt"], ["other", "b.pt"]
    cases = [audit_random.case_of(seed, [first, second]) for seed in range(12)]
    real = {case.seed: case.real for case in cases if case.real}
    assert real == {3: tuple(first), 7: tuple(second), 11: tuple(first)}
    assert audit_random.case_of(3, []) == Case.of(3)
    with pytest.raises(SystemExit, match=r"--real: .*missing\.pt does not exist"):
        audit_random.main(["--state", str(tmp_path / "s"), "--real", "data", "missing.pt"])


def test_a_bug_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(audit_random, "decode", lambda case: record(case, "BUG"))
    assert audit_random.main(["--state", str(tmp_path / "s"), "--decodings", "10"]) == 1
