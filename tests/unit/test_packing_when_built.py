"""Weights are packed when a generator is built: the first sentence does not wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from fairseq_aggdec.engine.linear import FastLinear
from fairseq_aggdec.methods import gad as gad_method
from tests.support import generation_options, make_batch, make_model, make_task

SAMPLE = make_batch([[5, 6], [7]])


@pytest.fixture
def packed() -> Iterator[mock.Mock]:
    """Counts the linear layers that are brought into their fast form."""
    with mock.patch.object(
        FastLinear, "__init__", autospec=True, side_effect=FastLinear.__init__
    ) as made:
        yield made


@pytest.mark.parametrize("decoding", ["greedy", "iad", "gad", "nar", "interleaved"])
def test_no_weight_is_packed_while_a_sentence_waits(
    decoding: str, packed: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, drafter = make_model(make_task(), 5), make_model(make_task(), 3, "nar_drafter")
    # The drafter's own encoder runs from the first draft on, and is packed then.
    monkeypatch.setattr(drafter, "shares_encoder", True)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafter)
    monkeypatch.setattr(gad_method, "check_shared_encoder", lambda *models: None)
    monkeypatch.setattr("fairseq_aggdec.drafters.nar.check_shared_encoder", lambda *models: None)
    task = make_task(decoding, drafter_path="drafter.pt")
    generator: Any = task.build_generator([model], generation_options())
    before = packed.call_count
    assert before > 0
    task.inference_step(generator, [model], SAMPLE)
    assert packed.call_count == before


def test_training_packs_when_it_decodes(packed: mock.Mock) -> None:
    """``--eval-bleu``: the generator is built before training moves the model, and before it learns."""
    model = make_model(make_task(), 5)
    task = make_task("greedy", eval_bleu=True)
    generator: Any = task.build_generator([model], generation_options())
    assert packed.call_count == 0
    task.inference_step(generator, [model], SAMPLE)
    assert packed.call_count > 0
