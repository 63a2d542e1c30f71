"""The audit's verdicts, on a tiny random model that is asked what it prefers."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.audit import equality
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.cli import audit
from scripts import random_models
from scripts.forced_drafts import ForcedDrafter


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    records = [Record(i, list(range(4, 7 + i))) for i in range(3)]
    arguments = random_models.prepare(tmp_path_factory.mktemp("tiny"), "tiny", records)
    given = ["--cpu", "--max-len-b", "8", "--decoding", "greedy", "--draft-tokens", "3"]
    return Session(generation_parser(None), [*arguments, *given])


def test_an_option_without_effect_is_named_once_and_not_of_the_reference(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    for decoding in ("stock", "greedy", "greedy", "beam"):
        session.generator(decoding)
    assert [record.getMessage() for record in caplog.records] == [
        "--draft-tokens has no effect with --decoding greedy"
    ]


def hypothesis(tokens: Sequence[int], score: float = -1.0) -> list[equality.Hypothesis]:
    return [
        {
            "tokens": torch.tensor(tokens),
            "positional_scores": torch.full((len(tokens),), score),
        }
    ]


def compare(
    session: Session,
    expected: dict[int, list[equality.Hypothesis]],
    found: dict[int, list[equality.Hypothesis]],
    sentences: Sequence[int] = (0,),
) -> equality.Audit:
    return equality.audit(session, sentences, expected, found, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("left", "right", "position"),
    [([5, 6, 2], [5, 6, 2], None), ([5, 6, 2], [5, 7, 2], 1), ([5, 6, 2], [5, 6], 2), ([], [2], 0)],
)
def test_first_difference(left: list[int], right: list[int], position: int | None) -> None:
    assert equality.first_difference(left, right) == position


def test_a_sentence_that_the_reference_misses_is_decoded(session: Session) -> None:
    """It is reported by the comparison; no draft is known for it."""
    drafter = ForcedDrafter("right", 3, 30, {})
    found = equality.decode_all(session, "greedy", 2, None, drafter)
    assert sorted(found) == [0, 1, 2]
    assert compare(session, {}, found).missing == [0, 1, 2]


@pytest.mark.parametrize("score", [-1.01, math.nan])
def test_wrong_scores_are_bugs(session: Session, score: float) -> None:
    result = compare(session, {0: hypothesis([5, 2])}, {0: hypothesis([5, 2], score)})
    assert (result.equal, result.score_errors, result.bugs) == (1, 1, 1)


def test_a_clear_preference_is_a_bug(session: Session) -> None:
    log_probs = equality.next_log_probs(session, 0, [5])
    best, worst = int(log_probs.argmax()), int(log_probs.argmin())
    result = compare(session, {0: hypothesis([5, best, 2])}, {0: hypothesis([5, worst, 2])})
    (difference,) = result.differences
    assert (difference.position, difference.verdict, result.bugs) == (1, equality.BUG, 1)
    assert difference.margin == pytest.approx((log_probs.max() - log_probs.min()).item(), abs=1e-6)


def test_no_preference_is_a_tie(session: Session) -> None:
    model = session.models[0]
    weight = model.decoder.output_projection.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[11] = weight[10]
    result = compare(session, {0: hypothesis([5, 10, 2])}, {0: hypothesis([5, 11, 2])})
    with torch.no_grad():
        weight.copy_(before)
    assert (result.ties, result.bugs) == (1, 0)


def test_the_unknown_word_penalty_counts(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    unk = session.task.target_dictionary.unk()
    log_probs = equality.next_log_probs(session, 0, [5])
    penalty = (log_probs[unk] - log_probs[10]).item()
    result = compare(session, {0: hypothesis([5, unk, 2])}, {0: hypothesis([5, 10, 2])})
    assert result.bugs == 1
    monkeypatch.setattr(
        session, "cfg", Namespace(generation=Namespace(unkpen=penalty, temperature=1.0))
    )
    result = compare(session, {0: hypothesis([5, unk, 2])}, {0: hypothesis([5, 10, 2])})
    assert result.ties == 1


def test_a_forced_end_ties_with_a_token_of_probability_1(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --match-source-len stock gives the end 0 at the length of the source and looks which is larger."""
    prefix, weight = [5, 5, 5], session.models[0].decoder.output_projection.weight
    assert len(session.dataset[0]["source"]) == len(prefix)
    before = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(1e4)
    sure = equality.next_log_probs(session, 0, prefix)
    assert sure.max() == 0 and sure.argmax() != 2
    outputs = [*prefix, int(sure.argmax()), 2], [*prefix, 2]

    def verdicts(matched: bool, cut: int = 0) -> tuple[int, int]:
        generation = Namespace(unkpen=0.0, temperature=1.0, match_source_len=matched)
        monkeypatch.setattr(session, "cfg", Namespace(generation=generation))
        stock, method = (hypothesis(tokens[cut:]) for tokens in outputs)
        result = compare(session, {0: stock}, {0: method})
        return result.ties, result.bugs

    found = verdicts(True), verdicts(False), verdicts(True, cut=1)
    with torch.no_grad():
        weight.copy_(before)
    assert found == ((1, 0), (0, 1), (0, 1))


def test_every_sentence_counts_exactly_once(session: Session) -> None:
    one = hypothesis([5, 2])
    both = {0: one, 1: one, 2: one}
    assert compare(session, both, both, range(3)).missing == []
    assert compare(session, both, {0: one, 2: one}, range(3)).missing == [1]
    assert compare(session, {0: one, 2: one}, both, range(3)).missing == [1]
    assert compare(session, both, both | {2: one + one}, range(3)).missing == [2]
    assert compare(session, both, both, range(4)).missing == [3]
    assert compare(session, both, both, range(2)).missing == []


def test_stock_in_other_batches_does_not_go_with_limits_that_depend_on_them() -> None:
    """Stock counts the longest source of a batch: differences would be its own."""
    counts = {"limit": None, "batch_sizes": [1], "stock_batch_size": 2, "beams": None, "beam": 1}
    others = {"drafts": [], "draft_lengths": [10], "reference": None, "strict": 0}
    args = Namespace(**counts, **others, output=None, max_len_a=1.2)
    with pytest.raises(SystemExit, match="--stock-batch-size does not go with --max-len-a"):
        audit.check(args, "iad")


def test_the_record_of_an_audit_is_json(session: Session, tmp_path: Path) -> None:
    """An infinite margin is null, which every reader of JSON takes."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    given = Namespace(output=tmp_path / "found", reference=None, strict=0)
    given_session: Any = Namespace(**(vars(session) | {"args": given}))
    findings = audit.Findings(given_session, audit.Oracle("stock", "stock fairseq", "fp32"))
    findings.add(
        "a", equality.Audit(1, 0, [equality.Difference(0, 1, "", "", math.inf, equality.BUG)])
    )
    findings.add("b", equality.Audit(1, 1, score_error=math.nan))
    assert findings.conclude() == 1
    written = (tmp_path / "found.json").read_text(encoding="utf-8")
    found = json.loads(written, parse_constant=refuse)["results"]
    assert found["a"]["differences"][0]["margin"] is None
    assert "not a number" in audit.row("b", found["b"])
