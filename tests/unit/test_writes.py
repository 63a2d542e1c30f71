"""Writes sees every write to what it watches, and none where nothing was written."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from fairseq_aggdec.engine.plain import writes as writes_module
from fairseq_aggdec.engine.plain.watch import ModelWatch
from fairseq_aggdec.engine.plain.writes import COUNTED, Writes
from fairseq_aggdec.kernels.library import kernels
from tests.support import generation_options, make_batch, make_model, make_task

counted = pytest.mark.skipif(
    not COUNTED or kernels() is None, reason="this Python does not count writes"
)


class Base(nn.Module):
    def told(self) -> int:
        return 1


class Other(nn.Module):
    pass


def thing() -> Any:
    class Thing(Base):  # a class of its own: its changes do not outlive a test
        pass

    found = Thing()
    found.part, found.other, found.number = nn.Linear(2, 2), nn.Linear(2, 2), 1
    return found


CHANGES: dict[str, Callable[[Any], object]] = {
    "an attribute": lambda own: setattr(own, "number", 2),
    "a new attribute": lambda own: setattr(own, "note", 2),
    "an attribute less": lambda own: delattr(own, "number"),
    "past setattr": lambda own: vars(own).update(number=2),
    "a method put onto it": lambda own: setattr(own, "told", lambda: 2),
    "a method of its class": lambda own: setattr(type(own), "told", lambda self: 2),
    "another class": lambda own: setattr(own, "__class__", Base),
    "other bases": lambda own: setattr(type(own), "__bases__", (Other,)),
    "another part": lambda own: setattr(own, "part", nn.Linear(2, 2)),
    "parts in another order": lambda own: own._modules.update(part=own._modules.pop("part")),
    "training": lambda own: own.train(not own.training),
    "another dictionary": lambda own: setattr(own, "__dict__", dict(vars(own))),
}


@counted
@pytest.mark.parametrize("name", CHANGES)
def test_a_write_is_seen_once(name: str) -> None:
    own = thing()
    watch = Writes([own], [own._modules])
    for _ in range(3):
        for _ in range(20):  # in a loop Python reads attributes by another way
            assert own.number == 1 and own.part is not None
        assert not watch.any()
    CHANGES[name](own)
    assert watch.any()
    assert not watch.any()


@counted
def test_writes_in_a_loop_are_seen() -> None:
    """Python specialises what it does often."""
    own = thing()
    watch = Writes([own])
    for number in range(100):
        own.number = number
        vars(own)["number"] = -number
        assert watch.any() and not watch.any()


@counted
def test_a_hook_is_seen() -> None:
    own = nn.Linear(2, 2)
    watch = Writes([own], [own._forward_hooks])
    assert not watch.any()
    hook = own.register_forward_hook(print)
    assert watch.any() and not watch.any()
    hook.remove()
    assert watch.any()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda own: pickle.loads(pickle.dumps(own))]
)
def test_a_copy_knows_nothing(copied: Callable[[Writes], Writes]) -> None:
    assert Writes().any()
    found = copied(Writes([torch.nn.ReLU()]))
    assert found.any() and found.any()


def test_where_writes_are_not_counted_everything_is_looked_at() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    with mock.patch.object(writes_module, "COUNTED", False):
        watch = ModelWatch([module])
    assert watch.structure.writes.any()
    assert not watch.changed() and not watch.changed()
    module[1].eval()
    assert watch.changed()


DICTIONARIES: dict[str, Callable[[Any], object]] = {
    "of attributes": lambda part: setattr(part, "__dict__", vars(nn.Linear(2, 2))),
    "of attributes, filled from another": lambda part: vars(part).update(vars(nn.Linear(2, 2))),
    "of parameters": lambda part: setattr(part, "_parameters", nn.Linear(2, 2)._parameters),
    "of hooks": lambda part: setattr(part, "_forward_hooks", {0: print}),
}


@pytest.mark.parametrize("sure", [True, False])
@pytest.mark.parametrize("name", DICTIONARIES)
def test_a_dictionary_put_in_place_of_a_modules_own_is_seen(name: str, sure: bool) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with mock.patch.object(writes_module, "COUNTED", COUNTED and sure):
        watch = ModelWatch([module])
    assert not watch.changed() and not watch.changed()
    DICTIONARIES[name](module[0])
    assert watch.changed() and watch.changed()
    watch = ModelWatch([module])
    assert not watch.changed()
    module._modules = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))._modules
    assert watch.changed()


def test_a_models_padding_that_changes_between_batches_counts() -> None:
    models = [make_model(make_task(), seed) for seed in (4, 5)]
    generator = make_task("greedy").build_generator(models, generation_options(beam=1))
    for _ in range(3):
        assert generator.gap() is None
    for model in models:
        for part in (model.decoder, model.decoder.embed_positions):
            before, part.padding_idx = part.padding_idx, 0
            assert generator.gap() is not None
            part.padding_idx = before
            assert generator.gap() is None and generator.gap() is None


def test_what_is_put_onto_a_generator_between_batches_counts() -> None:
    model = make_model(make_task(), 4)
    generator = make_task("greedy").build_generator([model], generation_options(beam=1))
    sample = make_batch([[5, 6, 7]])
    for _ in range(3):
        generator.generate([model], sample)
        assert generator.gap() is None
    assert copy.copy(generator).gap() is None
    for owner, name in ((generator, "lm_model"), (generator.search, "step")):
        before = getattr(owner, name)
        setattr(owner, name, print)
        assert generator.gap() is not None and generator.gap() is not None
        setattr(owner, name, before)
        vars(owner).pop("step", None)
        assert generator.gap() is None and generator.gap() is None


def test_a_generator_is_freed_with_its_last_user() -> None:
    model = make_model(make_task(), 4)
    generator = make_task("greedy").build_generator([model], generation_options(beam=1))
    generator.generate([model], make_batch([[5, 6, 7]]))
    alive = weakref.ref(generator)
    gc.disable()
    try:
        del generator
        assert alive() is None
    finally:
        gc.enable()
