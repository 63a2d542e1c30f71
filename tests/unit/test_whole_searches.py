"""Searches of whole batches in the compiled library against plain searches: random models, options and batches."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from fairseq_aggdec.budget.copy_length import CopyLength, FixedCopyLength
from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED
from fairseq_aggdec.drafters.copy.input_copy import CopyDrafter
from fairseq_aggdec.engine.precision import EXACT
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.acceptance import AtLeast, Distance, TopBeta, exact
from fairseq_aggdec.search.beam.budget import Budget
from fairseq_aggdec.search.beam.library import BeamLibrary
from fairseq_aggdec.search.beam.tree import Ending, SearchedTree
from fairseq_aggdec.search.compiled.searches import MATCHES, Outputs
from fairseq_aggdec.search.compiled.windows import WindowReader
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import Drafter, EmptyDrafter
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.search.greedy.library import hand_over, search_of
from fairseq_aggdec.search.greedy.outside import Follower
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import NO_COPIES, Copies, Draft
from tests.plain_beam_search import BeamSearch, SentenceRules, SentenceSearch, decode
from tests.reference import greedy
from tests.reference.batches import (
    CPU,
    EOS,
    PAD,
    START,
    UNK,
    Cache,
    Model,
    random_limits,
    random_prefixes,
    run,
)
from tests.reference.copying import PlainCopies

pytestmark = pytest.mark.skipif(kernels() is None, reason="no compiled kernels")


class SomeOptions:
    """What beam search reads of fairseq's options."""

    eos, pad, unk = EOS, PAD, UNK

    def __init__(self, beam_size: int, unk_penalty: float, ngram: int, matches: bool = False):
        self.match_source_len = matches
        self.beam_size, self.unk_penalty, self.no_repeat_ngram_size = beam_size, unk_penalty, ngram


def random_budget(chance: random.Random) -> Budget:
    """A budget that believes anything, also that all prefixes are worth it."""
    budget = Budget(chance.choice(("cpu", "cuda")))
    budget.batches, budget.calls = chance.randint(0, 40), chance.randint(0, 40)
    budget.call_cost, budget.most = chance.choice((0.5, 6.0, 400.0)), chance.choice((4, 80))
    for mean in (budget.text, budget.piece, *budget.alike):
        mean.sum = mean.weight * chance.choice((0.0, 0.7, 0.99, 1.0))
    for mean in budget.gains:
        mean.sum, mean.weight = (100.0, 50.0) if chance.random() < 0.5 else (1.0, 1.0)
    return budget


def plain_searches(
    options: Any, limits: Limits, prefixes: Sequence[Sequence[int]]
) -> list[SentenceSearch]:
    bonus = max(0.0, -options.unk_penalty)
    length = limits.ends if limits.exact else [None] * len(prefixes)
    return [
        SentenceSearch(
            row,
            SentenceRules(
                EOS,
                options.beam_size,
                limits.longest,
                limits.floor,
                prefix,
                PAD,
                bonus,
                length[row],
            ),
            START,
            options.no_repeat_ngram_size,
        )
        for row, prefix in enumerate(prefixes)
    ]


