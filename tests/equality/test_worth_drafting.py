"""``auto`` options on a clock that costs what the test says: drafts where they pay, greedy decoding where they do not,
the same output in both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from fairseq_aggdec.budget import call_cost
from fairseq_aggdec.budget.account import CREDIT
from fairseq_aggdec.drafters.slots import CachedSlots
from fairseq_aggdec.engine.heads import DecoderHeads
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.methods import gad as gad_method
from fairseq_aggdec.search.compiled import greedy as compiled_greedy
from fairseq_aggdec.windows.window import Window
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)

GAD, BLOCKWISE = "gad", "blockwise"
BATCHES = 40


class Clock:
    """Advances by what calls of the models cost: one for the verifier, more with each position, and for a draft.

    Args:
        node: of each position of a window beyond the first of each row.
        draft: of a call of the drafter.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, node: float, draft: float):
        self.now, self.node = 0.0, node
        clocks = dict.fromkeys(("thread_time", "perf_counter"), lambda: self.now)
        monkeypatch.setattr(call_cost, "time", SimpleNamespace(**clocks))
        # Every window of the verifier is seen here, also where the compiled library would decode a batch alone.
        monkeypatch.setattr(compiled_greedy, "decode", lambda *_: False)
        self._slow(monkeypatch, Verifier, "read", self._window)
        self._slow(monkeypatch, DecoderHeads, "proposed_features", lambda *_: draft)
        self._slow(monkeypatch, CachedSlots, "_where", lambda *_: draft)

    def _window(self, window: Window, *_: Any) -> float:
        return 1.0 + self.node * (len(window.tokens) - window.rows)

    def _slow(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, cost: Any) -> None:
        call = getattr(owner, name)

        def slowly(this: Any, *arguments: Any) -> Any:
            self.now += cost(*arguments)
            return call(this, *arguments)

        monkeypatch.setattr(owner, name, slowly)


def models(decoding: str, seed: int) -> tuple[Any, Any]:
    """A verifier and its drafter, both random."""
    if decoding == GAD:
        drafter = make_model(make_task(), 2, "nar_drafter", block_size=5, slot_chain=True)
        return make_model(make_task(), seed), drafter
    options = {"block_size": 5, "head_layout": "per-head", "head_hidden_dim": 8}
    return make_model(make_task(), seed, "blockwise_transformer", **options), None


def decode(
    clock: Clock, decoding: str, rows: int, seed: int, **options: Any
) -> tuple[float, float, Any]:
    """Seconds of decoding some batches, seconds of greedy decoding, and the counters."""
    verifier, drafter = models(decoding, seed)
    spent = []
    for method in ("greedy", decoding):
        chosen = {"drafter_path": "drafter.pt"} if method == GAD else {}
        task = make_task(method, **(chosen | (options if method == decoding else {})))
        with mock.patch.object(gad_method, "load_drafter", lambda *_: drafter):
            generator = task.build_generator([verifier], generation_options())
        began = clock.now
        for number in range(BATCHES):
            sample = make_batch(random_sources(number, rows))
            found = task.inference_step(generator, [verifier], sample)
            if number % 10 == 0:
                assert_same([ranked[0] for ranked in found], stock([verifier], sample))
        spent.append(clock.now - began)
    greedy, drafted = spent
    return drafted, greedy, task.counters


AUTO = [{"draft_nodes": "auto"}, {"block_size": "auto"}]
AUTO += [{"draft_nodes": "auto", "block_size": "auto"}, {"draft_nodes": "16", "block_size": "auto"}]


@pytest.mark.parametrize(
    ("rows", "options"), [(6, AUTO[0]), *((1, options) for options in AUTO)], ids=str
)
@pytest.mark.parametrize("decoding", [GAD, BLOCKWISE])
def test_where_drafts_do_not_pay_decoding_is_greedy(
    monkeypatch: pytest.MonkeyPatch, decoding: str, rows: int, options: dict[str, Any]
) -> None:
    clock = Clock(monkeypatch, node=0.1, draft=2.0)
    spent, greedy, counters = decode(clock, decoding, rows, 6, **options)
    # The first drafts, one of each kind, and what a trial of one sentence after another may cost.
    trial = CREDIT if rows == 1 else 0.0
    assert spent <= 1.03 * greedy + 2 * (1.0 + 2.0 + 6.4 * rows) + trial
    assert counters.undrafted > (0.8 if rows > 1 else 0.5) * BATCHES * rows
    assert f"{counters.undrafted} of the sentences were decoded without" in counters.summary()


@pytest.mark.parametrize("options", [AUTO[0], AUTO[3]], ids=str)
@pytest.mark.parametrize("decoding", [GAD, BLOCKWISE])
def test_where_they_pay_it_drafts(
    monkeypatch: pytest.MonkeyPatch, decoding: str, options: dict[str, Any]
) -> None:
    """The same kind of model, of which chance has made one that its drafter knows well."""
    clock = Clock(monkeypatch, node=0.0, draft=0.01)
    spent, greedy, counters = decode(clock, decoding, 1, 2, **options)
    assert spent < 0.9 * greedy
    assert counters.drafted > counters.accepted > 0
    assert counters.undrafted < 0.75 * BATCHES  # the first draft is a risk that is earned first


def test_heads_are_laid_out_before_the_first_batch() -> None:
    model = make_model(make_task(), 2, "blockwise_transformer", block_size=3, slot_chain=True)
    task = make_task(BLOCKWISE)
    generator = task.build_generator([model], generation_options())
    generator.prepare()
    chain = generator.drafter.chain
    task.inference_step(generator, [model], make_batch(random_sources(1, 2)))
    assert chain is not None and generator.drafter.chain is chain
