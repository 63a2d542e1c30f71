"""The beam search that a GPU does alone, here on a CPU and without graphs: the tests of ``test_beam`` run again."""

from __future__ import annotations

import copy
import itertools
import operator
from typing import Any

import pytest
import torch

from fairseq_aggdec.budget.pace import Pace
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.search.beam.tree import SearchedTree
from fairseq_aggdec.search.engines import BoardEngine
from fairseq_aggdec.search.errors import NonFiniteError
from tests.equality.test_beam import (  # noqa: F401  (run here again)
    copier,
    ours,
    test_a_model_that_copies_with_edits,
    test_alignment_of_every_hypothesis,
    test_batches_without_numbers_and_lengths,
    test_decoders_of_every_form,
)
from tests.support import generation_options, make_batch, make_model, make_task, random_sources


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All batches are decoded as on a GPU; in every second one a step is launched in vain."""
    ahead = itertools.cycle([1, 0])

    monkeypatch.setattr(BoardEngine, "gaps", lambda self, request: iter(()))
    monkeypatch.setattr(Pace, "ahead", property(lambda pace: next(ahead)))


@pytest.mark.skipif(kernels() is None, reason="no compiled kernels")
def test_both_searches_count_alike(copier: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    sample, found = make_batch(random_sources(21, 7, longest=25)), {}
    for name in ("device", "host"):
        task = make_task("beam", draft_from="none")
        own = [ours([copier], sample, task=task, beam=4, max_len_b=40) for _ in range(2)]
        assert task.counters.in_vain == (name == "device")  # of one batch of two, see `alone`
        found[name] = task.counters, own[0]
        monkeypatch.setattr(BoardEngine, "gaps", lambda self, request: iter(["not asked"]))
    (device, one), (host, other) = found["device"], found["host"]
    for name in ("sentences", "iterations", "calls", "emitted"):
        assert getattr(device, name) == getattr(host, name), name
    # The host does not evaluate a hypothesis that is too far behind.
    assert host.nodes_used <= device.nodes == device.nodes_used < 1.5 * host.nodes
    assert [h[0]["steps"] for h in one] == [h[0]["steps"] for h in other]


def test_a_broken_sentence_is_named() -> None:
    model = copy.deepcopy(make_model(make_task(), 3))
    with torch.no_grad():
        model.encoder.embed_tokens.weight[7] = torch.nan
    sample = make_batch([[4, 5, 6], [8, 9], [5, 7], [4]])
    with pytest.raises(NonFiniteError) as error:
        ours([model], sample, beam=3)
    assert error.value.row == 2


def searched(search: SearchedTree) -> Any:
    """The steps of a search; when it has ended, the library still knows what would have gone on."""
    words = search.tree.words
    beams = [[words(node) for _, node in beam] for beam in search.beams[:-1]]
    endings = [words(ending.node) for ending in search.endings]
    asked = [[words(node) for node in call] for call in search.nodes_of_calls]
    return beams, endings, asked, search.gains, search.done, search.depth


@pytest.mark.skipif(kernels() is None, reason="no compiled kernels")
def test_trees_are_those_of_the_library(
    copier: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who looks at a search sees the same without the compiled library: trees, history, every step."""
    sample, found = make_batch(random_sources(22, 5, longest=9)), {}
    for name in ("library", "board"):
        task, seen = make_task("beam", draft_from="none"), list[list[int]]()
        options = generation_options(beam=3, retain_iter_history=True)
        generator = task.build_generator([copier], options)
        generator.watch = lambda trees, seen=seen: seen.append(
            [len(tree.endings) for tree in trees]
        )
        gaps = iter(["not asked"]) if name == "library" else iter(())
        monkeypatch.setattr(BoardEngine, "gaps", lambda self, request, gaps=gaps: gaps)
        monkeypatch.setattr(Pace, "ahead", 0)
        lists = generator.generate([copier], sample)
        found[name] = lists, generator.searches, seen
    (lists, trees, steps), (other_lists, other_trees, other_steps) = found.values()
    assert steps == other_steps
    for search, tree in zip(trees, other_trees, strict=True):
        assert searched(search) == searched(tree)
    for one, other in zip(lists, other_lists, strict=True):
        assert [h["tokens"].tolist() for h in one] == [h["tokens"].tolist() for h in other]
        histories = ([step["tokens"].tolist() for step in h["history"]] for h in (one[0], other[0]))
        assert operator.eq(*histories)