def beam_case(seed: int) -> None:
    """Both beam searches find the same hypotheses in the same order, with the same bits, whatever is drafted."""
    chance = random.Random(seed)
    rows, types = chance.randint(1, 5), chance.randint(4, 40)
    options: Any = SomeOptions(
        chance.randint(1, min(6, types)),
        chance.choice((0.0, 0.0, 1.5, -1.0, math.inf)),
        chance.choice((0, 0, 1, 2, 3)),
    )
    limits, prefixes = random_limits(chance, rows), random_prefixes(chance, rows, types)
    options.match_source_len = limits.exact
    model = Model(chance, types)
    searches, counters, broken = plain_searches(options, limits, prefixes), Counters(), False
    try:
        decode(Cache(model, rows), BeamSearch(list(searches), options, CPU), counters)
    except NonFiniteError:
        broken = True
    budget = random_budget(chance) if chance.random() < 0.8 else None
    texts = NO_COPIES
    if chance.random() < 0.6:
        own = [[START, *random_text(chance, types)] for _ in range(rows)]
        texts = Copies(own, chance.choice(MATCHES))
    library, cache = (
        BeamLibrary(options, limits, START, prefixes, texts, budget),
        Cache(model, rows),
    )
    if chance.random() < 0.5:
        run(library, cache)
    else:
        WindowReader(cache, CPU, exact, Counters()).run(library)
    counted = Counters()
    # Which one of several is named may differ: rows of the Python search change places when some have ended.
    if broken:
        with pytest.raises(NonFiniteError):
            library.outputs(counted)
        return
    outputs, trees = library.outputs(counted), library.trees()
    expected = [
        (one.index, ending.total, [*one.tree.words(ending.node), EOS], scores_of(one, ending))
        for one in searches
        for ending in one.endings
    ]
    found = zip(outputs.owners, outputs.totals, outputs.tokens(), outputs.scores(), strict=True)
    assert list(found) == expected
    for search, tree in zip(searches, trees, strict=True):
        same_tree(search, tree)
    assert counted.nodes == sum(tree.tree.places for tree in trees)
    assert counted.nodes_used == sum(len(search.tree.used) for search in searches)
    assert counted.drafted == sum(len(tree.ahead) for tree in trees)
    if budget is None:
        assert outputs.rounds == [search.calls for search in searches]
        assert outputs.result.calls == counters.calls
        assert counted.nodes == sum(search.tree.places for search in searches)


def same_tree(search: SearchedTree, tree: SearchedTree) -> None:
    """The tree that the library shows is that of the plain search, and what was evaluated beside it."""

    def words(one: SearchedTree) -> Any:
        named = [[(total, one.tree.words(node)) for total, node in beam] for beam in one.beams]
        endings = [(ending.total, one.tree.words(ending.node)) for ending in one.endings]
        return named, endings, sorted(map(one.tree.words, one.tree.used)), one.done, one.depth

    assert words(search) == words(tree)
    assert sum(tree.gains) == tree.depth
    assert len(tree.gains) == tree.calls == len(tree.history)
    evaluated = [node for call in tree.nodes_of_calls for node in call]
    assert evaluated == tree.tree.placed
    assert len(set(evaluated)) == len(evaluated)


def scores_of(search: SearchedTree, ending: Ending) -> list[float]:
    path = search.tree.path(ending.node)[1:]
    totals = [*map(search.tree.totals.__getitem__, path), ending.total]
    gains = [total - before for total, before in zip(totals, [0.0, *totals], strict=False)]
    return torch.tensor(gains, dtype=torch.float32).tolist()


class Reads:
    """A verifier, as far as copies ask."""

    compiled, precision = True, EXACT


class Copier(CopyDrafter):
    """Copies given texts."""

    def __init__(self, texts: list[list[int]], match: str, draft_length: Callable[[], CopyLength]):
        super().__init__(START, match)
        self.texts_given = texts
        self.limit_drafts(draft_length)

    def copied(self, sample: Any) -> list[list[int]]:
        return self.texts_given


class Stranger(Drafter):
    """Drafts chains or trees of a few words."""

    def __init__(self, seed: int, branches: bool):
        self.seed, self.branches = seed, branches

    def draft(self, state: DecodeState) -> Draft:
        tokens, parents = [], []
        for row in state.rows:  # rows may come in any order
            chance = random.Random(f"{self.seed} {row.index} {row.position}")
            size = chance.randint(0, min(5, row.end - row.position))
            tokens.append([chance.choice((EOS, UNK, 3, 3, 3, 2)) for _ in range(size)])
            parents.append([chance.randint(0, n) for n in range(size)])
        return Draft(tokens, parents if self.branches else None)


def random_text(chance: random.Random, types: int) -> list[int]:
    """Few words, so that they occur several times."""
    few = [chance.randrange(4, types + 1) if types > 4 else UNK for _ in range(4)]
    words = [NEVER_DRAFTED, EOS, *few * 4]
    return [min(chance.choice(words), types - 1) for _ in range(chance.randint(0, 9))]


