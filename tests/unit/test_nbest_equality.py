"""The audit of n-best lists: what is a tie, what a BUG, and that the real search is neither."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.audit import nbest_equality
from fairseq_aggdec.audit.equality import BUG, TIE
from fairseq_aggdec.audit.nbest_equality import StockSteps, difference, tokens_of
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.search.beam.tree import ROOT, SearchedTree, Tree
from scripts import random_models

# Stock's search with a beam of 2: its unfinished hypotheses and what it looked at in each step.
BEAMS = [[(0.0, ())], [(-1.0, (5,)), (-1.5, (6,))], [(-2.0, (5, 7)), (-2.25, (6, 7))]]
CANDIDATES = [
    [(-1.0, (5,)), (-1.5, (6,)), (-1.75, (8,))],
    [(-2.0, (5, 7)), (-2.25, (6, 7)), (-2.5, (5, 2)), (-3.0, (6, 2))],
    [(-2.5, (5, 7, 2)), (-2.75, (6, 7, 2)), (-4.0, (5, 7, 7))],
]
THEIRS = [(5, 7, 2), (6, 7, 2)]


def ranked(outputs: list[tuple[int, ...]]) -> list[dict[str, Any]]:
    scores = dict(zip(THEIRS, [-0.8, -0.9], strict=True))
    return [
        {"tokens": torch.tensor(tokens), "score": torch.tensor(scores.get(tokens, -1.0))}
        for tokens in outputs
    ]


def searched(*beams: list[tuple[int, ...]]) -> SearchedTree:
    """Our search with these unfinished hypotheses after each step, then done."""
    tree = Tree([ROOT], [2])
    search = SearchedTree(0, tree, done=True)
    for beam in beams:
        nodes = []
        for prefix in beam:
            node = ROOT
            for token in prefix:
                node = tree.child(node, token)
            nodes.append((0.0, node))
        search.beams.append(nodes)
    search.beams.append([])
    return search


@pytest.mark.parametrize(
    ("beams", "outputs", "margin"),
    [
        ([[(5,), (6,)], [(5, 7), (6, 7)]], [(6, 7, 2), (5, 7, 2)], 0.1),  # another order
        ([[(5,), (8,)], [(5, 7), (8, 7)]], [(5, 7, 2), (8, 7, 2)], 0.25),  # (8,) for (6,)
        ([[(5,), (9,)], [(5, 7), (9, 7)]], [(5, 7, 2), (9, 7, 2)], math.inf),  # not looked at
        ([[(6,), (8,)], [(6, 7), (8, 7)]], [(6, 7, 2), (8, 7, 2)], 0.75),  # the best is lost
        ([[(5,), (6,)], [(5, 7), (6, 7)]], [(5, 2), (5, 7, 2)], 0.25),  # an ending, next to (6, 7)
        ([[(5,), (6,)], [(5, 7), (6, 7)]], [(5, 7, 2), (7, 7, 2)], math.inf),  # out of nowhere
        ([[(5,), (6,)]], [(5, 7, 2), (6, 7, 2)], math.inf),  # we stopped before
        # Parted at (8,) for (6,): what came of that, by whatever margin, does not count.
        ([[(5,), (8,)], [(8, 7), (8, 9)]], [(8, 7, 2), (8, 9, 2)], 0.25),
    ],
)
def test_by_how_much_stock_preferred_its_own(
    beams: list[list[tuple[int, ...]]], outputs: list[tuple[int, ...]], margin: float
) -> None:
    steps = StockSteps(None)
    steps.beams, steps.candidates = {3: BEAMS}, {3: CANDIDATES}
    found = difference(ranked(THEIRS), ranked(outputs), steps, searched(*beams), 3)
    assert found[1] == pytest.approx(margin)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    records = [Record(i, list(range(4, 7 + i))) for i in range(5)]
    arguments = random_models.prepare(tmp_path_factory.mktemp("tiny"), "tiny", records)
    return Session(generation_parser(None), [*arguments, "--cpu", "--max-len-b", "8"])


def test_the_real_search_is_equal(session: Session) -> None:
    for batch_size in (1, 4):
        result = nbest_equality.audit(session, batch_size, 3, None, 1e-4, 1e-4)
        assert (result.sentences, result.equal, result.bugs, result.ties) == (5, 5, 0, 0)


@pytest.mark.parametrize("fault", ["word", "order", "score", "lost"])
def test_every_fault_is_a_bug(
    session: Session, monkeypatch: pytest.MonkeyPatch, fault: str, tmp_path: Path
) -> None:
    real = nbest_equality.decode

    def decode(session: Session, generator: Any, sample: dict[str, Any]) -> Any:
        found = real(session, generator, sample)
        if hasattr(generator, "budget"):  # ours
            first = found[0]
            if fault == "word":
                first[1]["tokens"][0] += 1
            elif fault == "order":
                first[0], first[2] = first[2], first[0]
            elif fault == "score":
                first[2]["positional_scores"][0] += 0.01
            else:
                sample["id"][0] = sample["id"][1]
        return found

    monkeypatch.setattr(nbest_equality, "decode", decode)
    result = nbest_equality.audit(session, 5, 3, None, 1e-4, 1e-4)
    assert result.bugs == (2 if fault == "lost" else 1)
    assert {d.verdict for d in result.differences} <= {BUG}


def test_words_of_exactly_equal_scores_are_ties(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them stock looks at is chance: their margin is 0, not infinite."""
    projection = session.models[0].decoder.output_projection.weight
    before = projection.detach().clone()
    topk, decode = torch.topk, nbest_equality.decode

    def last_first(values: torch.Tensor, *given: Any, **more: Any) -> Any:
        """Of equals those with the highest indices."""
        found, indices = topk(values.flip(-1), *given, **more)
        return found, values.size(-1) - 1 - indices

    def decode_otherwise(session: Session, generator: Any, sample: dict[str, Any]) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            if not hasattr(generator, "budget"):  # stock
                patched.setattr(torch, "topk", last_first)
            return decode(session, generator, sample)

    monkeypatch.setattr(nbest_equality, "decode", decode_otherwise)
    with torch.no_grad():
        projection.zero_()
    result = nbest_equality.audit(session, 5, 3, None, 1e-4, 1e-4)
    with torch.no_grad():
        projection.copy_(before)
    assert result.bugs == 0
    assert len(result.differences) == result.ties > 0
    assert all(item.margin < 1e-4 for item in result.differences)


