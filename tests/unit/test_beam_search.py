"""Beam search over trees against one without: random models, whatever is evaluated ahead, whatever is drafted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.search.beam import search as beam_search
from fairseq_aggdec.search.beam.budget import (
    ALIKE,
    FORETOLD,
    NOTHING_AHEAD,
    PIECE,
    TEXT,
    Budget,
    Plan,
)
from fairseq_aggdec.search.beam.rules import BeamStep, Prefix, SentenceRules, step
from fairseq_aggdec.search.beam.search import SentenceSearch
from fairseq_aggdec.search.beam.tree import NOTHING, ROOT, Tree
from fairseq_aggdec.search.errors import NonFiniteError
from tests.unit.test_beam_rules import EOS, Row, plain_step, random_row, random_rules, small

Finished = list[tuple[float, tuple[int, ...]]]


class Model:
    """A distribution for every prefix, at random, the same whenever it is asked for."""

    def __init__(self, seed: int, types: int, rules: SentenceRules):
        self.seed, self.types, self.rules = seed, types, rules
        self.rows: dict[tuple[int, ...], Row] = {}

    def row(self, words: Sequence[int]) -> Row:
        key = tuple(words)
        if key not in self.rows:
            # Prefixes that end in the same word resemble each other, as they do in language.
            near = random.Random(f"{self.seed} {key[-1:]}")
            row = random_row(near, self.types, self.rules.bonus)
            own = random.Random(f"{self.seed} {key}")
            self.rows[key] = [value - 0.1 * own.random() for value in row]
        return self.rows[key]


def plain_search(model: Model) -> Finished:
    """Sums of log-probabilities and words of all hypotheses, in the order of finishing."""
    rules, beams, finished = model.rules, [(0.0, ())], []
    for depth in range(rules.limit + 1):
        active = [(total, node) for node, (total, _) in enumerate(beams)]
        rows = {node: model.row(words) for node, (_, words) in enumerate(beams)}
        going_on, ended = plain_step(active, rows, depth, rules)
        if depth < rules.limit and rules.forced(depth) == EOS:
            going_on, ended = [], ended[:1] * rules.beam
        finished += [(total, beams[node][1]) for total, node, _ in ended]
        beams = [(total, (*beams[node][1], token)) for total, node, token in going_on]
        if len(finished) >= rules.beam or not beams:
            break
    return finished[: rules.beam]


class Words:
    """A text that is known word by word: what follows a prefix is what follows its last word."""

    def __init__(self, words: Sequence[int]):
        self.beginning = list(words)

    def behind(self, tree: Tree, node: int, most: int) -> list[int]:
        words, last = self.beginning, tree.tokens[node]
        return words[words.index(last) + 1 :][:most] if last in words else []


def random_search(seed: int, text: bool) -> tuple[random.Random, Model, SentenceSearch]:
    chance = random.Random(seed)
    types = chance.randint(5, 12)
    rules = random_rules(chance, types)
    draft = [chance.randint(0, types - 1) for _ in range(12)] if text else []
    return chance, Model(seed, types, rules), SentenceSearch(0, rules, Tree(EOS), Words(draft))


def evaluate(search: SentenceSearch, model: Model, nodes: Sequence[int]) -> None:
    tree, rules = search.tree, search.rules
    tree.place(nodes)
    depths = [tree.depths[node] for node in nodes]
    assert max(depths) <= rules.limit  # there may be no positions beyond
    rows = [model.row(tree.words(node)) for node in nodes]
    tables = [small(row, depth, rules) for row, depth in zip(rows, depths, strict=True)]
    search.receive(nodes, tables)
    search.advance()


def finished(search: SentenceSearch) -> Finished:
    return [(ending.total, tuple(search.tree.words(ending.node))) for ending in search.endings]


@pytest.mark.parametrize("kind", ["nothing", "predicted", "everything predicted", "anything"])
@given(st.integers(0, 10**9))
def test_the_same_whatever_is_evaluated_ahead(kind: str, seed: int) -> None:
    for at in range(3):
        chance, model, search = random_search(seed + at, text=kind != "nothing")
        tree, called = search.tree, 0
        while not search.done:
            if kind == "nothing":
                plan = NOTHING_AHEAD
            elif kind == "everything predicted":
                plan = Plan(most=99, text=99, farthest=10**6, piece=99)
            else:
                plan = Plan(
                    chance.randint(0, 30),
                    chance.randint(0, 9),
                    chance.randint(-1, 8),
                    piece=chance.randint(0, 5),
                    learn=chance.random() < 0.5,
                )
            nodes = search.requests(plan)
            assert nodes[: len(search.missing)] == search.missing
            assert kind != "nothing" or nodes == search.missing
            if kind == "anything":  # children of what is evaluated, found or not
                for parent in [node for node in nodes if tree.depths[node] < model.rules.limit][:4]:
                    child = tree.child(parent, chance.randint(0, model.types - 1))
                    if tree.tables[child] is None and child not in nodes:
                        nodes.append(child)
            assert len(set(nodes)) == len(nodes)
            for index, node in enumerate(nodes):  # keys and values of what a node sees are there
                parent = tree.parents[node]
                assert tree.tables[node] is None
                assert node == ROOT or tree.seen[parent] or parent in nodes[:index]
            evaluate(search, model, nodes)
            called += 1
        assert finished(search) == plain_search(model), model.rules
        assert (search.calls, len(search.gains)) == (called, called)
        assert sum(search.gains) == search.depth
        assert kind != "nothing" or search.ahead == {}


def test_looking_ahead_saves_calls() -> None:
    calls = []
    for plan in (NOTHING_AHEAD, Plan(80, 80, 9)):
        rules = SentenceRules(EOS, beam=3, limit=20, floor=15)
        model, search = Model(3, 8, rules), SentenceSearch(0, rules, Tree(EOS))
        while not search.done:
            evaluate(search, model, search.requests(plan))
        calls.append(search.calls)
    assert calls[1] < 0.6 * calls[0]


def test_foretold_tables_save_calls() -> None:
    """What is foretold behind the best hypothesis is evaluated ahead, whether right or wrong."""
    rules = SentenceRules(EOS, beam=2, limit=20, floor=15)
    model = Model(11, 30, rules)

    def searched(heads: int, shift: int, plan: Plan) -> SentenceSearch:
        search = SentenceSearch(0, rules, Tree(EOS))
        while not search.done:
            evaluate(search, model, search.requests(plan))
            tree, node = search.tree, search.active[0][1] if search.active else ROOT
            told, words = [], tree.words(node)
            for _ in range(min(heads, rules.limit - len(words) + 1)):
                tokens, log_probs = small(model.row(words), len(words), rules)
                told.append(([(t + shift) % model.types for t in tokens], log_probs))
                words = [*words, tokens[0]]
            tree.foretold[tree.parents[node]] = told
        assert finished(search) == plain_search(model)
        return search

    nothing, right, wrong = (
        searched(heads, shift, Plan(80, 0, -1, 3)) for heads, shift in ((0, 0), (4, 0), (4, 7))
    )
    assert right.calls < 0.9 * nothing.calls
    assert {guess for guess, used in right.outcome() if used} >= {(FORETOLD, 0)}
    assert not any(used for guess, used in wrong.outcome() if guess[0] == FORETOLD and used)
    assert wrong.calls <= nothing.calls
    assert searched(4, 0, Plan(80, 0, -1, -1)).ahead == {}


@pytest.mark.parametrize("farthest", [-1, 0])
def test_the_search_ahead_ends_where_nothing_more_can_be_requested(
    farthest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefix can be requested only behind one that was evaluated or requested."""
    stepped: list[list[int]] = []

    def counted(active: Sequence[Prefix], *rest: Any) -> BeamStep:
        stepped.append([node for _, node in active])
        return step(active, *rest)

    monkeypatch.setattr(beam_search, "step", counted)
    rules = SentenceRules(EOS, beam=3, limit=200, floor=60)
    model, search, ahead = Model(3, 30, rules), SentenceSearch(0, rules, Tree(EOS)), 0
    tree = search.tree
    while not search.done:
        if search.depth:
            tree.foretold[search.active[0][1]] = [([5, 6, 7], [-0.1, -4.0, -5.0])] * 300
        stepped.clear()
        nodes = search.requests(Plan(400, 0, farthest, 1))
        ahead += len(stepped)
        for active in stepped:
            parents = [tree.parents[node] for node in active]
            assert any(tree.tables[node] is not None or node in nodes for node in parents)
        evaluate(search, model, nodes)
    assert ahead > search.calls - 1  # it does look ahead


