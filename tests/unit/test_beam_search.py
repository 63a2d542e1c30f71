"""What beam search evaluates ahead: it saves calls where outputs are as expected, and is left where it does not pay.

That it changes no result is what ``test_whole_searches.py`` is about.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.methods.options.settings import VARIANTS
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.beam.budget import GAIN_WEIGHT, LOOK_AGAIN, Budget
from fairseq_aggdec.search.beam.library import BeamLibrary
from fairseq_aggdec.search.beam.tree import SearchedTree
from fairseq_aggdec.search.compiled.searches import numbers
from fairseq_aggdec.windows.draft import NO_COPIES, Copies
from tests.reference.copying import CopyText
from tests.unit.test_whole_searches import START, Cache, SomeOptions, run

compiled = pytest.mark.skipif(kernels() is None, reason="no compiled kernels")
TYPES, BEAM = 40, 3
TEXT = random.Random(4).sample(range(4, TYPES), 30)
Prefix = tuple[int, ...]


def logits_of(seed: Any) -> Tensor:
    own = torch.Generator().manual_seed(hash(seed) % (1 << 30))
    return torch.randn(TYPES, generator=own) * 2


def unlike(prefix: Prefix) -> Tensor:
    """Prefixes do not resemble each other."""
    return logits_of(prefix)


def alike(prefix: Prefix) -> Tensor:
    """Prefixes that end in the same of a few words resemble each other, as they do in language."""
    row = 3 * logits_of(prefix[-1:]) + 0.05 * logits_of(prefix)
    row[12:] = -30.0
    return row


def near_copy(prefix: Prefix) -> Tensor:
    """What follows is nearly always the next word of a text, whatever stood before."""
    row = logits_of(prefix[-1:]) + 0.05 * logits_of(prefix)
    row[TEXT[len(prefix) % 30]] = 8.0
    return row


class Model:
    """Logits by the output tokens before a position."""

    def __init__(self, row: Callable[[Prefix], Tensor]):
        self.row = row

    def logits(self, sentences: Sequence[int], prefixes: Sequence[Sequence[int]]) -> Tensor:
        return torch.stack([self.row(tuple(prefix[1:])) for prefix in prefixes])


def library_of(
    budget: Budget | None,
    sentences: int = 1,
    text: Sequence[int] = (),
    limit: int = 30,
    floor: int = 25,
) -> tuple[BeamLibrary, Any]:
    options: Any = SomeOptions(BEAM, 0.0, 0)
    texts = Copies([[START, *text]] * sentences, "aligned") if text else NO_COPIES
    limits, prefixes = Limits([limit] * sentences, floor, False, limit + 1), [()] * sentences
    return BeamLibrary(options, limits, START, prefixes, texts, budget), options


def searched(row: Callable[[Prefix], Tensor], *given: Any, **more: Any) -> list[SearchedTree]:
    """The trees of a batch."""
    library, _ = library_of(*given, **more)
    cache: Any = Cache(Model(row), library.sentences)  # type: ignore[arg-type]
    run(library, cache)
    return library.trees()


def eager() -> Budget:
    """A budget for which all that is expected is worth it."""
    budget = Budget("cpu")
    budget.call_cost, budget.least_gain = 1e9, 0.0
    return budget


def calls(trees: Sequence[SearchedTree]) -> int:
    return sum(tree.calls for tree in trees)


def ahead(trees: Sequence[SearchedTree]) -> int:
    return sum(len(tree.ahead) for tree in trees)


@compiled
def test_looking_ahead_saves_calls() -> None:
    plain, quick = searched(alike, None), searched(alike, eager())
    assert calls(quick) < 0.7 * calls(plain)
    assert ahead(plain) == 0


@compiled
def test_a_text_saves_calls_wherever_the_search_stands_in_it() -> None:
    (tree,) = searched(near_copy, Budget("cpu"), 1, TEXT)
    assert tree.calls < 0.6 * tree.depth

    def jumping(prefix: Prefix) -> Tensor:
        """Copies ten words, then goes on elsewhere in the text."""
        row, place = logits_of(prefix), len(prefix)
        row[TEXT[(place + 17 * (place // 10)) % 30]] = 12.0
        return row

    (tree,) = searched(jumping, Budget("cpu"), 1, TEXT, limit=90, floor=85)
    assert tree.calls < 0.7 * tree.depth


@compiled
@pytest.mark.parametrize("sentences", [1, 4])
def test_what_does_not_pay_is_left_and_watched(sentences: int) -> None:
    """Texts that are wrong, prefixes that are like no others; then the outputs change, and it shows for nothing."""
    budget = Budget("cpu")
    for _ in range(8):
        trees = searched(unlike, budget, sentences, TEXT)
    assert calls(trees) == sum(tree.depth for tree in trees)
    assert ahead(trees) == 0
    for _ in range(8):
        trees = searched(near_copy, budget, sentences, TEXT)
    assert calls(trees) < 0.8 * sum(tree.depth for tree in trees)
    assert ahead(trees) > 0


@compiled
def test_a_large_batch_begins_with_no_more_than_it_needs() -> None:
    """What looking ahead would have brought is known all the same, for batches of this size alone."""
    budget = Budget("cpu")
    trees = searched(unlike, budget, 6)
    assert ahead(trees) == 0
    plain = searched(unlike, None, 6)
    assert [tree.tree.places for tree in trees] == [tree.tree.places for tree in plain]
    watched = [bits for bits in range(64) if budget.gains[bits].weight != GAIN_WEIGHT]
    assert watched == [3]
    assert budget.gains[3].sum / budget.gains[3].weight < budget.least_gain


@compiled
@pytest.mark.parametrize("gain", [0.5, 2.0])
def test_a_text_that_saves_no_call_is_not_evaluated(gain: float) -> None:
    """However probable its prefixes are. The search ends before the 16th call, which tries again."""
    budget = Budget("cpu")
    for mean in (budget.text, budget.piece):
        mean.sum = mean.weight
    for mean in budget.gains:
        mean.sum, mean.weight = 100.0 * gain, 100.0
    trees = searched(near_copy, budget, 6, TEXT, limit=12, floor=10)
    assert bool(ahead(trees)) == (gain > 1.0)


@compiled
def test_no_more_is_evaluated_than_the_budget_allows() -> None:
    budget = eager()
    budget.most = 7
    (tree,) = searched(alike, budget, 1, TEXT)
    assert {len(call) for call in tree.nodes_of_calls} <= set(range(1, 9))
    assert max(map(len, tree.nodes_of_calls)) > BEAM


@compiled
def test_more_sentences_draft_less() -> None:
    """A prefix of each costs more beside a call."""
    each = []
    for sentences in (1, 4, 64):
        budget = Budget("cpu")
        for mean in budget.gains:
            mean.sum = 1e6  # it always pays
        trees = searched(near_copy, budget, sentences, TEXT)
        each.append(ahead(trees) / sentences)
    assert each == sorted(each, reverse=True)
    assert each[0] > each[-1]


@compiled
def test_texts_are_asked_for_where_they_may_help() -> None:
    budget = Budget("cpu")
    assert budget.wants_texts(1, 5)
    for mean in (budget.text, budget.piece):
        mean.sum = 0.0
    wanted = []
    for budget.batches in range(2 * LOOK_AGAIN):
        wanted.append(budget.wants_texts(1, 5))
    assert wanted == 2 * [True, *[False] * (LOOK_AGAIN - 1)]


@compiled
@pytest.mark.parametrize("match", VARIANTS["iad-match"].choices)
@given(st.lists(st.integers(4, 7), max_size=12), st.integers(0, 10**9))
def test_a_draft_goes_on_where_the_output_stands_in_the_text(
    match: str, source: list[int], seed: int
) -> None:
    """As ``CopyText`` says of one output."""
    budget = eager()
    budget.piece.sum, budget.least_gain, budget.text.sum = budget.piece.weight, 1e9, -1.0
    options: Any = SomeOptions(1, 0.0, 0)
    source = source + [NEVER_DRAFTED] * (seed % 3 == 0) + source
    library = BeamLibrary(
        options,
        Limits([20], 20, False, 21),
        START,
        [()],
        Copies([[START, *source]], match),
        budget,
    )

    def row(prefix: Prefix) -> Tensor:
        found, chance = torch.full((TYPES,), -9.0), random.Random(f"{seed} {prefix}")
        copied = copied_behind(prefix, 1)
        found[copied[0] if copied and chance.random() < 0.7 else chance.randint(4, 8)] = 9.0
        return found

    def copied_behind(prefix: Sequence[int], most: int) -> list[int]:
        text, output = CopyText(source, START, match), [START]
        for word in prefix:
            output.append(word)
            text.follow(output, 1)
        return list(text.copy(most))

    while (asked := library.ask()) is not None:
        (tree,) = library.trees()
        words = tree.tree.words(tree.active[0][1])
        tokens = numbers(asked.tokens, asked.count)
        assert tokens[1:] == copied_behind(words, 20 - len(words))
        prefixes = [words + tokens[1 : place + 1] for place in range(asked.count)]
        library.take(torch.stack([row(tuple(prefix)) for prefix in prefixes]))
