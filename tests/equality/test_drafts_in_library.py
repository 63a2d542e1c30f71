"""Drafters beside the greedy search of the compiled library, in one call and by windows; no Python in between."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fairseq_aggdec.drafters.model_drafter import ModelDrafter
from fairseq_aggdec.drafters.proposer import NarrowVocabulary
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.methods import gad as gad_method
from fairseq_aggdec.search import engines
from fairseq_aggdec.search.compiled import reader
from fairseq_aggdec.search.compiled.searches import DRAFT, NO_ROOM, WholeSearch
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.windows.draft import Draft
from tests.equality.test_blockwise import chained, headed
from tests.equality.test_gad import drafter
from tests.equality.test_head_layers import layered
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)

pytestmark = pytest.mark.skipif(kernels() is None, reason="no compiled kernels")

SLOTS: list[dict[str, Any]] = [
    {},
    {"slot_predicts": "next", "slot_chain": True, "prefix_attention": "causal"},
    {"prefix_attention": "causal", "decoder_normalize_before": True},
]
# Those of the papers: what a slot reads is copied from the source; published: positions before every layer.
COPIES: list[dict[str, Any]] = [
    {"src_embedding_copy": True, "decoder_layers": 3},
    {"src_embedding_copy": True, "slot_predicts": "next", "prefix_attention": "causal"},
    {"src_embedding_copy": True, "published_form": True, "block_size": 25},
]
AMOUNTS: list[dict[str, Any]] = [
    {},
    {"draft_tokens": "all"},
    {"draft_tokens": "2"},
    {"draft_tokens": "auto"},
    {"draft_tree": "7"},
    {"draft_tree": "auto", "int8": "drafts"},
    {"draft_tree": "8", "acceptance": "top-beta:3:2.0"},
    {"draft_tokens": "all", "int8": "all"},
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"no_repeat_ngram_size": 2, "min_len": 4, "unkpen": 1.0},
    {"max_len_b": 5, "temperature": 1.7},
]


class Guesses(Drafter):
    """A stranger's drafter: chains and trees of nonsense and of what stock writes."""

    def __init__(self, right: list[list[int]], branches: bool):
        self.right, self.branches = right, branches
        self.heard, self.kept = [0, 0], 0

    def draft(self, state: Any) -> Draft:
        drafts = [self._of(row) for row in state.rows]
        parents = [own for _, own in drafts] if self.branches else None
        return Draft([tokens for tokens, _ in drafts], parents)

    def _of(self, row: Any) -> tuple[list[int], list[int]]:
        chance = random.Random(100 * row.index + row.position)  # rows may come in any order
        most = min(row.end - row.position, chance.randint(0, 5))
        known = self.right[row.index][row.position :][:most]
        tokens = [token if chance.random() < 0.8 else 5 for token in known]
        if not self.branches:
            return tokens, []
        parents = [
            chance.choice((n, max(0, n - 1), chance.randint(0, n))) for n in range(len(tokens))
        ]
        return tokens, parents

    def observe(self, verdict: Any, state: Any) -> None:
        assert verdict.output.logits.shape[0] == sum(verdict.window.widths)
        tokens = [token for row in verdict.emitted for token in row]
        picked = verdict.output.logits.log_softmax(-1).sum() * 0 + len(tokens)
        assert picked == picked and len(verdict.scores) == len(tokens)
        self.heard[0] += sum(verdict.drafted)
        self.heard[1] += sum(verdict.accepted)

    def keep_rows(self, rows: Any) -> None:
        self.kept += 1


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each run of a whole search in the library came back with; no run ends because its time is up."""
    monkeypatch.setattr(reader, "PAUSE", 1e9)
    found: list[int] = []
    run = WholeSearch.run

    def noted(self: Any, *readers: Any) -> int:
        found.append(run(self, *readers))
        return found[-1]

    monkeypatch.setattr(WholeSearch, "run", noted)
    return found


def plainly(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch reads the windows."""
    monkeypatch.setattr(engines, "read_by_windows", lambda request: "a test")


def built(method: str, model: Any, **options: Any) -> tuple[Any, Any]:
    names = ("draft_tokens", "draft_tree", "int8", "acceptance")
    chosen = {name: options.pop(name) for name in names if name in options}
    if method == "gad":
        chosen["drafter_path"] = "drafter.pt"
    task = make_task(method, **chosen)
    return task, task.build_generator([model], generation_options(**options))


def learned(generator: Any) -> list[Any]:
    """What a drafter knows after some batches."""
    own = generator.drafter
    if not isinstance(own, ModelDrafter):
        return [vars(own).get(name) for name in ("heard", "kept")]
    means = [vars(getattr(own.draft_length, name, random)) for name in ("gained", "drafted")]
    return [means if hasattr(own.draft_length, "gained") else None, own.trees and own.trees.depth]