def test_an_order_that_hardly_matters_is_a_tie(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = nbest_equality.decode

    def decode(session: Session, generator: Any, sample: dict[str, Any]) -> Any:
        found = real(session, generator, sample)
        if hasattr(generator, "budget"):
            found[0][0], found[0][1] = found[0][1], found[0][0]
        else:
            found[0][1]["score"] = found[0][0]["score"] - torch.tensor(1e-6)
        return found

    monkeypatch.setattr(nbest_equality, "decode", decode)
    result = nbest_equality.audit(session, 5, 3, None, 1e-4, 1e-4)
    assert (result.bugs, [d.verdict for d in result.differences]) == (0, [TIE])


def test_stock_may_have_decoded_in_other_batches(session: Session) -> None:
    expected = nbest_equality.decode_all(session, 4, 3, None)
    result = nbest_equality.audit(session, 1, 3, None, 1e-4, 1e-4, expected)
    assert (result.equal, result.bugs, result.ties) == (5, 0, 0)
    other = expected | {2: expected[3]}  # stock says the same as we when it is asked again
    result = nbest_equality.audit(session, 1, 3, None, 1e-4, 1e-4, other)
    assert (result.equal, result.bugs, result.ties) == (5, 0, 0)
    assert len(expected) == 5 and tokens_of(expected[2][0]) != tokens_of(expected[3][0])
