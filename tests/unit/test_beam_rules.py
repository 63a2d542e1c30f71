"""One step of beam search over small tables against stock's rules over all continuations."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.plain_beam_search import Continuation, SentenceRules, Table, step

PAD, EOS, UNK = 1, 2, 3
Row = list[float]


def random_rules(chance: random.Random, types: int) -> SentenceRules:
    limit = chance.randint(1, 6)
    prefix = [chance.choice([PAD, *range(3, types)]) for _ in range(chance.choice([0, 0, 2, 8]))]
    return SentenceRules(
        EOS,
        beam=chance.randint(1, types - 2),
        limit=limit,
        floor=chance.randint(0, limit),
        prefix=prefix,
        pad=PAD,
        bonus=chance.choice([0.0, 0.0, 1.5]),
        source_length=chance.choice([None, None, chance.randint(1, limit)]),
    )


def random_row(chance: random.Random, types: int, bonus: float) -> Row:
    """Log-probabilities of a model, ``<unk>`` rewarded, padding without a chance."""
    weights = [math.exp(3 * chance.gauss(0, 1)) for _ in range(types)]
    row = [math.log(weight / sum(weights)) for weight in weights]
    row[UNK] += bonus
    row[PAD] = -math.inf
    return row


def ruled(row: Row, depth: int, rules: SentenceRules) -> Row:
    """What stock makes of it, in its order: maximum length, forced prefix or minimum length, length constraint."""
    row, width = list(row), len(rules.prefix)
    only = None
    if depth >= rules.limit:
        only = rules.eos
    elif depth < width and rules.prefix[depth] != rules.pad:
        only = rules.prefix[depth]
    if only is not None:
        row = [value if token == only else -math.inf for token, value in enumerate(row)]
    if depth >= min(width, rules.limit) and depth < rules.floor:
        row[rules.eos] = -math.inf
    if rules.source_length is not None:
        row[rules.eos] = -math.inf if depth < rules.source_length else 0.0
    return row


def small(row: Row, depth: int, rules: SentenceRules) -> Table:
    """The table of a row, from its beam + 1 best."""
    best = sorted(range(len(row)), key=lambda token: -row[token])[: rules.beam + 1]
    wanted = row[rules.wanted(depth)]
    return rules.table(depth, best, [row[token] for token in best], wanted)


def plain_step(
    active: Sequence[tuple[float, int]], rows: dict[int, Row], depth: int, rules: SentenceRules
) -> tuple[list[Continuation], list[Continuation]]:
    """What goes on and what ends: stock's, over 2 * beam candidates of all continuations."""
    pool = [
        (score + log_prob, node, token)
        for score, node in active
        for token, log_prob in enumerate(ruled(rows[node], depth, rules))
        if log_prob > -math.inf
    ]
    candidates = sorted(pool, key=lambda item: -item[0])[: 2 * rules.beam]
    ended = [item for item in candidates[: rules.beam] if item[2] == rules.eos]
    return [item for item in candidates if item[2] != rules.eos][: rules.beam], ended


def random_step(
    seed: int,
) -> tuple[random.Random, list[tuple[float, int]], dict[int, Row], int, SentenceRules]:
    chance = random.Random(seed)
    types = chance.randint(5, 12)
    rules = random_rules(chance, types)
    depth = chance.randint(0, rules.limit)
    count = chance.randint(1, rules.beam) if depth else 1
    totals = sorted((3 * chance.gauss(-1, 1) for _ in range(count)), reverse=True)
    rows = {node: random_row(chance, types, rules.bonus) for node in range(count)}
    return chance, [(total, node) for node, total in enumerate(totals)], rows, depth, rules


seeds = st.integers(0, 10**9)


@given(seeds)
def test_a_step_is_stocks(seed: int) -> None:
    for at in range(20):
        _, active, rows, depth, rules = random_step(seed + at)
        tables = {node: small(row, depth, rules) for node, row in rows.items()}
        found = step(active, tables.get, depth, rules)
        going_on, ended = plain_step(active, rows, depth, rules)
        assert found.missing == []
        assert (found.going_on, found.ended) == (going_on, ended), (depth, rules)


@given(seeds)
def test_what_is_missing_is_what_may_matter(seed: int) -> None:
    """A prefix without a table is missing exactly if its best continuation, were it sure, would be in the beam."""
    for at in range(20):
        chance, active, rows, depth, rules = random_step(seed + at)
        known: dict[int, Table | None] = {
            node: small(row, depth, rules) for node, row in rows.items() if chance.random() < 0.6
        }
        unknown = [node for _, node in active if node not in known]
        found = step(active, known.get, depth, rules)
        if not found.missing:
            assert (found.going_on, found.ended) == plain_step(active, rows, depth, rules)
        assert set(found.read) <= set(known)
        assert found.missing == [node for node in unknown if node in found.missing]
        for node in unknown:
            others: dict[int, Table | None] = dict.fromkeys(unknown, ((), ()))
            sure = step(active, {**known, **others, node: ((4,), (rules.bonus,))}.get, depth, rules)
            in_beam = any(item[1] == node for item in sure.going_on)
            assert in_beam == (node in found.missing), (depth, rules)


@given(seeds)
def test_what_is_read_is_enough(seed: int) -> None:
    """Nothing but the tables that were read decides."""
    for at in range(20):
        _, active, rows, depth, rules = random_step(seed + at)
        tables = {node: small(row, depth, rules) for node, row in rows.items()}
        found = step(active, tables.get, depth, rules)
        again = step(active, {node: tables[node] for node in found.read}.get, depth, rules)
        assert again == found


@given(seeds)
def test_tables_are_in_order_and_possible(seed: int) -> None:
    for at in range(20):
        _, _, rows, depth, rules = random_step(seed + at)
        tokens, log_probs = small(rows[0], depth, rules)
        assert list(log_probs) == sorted(log_probs, reverse=True)
        assert all(value > -math.inf for value in log_probs)
        assert len(set(tokens)) == len(tokens) == len(log_probs)
        row = ruled(rows[0], depth, rules)
        assert [row[token] for token in tokens] == list(log_probs)


def test_a_forced_end_is_as_many_copies_of_the_best() -> None:
    """Stock copies the first hypothesis to all of the beam."""
    rules = SentenceRules(EOS, beam=3, limit=9, prefix=[7, EOS], pad=PAD)
    tables: dict[int, Table] = {5: rules.table(1, [4, 6], [-0.5, -1.0], -2.0)}
    found = step([(-1.0, 5)], tables.get, 1, rules)
    assert found.ended == [(-3.0, 5, EOS)] * 3
    assert found.going_on == []


def test_the_end_at_the_maximum_length_comes_before_prefixes() -> None:
    rules = SentenceRules(EOS, beam=2, limit=1, prefix=[7, 8], pad=PAD)
    assert [rules.forced(depth) for depth in range(3)] == [7, EOS, EOS]
    assert rules.wanted(1) == EOS
    assert rules.table(1, [4, 6, 8], [-0.5, -1.0, -1.5], -4.0) == ([EOS], [-4.0])