def decoded(task: Any, generator: Any, model: Any) -> list[Any]:
    """All that three batches give."""
    found: list[Any] = []
    for rows in (1, 5, 3):
        sample = make_batch(random_sources(rows + 10, rows, longest=12))
        for ranked in task.inference_step(generator, [model], sample):
            (own,) = ranked
            found.append(own["tokens"].tolist())
            found += [own["positional_scores"].tolist(), own["score"].item(), own["steps"]]
    counters = task.counters
    found += [counters.calls, counters.drafted, counters.accepted, counters.iterations]
    found += [dict(counters.emitted), dict(counters.accepted_lengths), counters.sentences]
    return [*found, counters.undrafted, learned(generator)]


def compare(make: Callable[[], tuple[Any, Any]], model: Any, runs: list[int]) -> None:
    """In one call and by windows the same is found with the same bits, drafted and learned, by the same calls."""
    task, generator = make()
    found = decoded(task, generator, model)
    assert runs
    with pytest.MonkeyPatch.context() as patched:
        plainly(patched)
        task, generator = make()
        del runs[:]
        assert found == decoded(task, generator, model)
    assert not runs


@pytest.mark.parametrize("amount", AMOUNTS, ids=str)
@pytest.mark.parametrize("slots", SLOTS, ids=["plain", "chain, causal", "causal"])
def test_slots(
    slots: dict[str, Any], amount: dict[str, Any], runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier, model = make_model(make_task(), 5), drafter(**slots)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: model)
    for options in OPTIONS:
        compare(lambda options=options: built("gad", verifier, **options, **amount), verifier, runs)


@pytest.mark.parametrize("slots", COPIES, ids=["copy", "copy, causal", "published"])
def test_slots_of_the_papers(
    slots: dict[str, Any], runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier, model = make_model(make_task(), 5), drafter(**slots)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: model)
    for amount in ({"draft_tokens": "all"}, {"draft_tree": "7", "int8": "drafts"}):
        compare(lambda amount=amount: built("gad", verifier, **amount), verifier, runs)


HEADS: dict[str, Callable[[], Any]] = {
    "dense": lambda: headed("dense"),
    "dense, head 1 is the base": lambda: headed("dense", True),
    "per head": lambda: headed("per-head"),
    "chain": lambda: chained("per-head", True),
    "layers": lambda: layered(),
    "layers, norms before": lambda: layered(True, False),
}


@pytest.mark.parametrize(
    "amount", [one for one in AMOUNTS if one.get("draft_tokens") != "2"], ids=str
)
@pytest.mark.parametrize("kind", HEADS)
def test_heads(kind: str, amount: dict[str, Any], runs: list[int]) -> None:
    model = HEADS[kind]()
    for options in OPTIONS[:2]:
        compare(lambda options=options: built("blockwise", model, **options, **amount), model, runs)


@pytest.mark.parametrize("branches", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("acceptance", ["exact", "top-beta:2:1.0"])
def test_a_strangers_drafter(
    branches: bool, options: dict[str, Any], acceptance: str, runs: list[int]
) -> None:
    model = make_model(make_task(), 5)
    sample = make_batch(random_sources(15, 5, longest=12))
    right = [own["tokens"].tolist() for own in stock([model], sample, **options)]

    def make() -> tuple[Any, Any]:
        task, generator = built("iad", model, acceptance=acceptance, **options)
        generator.drafter = Guesses(right, branches)
        return task, generator

    compare(make, model, runs)


def test_no_python_between_iterations(runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that is built in asks for its sources to be read, and for room as it grows; a stranger's every time."""
    sample = make_batch(random_sources(15, 5, longest=12))
    models = {"gad": make_model(make_task(), 5), "blockwise": layered()}
    forms = [("gad", drafter(**slots)) for slots in SLOTS + COPIES] + [("blockwise", None)]
    for method, own in forms:
        monkeypatch.setattr(gad_method, "load_drafter", lambda path, task, own=own: own)
        model = models[method]
        task, generator = built(method, model, draft_tokens="all")
        task.inference_step(generator, [model], sample)
        del runs[:]
        before = task.counters.calls
        task.inference_step(generator, [model], sample)
        assert task.counters.calls - before > 10 > 4 >= len(runs)
        assert runs.count(DRAFT) <= 2
    task, generator = built("iad", models["gad"])
    generator.drafter = Guesses([[]] * 5, False)
    del runs[:]
    task.inference_step(generator, [models["gad"]], sample)
    assert runs.count(DRAFT) == task.counters.calls
    assert len(runs) == task.counters.calls + runs.count(NO_ROOM) + 1


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (lambda rows: Draft([[1000]] * rows), "gives a token that is not in the dictionary"),
        (lambda rows: Draft([[-1]] * rows), "gives a token that is not in the dictionary"),
        (lambda rows: Draft([[5, 6]] * rows, [[0, 2]] * rows), "parent that does not come before"),
        (lambda rows: Draft([[5, 6, 7]] * rows, [[0, 0]] * rows), "not give each token a parent"),
        (lambda rows: Draft([[5], [6, 7]], [[0, 0], [1]]), "not give each token a parent"),
        (lambda rows: Draft([[5]] * (rows + 1)), "gives tokens for 3 rows, there are 2"),
    ],
)
def test_what_is_no_draft(draft: Any, said: str) -> None:
    model = make_model(make_task(), 5)
    task, generator = built("iad", model)
    generator.drafter = Guesses([], False)
    generator.drafter.draft = lambda state: draft(len(state.rows))
    with pytest.raises(ValueError, match=said):
        task.inference_step(generator, [model], make_batch(random_sources(1, 2)))