def random_length(chance: random.Random) -> Callable[[], CopyLength]:
    """A draft length that has seen something, or nothing."""
    kind, seen = chance.randrange(3), [(chance.randint(1, 9), chance.random()) for _ in range(5)]
    limit = chance.choice((None, 1, 4))

    def made() -> CopyLength:
        draft_length = CopyLength() if kind else FixedCopyLength(limit)
        for drafted, share in seen if kind == 1 else ():
            draft_length.learn([drafted], [int(share * drafted)])
        return draft_length

    return made


def greedy_case(seed: int) -> None:
    """Both greedy searches emit the same tokens with the same bits of their scores, by the same calls."""
    chance = random.Random(seed)
    rows, types = chance.randint(1, 5), chance.randint(4, 40)
    limits, prefixes = random_limits(chance, rows), random_prefixes(chance, rows, types)
    model = Model(chance, types)
    rules = Rules(
        PAD,
        UNK,
        EOS,
        unk_penalty=chance.choice((0.0, 0.0, 1.5, -1.0, float("inf"))),
        no_repeat_ngram_size=chance.choice((0, 0, 1, 2, 3)),
        free_end=limits.exact,
    )

    texts = [random_text(chance, types) for _ in range(rows)]
    match, draft_length = chance.choice(MATCHES), random_length(chance)
    accept = chance.choice(
        (
            exact,
            exact,
            TopBeta(2, 1.0),
            TopBeta(3),
            Distance(1, 3),
            AtLeast(3, exact),
            AtLeast(2, TopBeta(2)),
        )
    )
    branches, kind = chance.random() < 0.5, chance.randrange(4)
    verifier: Any = Reads()

    def drafter() -> Drafter:
        if kind == 0:
            return EmptyDrafter()
        if kind == 1:
            return Stranger(seed, branches)
        made = Copier(texts, match, draft_length)
        made.start({}, verifier, state())
        return made

    def state() -> DecodeState:
        given = zip(limits.ends, prefixes, strict=True)
        strict = [end if limits.exact else 0 for end in limits.ends]
        return DecodeState(
            [
                Row(n, [START], end, limits.floor, strict[n], prefix)
                for n, (end, prefix) in enumerate(given)
            ],
            EOS,
            CPU,
        )

    told = drafter()
    copies = told.copies()
    plain = PlainCopies(told) if isinstance(told, CopyDrafter) else told
    expected, calls = greedy.decode(state(), model.of, rules, accept, plain)
    found, counted = state(), Counters()
    outside = copies is None
    whole = search_of(found, rules, copies or NO_COPIES, accept, outside=outside, types=types)
    if outside:
        reader = WindowReader(Cache(model, rows), CPU, accept, Counters())
        follower = Follower(whole, found, drafter(), output=reader.output)
        reader.run(whole, draft=follower.draft)
        follower.follow()
    else:
        run(whole, Cache(model, rows))
    outputs = Outputs(whole, rows)
    verdict = hand_over(outputs, found, counted, outside or bool(copies and copies.texts))
    if isinstance(told, CopyDrafter) and copies and copies.texts:
        other = drafter()
        assert verdict is not None and isinstance(other, CopyDrafter)
        other.observe_batch(verdict)
        assert vars(other.draft_length.total) == vars(told.draft_length.total)
    assert outputs.tokens() == [sentence.row.tokens[1:] for sentence in expected]
    assert outputs.rounds == [len(sentence.iterations) for sentence in expected]
    for sentence, own in zip(expected, outputs.scores(), strict=True):
        scores = [score for one in sentence.iterations for score in one.scores]
        assert own == pytest.approx(scores, abs=1e-4, nan_ok=True)
    done = [one for sentence in expected for one in sentence.iterations]
    assert counted.calls == calls
    assert counted.drafted == sum(one.drafted for one in done)
    assert counted.accepted == sum(one.accepted for one in done)
    assert counted.emitted == Counter(len(one.gained) for one in done)


CASES = [beam_case, greedy_case]


@pytest.mark.parametrize("case", CASES)
def test_a_thousand_random_cases(case: Any) -> None:
    for seed in range(1000):
        try:
            case(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("seed", [5002816, 5012956, 5012968, 5031037])
def test_nothing_is_evaluated_behind_what_is_only_watched(seed: int) -> None:
    """Found by 30,000 cases: prefixes behind those that a call would have evaluated."""
    beam_case(seed)
