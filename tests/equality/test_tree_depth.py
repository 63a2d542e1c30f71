"""The mean depth of trees, by which the compiled library chooses how many slots it fills, beside its rule in Python."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from fairseq_aggdec.drafters.trees import TreeGrower
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.methods import gad as gad_method
from tests.equality.test_gad import drafter
from tests.support import generation_options, make_batch, make_model, make_task, random_sources

BLOCK = 8
CHEAP, DEAR = "1:10,100:10.5", "1:10,100:200"  # of windows of 1 and of 100 tokens
ACCEPTANCES = "exact", "top-beta:9:9.0"  # with the second some rows get ahead of others
AMOUNTS = [
    {"draft_tree": "auto", "call_price": CHEAP},
    {"draft_tree": "auto", "call_price": DEAR},
    {"draft_tokens": "auto", "call_price": CHEAP},
    {"draft_tree": "3", "call_price": CHEAP},
]


class MeanDepth:
    """At first trees are believed to be 4 deep; the mean of each call counts an eighth.

    Args:
        trees: of the drafter.
        cases: counts calls and trees that a test is to see.
    """

    def __init__(self, trees: TreeGrower, cases: Counter[str]):
        self.trees, self.cases, self.depth = trees, cases, 4.0
        self.most = min(BLOCK, trees.budget.most)

    def slots(self) -> int:
        """Slots of the next trees: the mean depth and one and a quarter more, rounded down."""
        return min(self.most, int(self.depth + 1.25)) if self.trees.budget.stops else self.most

    def see(self, verdict: Any) -> None:
        slots, found = self.slots(), []
        for row, count in enumerate(verdict.drafted):
            depths = [0]
            for node in range(count):
                before = node if verdict.parents is None else verdict.parents[row][node]
                depths.append(depths[before] + 1)
            cut = max(depths) == slots < self.most  # it may have gone on
            self.cases["cut"] += cut
            if count:  # else the row had no room
                found.append(max(depths) + cut)
        if found and self.trees.budget.stops:
            self.depth += (sum(found) / len(found) - self.depth) / 8
        self.cases["some have no room"] += 0 < len(found) < len(verdict.drafted)


@pytest.mark.skipif(kernels() is None, reason="no compiled kernels")
def test_the_mean_depth_of_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    form = {"slot_predicts": "next", "slot_chain": True, "prefix_attention": "causal"}
    model, own = make_model(make_task(), 5), drafter(block_size=BLOCK, **form)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: own)
    cases: Counter[str] = Counter()
    for amount, acceptance in itertools.product(AMOUNTS, ACCEPTANCES):
        task = make_task("gad", drafter_path="drafter.pt", acceptance=acceptance, **amount)
        alone, watched = (task.build_generator([model], generation_options()) for _ in range(2))
        reads = watched.drafter
        expected = MeanDepth(reads.trees, cases)

        def watch(verdict: Any, state: Any, reads: Any = reads, expected: Any = expected) -> None:
            if any(verdict.drafted):
                assert reads.slots.reader.compiled.step.wanted == expected.slots()
                cases[f"{expected.slots()} slots"] += 1
            expected.see(verdict)
            assert reads.memory.budget.depth == pytest.approx(expected.depth, rel=1e-12)

        watched.watch = watch
        for rows in (5, 1, 3):
            sample = make_batch(random_sources(rows + 10, rows, longest=12))
            for generator in (watched, alone):
                task.inference_step(generator, [model], sample)
                trees = generator.drafter.trees
                assert trees.depth == pytest.approx(expected.depth, rel=1e-12)
                assert trees.slots(BLOCK) == expected.slots()
    assert cases["cut"] and cases["some have no room"] and len(cases) > 2 + 3, cases