@pytest.mark.parametrize("branches", [False, True])
def test_a_draft_behind_the_last_learned_position(branches: bool) -> None:
    model = make_model(make_task(), 5, decoder_learned_pos=True, max_target_positions=16)
    task, generator = built("iad", model, max_len_b=40)
    sample = make_batch(random_sources(3, 2))
    expected = task.inference_step(generator, [model], sample)

    def draft(beyond: int, state: Any) -> Draft:
        tokens = [[5] * (row.end - row.position + beyond) for row in state.rows]
        return Draft(tokens, [list(range(len(row))) for row in tokens] if branches else None)

    generator.drafter = Guesses([], False)
    generator.drafter.draft = functools.partial(draft, 0)
    found = task.inference_step(generator, [model], sample)
    assert [r[0]["tokens"].tolist() for r in found] == [r[0]["tokens"].tolist() for r in expected]
    generator.drafter.draft = functools.partial(draft, 3)
    with pytest.raises(ValueError, match=r"one behind the other, for a row that takes \d+ at most"):
        task.inference_step(generator, [model], sample)


def test_what_a_drafter_keeps_stays_as_it_was() -> None:
    """The library's memory is used again by the next window."""
    model = make_model(make_task(), 5)
    task, generator = built("iad", model)
    kept: list[list[torch.Tensor]] = []

    def keep(verdict: Any, state: Any) -> None:
        said = [verdict.scores, verdict.output.logits, *verdict.output.features]
        kept.append([*said, *[one.clone() for one in said]])

    generator.drafter = Guesses([[]] * 5, False)
    generator.drafter.observe = keep
    task.inference_step(generator, [model], make_batch(random_sources(15, 5, longest=12)))
    assert len(kept) > 2
    for said in kept:
        half = len(said) // 2
        assert all(map(torch.equal, said[:half], said[half:]))


def test_what_is_learned_of_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions are learned from a large vocabulary's drafts, at the end of a batch, and change no output."""
    monkeypatch.setattr("fairseq_aggdec.drafters.proposer.FEWEST_TYPES", 1)
    learned_from: list[int] = []
    learn = NarrowVocabulary.learn

    def noted(self: Any, rows: Any) -> Any:
        learned_from.append(len(rows))
        return learn(self, rows)

    monkeypatch.setattr(NarrowVocabulary, "learn", noted)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafter(**SLOTS[1]))
    model = make_model(make_task(), 5)
    task, generator = built("gad", model, draft_tokens="all")
    for seed in range(3):
        sample = make_batch(random_sources(seed, 6))
        found = [own for (own,) in task.inference_step(generator, [model], sample)]
        assert_same(found, stock([model], sample))
    narrowing = generator.drafter.proposer.narrowing
    assert generator.drafter.proposer.narrow is not None
    assert sum(learned_from) == narrowing.seen > 16 * 16 and len(learned_from) == 2
    assert not torch.equal(narrowing.gram, torch.zeros_like(narrowing.gram))


@pytest.mark.parametrize("draft_tree", [None, "6"])
def test_what_every_iteration_saw(draft_tree: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories and verdicts of watched iterations are those of the Python search."""
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafter(**SLOTS[1]))
    model, sample = make_model(make_task(), 5), make_batch(random_sources(4, 3, longest=9))

    def seen() -> list[Any]:
        amount = {"draft_tree": draft_tree} if draft_tree else {"draft_tokens": "3"}
        task, generator = built("gad", model, retain_iter_history=True, **amount)
        found: list[Any] = []

        def watch(verdict: Any, state: Any) -> None:
            told = zip(state.rows, verdict.emitted, verdict.accepted, strict=True)
            found.append(sorted((row.index, gained, count) for row, gained, count in told))

        generator.watch = watch
        ranked = task.inference_step(generator, [model], sample)
        return found + [[step["tokens"].tolist() for step in own["history"]] for (own,) in ranked]

    found = seen()
    plainly(monkeypatch)
    assert found == seen()
    assert len(found) > 3 + 5