def test_nobody_foretold_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a foreteller no tables are foretold, whatever the plan says of these."""
    rules = SentenceRules(EOS, beam=3, limit=20, floor=15)
    model, search = Model(3, 8, rules), SentenceSearch(0, rules, Tree(EOS))
    monkeypatch.setattr(SentenceSearch, "_look_ahead", lambda *_: pytest.fail("looked ahead"))
    while not search.done:
        evaluate(search, model, search.requests(Plan(80, 0, -1, 3)))


class Unlike(Model):
    """Prefixes that end in the same word do not resemble each other."""

    def row(self, words: Sequence[int]) -> Row:
        key = tuple(words)
        if key not in self.rows:
            own = random.Random(f"{self.seed} {key}")
            self.rows[key] = random_row(own, self.types, self.rules.bonus)
        return self.rows[key]


TEXT_WORDS = [random.Random(4).randint(4, 39) for _ in range(30)]


class NearCopy(Model):
    """What follows is nearly always the next word of a text, whatever stood before."""

    def row(self, words: Sequence[int]) -> Row:
        row = super().row(words)
        row[TEXT_WORDS[len(words) % 30]] = -0.02
        return row


@pytest.mark.parametrize(("kind", "pays"), [(NearCopy, True), (Unlike, False)])
def test_the_budget_rests_where_looking_ahead_gains_nothing(kind: type[Model], pays: bool) -> None:
    budget, calls, tokens = Budget("cpu", 3), 0, 0
    for budget.batches in range(1, 31):
        rules = SentenceRules(EOS, beam=3, limit=30, floor=25)
        search = SentenceSearch(0, rules, Tree(EOS), Words(TEXT_WORDS))
        model = kind(budget.batches, 40, rules)
        while not search.done:
            evaluate(search, model, search.requests(budget.plan(1)))
        budget.gained(search.worth())
        for guess, used in search.learned():
            budget.observe(guess, used)
        if budget.batches > 20:
            calls, tokens = calls + search.calls, tokens + search.depth
    assert budget.pays == pays
    assert (calls < 0.6 * tokens) if pays else (calls == tokens)


def test_what_a_call_is_worth() -> None:
    """The plain calls of as many tokens against the call, each with its prefixes; the first call is none of them."""
    rules = SentenceRules(EOS, beam=3, limit=20, floor=15)
    model, search = Model(3, 8, rules), SentenceSearch(0, rules, Tree(EOS))
    plans = [Plan(80, 0, 9, prefix_cost=0.5), NOTHING_AHEAD]
    while not search.done:
        evaluate(search, model, search.requests(plans[search.calls % 2]))
    needed = len(search.tree.used) / search.depth
    expected = [
        pytest.approx((search.gains[call] * (1 + needed / 2), 1 + len(search.asked[call]) / 2))
        for call in range(2, search.calls, 2)
    ]
    assert search.worth() == expected
    assert max(search.gains[2::2]) > 1


def test_outcomes_tell_what_was_needed() -> None:
    rules = SentenceRules(EOS, beam=2, limit=6)
    model, search = Model(5, 8, rules), SentenceSearch(0, rules, Tree(EOS), Words([4, 0, 0]))
    while not search.done:
        evaluate(search, model, search.requests(Plan(50, 3, 9)))
    outcome = search.outcome()
    assert [guess for guess, _ in outcome[:3]] == [(TEXT, 0)] * 3
    assert all(why == ALIKE and 0 <= gap <= 9 for (why, gap), _ in outcome[3:])
    assert [used for _, used in outcome] == [node in search.tree.used for node in search.ahead]


def test_a_plan_is_kept() -> None:
    """No more than so many prefixes, none that is farther behind, no longer a text."""
    rules = SentenceRules(EOS, beam=3, limit=12, floor=10)
    model, search = Model(7, 9, rules), SentenceSearch(0, rules, Tree(EOS), Words([4] * 9))
    assert len(search.requests(Plan(7, 5, 8))) == 1 + 5
    evaluate(search, model, [ROOT])
    while not search.done:
        nodes = search.requests(Plan(7, 5, 1))
        assert len(nodes) <= max(7, len(search.missing))
        evaluate(search, model, nodes)
    assert {guess for guess, _ in search.outcome()} == {(TEXT, 0), (ALIKE, 0), (ALIKE, 1)}


def test_no_numbers_where_the_search_needs_them() -> None:
    rules = SentenceRules(EOS, beam=2, limit=6)
    search = SentenceSearch(4, rules, Tree(EOS), Words([4, 5]))
    nodes = search.requests(Plan(9, 9, 9))
    search.tree.broken.update(nodes)
    search.receive(nodes, [NOTHING] * len(nodes))
    with pytest.raises(NonFiniteError) as caught:
        search.advance()
    assert caught.value.row == 4


class Jumping(Model):
    """Copies pieces of a text: ten words, then ten of elsewhere."""

    def row(self, words: Sequence[int]) -> Row:
        row = super().row(words)
        place = len(words)
        row[4 + (place + 37 * (place // 10)) % 300] = -0.02
        return row


def jumped(pieces: bool) -> tuple[SentenceSearch, Budget]:
    """The search of one long output, and what its budget has learned while it went on."""
    budget = Budget("cpu", 3)
    rules = SentenceRules(EOS, beam=3, limit=120, floor=118)
    model = Jumping(3, 304, rules)
    text = Words(list(range(4, 304))) if pieces else None
    search, budget.batches = SentenceSearch(0, rules, Tree(EOS), text), 1
    while not search.done:
        evaluate(search, model, search.requests(budget.plan(1)))
        for guess, used in search.learned():
            budget.observe(guess, used)
    assert finished(search) == plain_search(model)
    return search, budget


def test_a_text_is_drafted_wherever_the_search_stands_in_it() -> None:
    search, _ = jumped(pieces=True)
    assert search.calls < 0.5 * jumped(pieces=False)[0].calls
    assert len(search.tree.used) > 0.7 * search.tree.places


def test_a_text_that_is_no_good_is_given_up_within_a_sentence() -> None:
    """And is looked at later for nothing: whether a token would have been right is known without evaluating it."""
    budget, rules = Budget("cpu", 3), SentenceRules(EOS, beam=3, limit=300, floor=299)
    search = SentenceSearch(0, rules, Tree(EOS), Words(list(range(4, 40))))
    model = Unlike(7, 40, rules)
    budget.batches, lengths = 1, list[int]()
    while not search.done:
        lengths.append(len([node for node, guess in search.ahead.items() if guess[0] == PIECE]))
        evaluate(search, model, search.requests(budget.plan(1)))
        for guess, used in search.learned():
            budget.observe(guess, used)
    assert len(lengths) > 200
    assert lengths[-1] == lengths[60]  # the last 140 calls drafted none
    assert budget.plan(1).piece == 0


def test_a_text_that_becomes_good_is_found_out_for_nothing() -> None:
    budget = Budget("cpu", 3)
    for _ in range(300):
        budget.observe((PIECE, 0), used=False)
    assert budget.plan(1).piece == 0
    rules = SentenceRules(EOS, beam=3, limit=2, floor=0)
    search = SentenceSearch(0, rules, Tree(EOS), Words([4, 5, 6]))
    evaluate(search, NearCopy(3, 40, rules), search.requests(NOTHING_AHEAD))
    search.text = Words([search.tree.tokens[search.active[0][1]], 7])
    asked = search.requests(Plan(80, 0, -1, learn=True))
    assert asked == search.missing
    assert [guess for _, guess in search.waiting][:1] == [(PIECE, 0)]
