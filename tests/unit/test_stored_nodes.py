"""Configurations with objects in them are made with OmegaConf of any version."""

from __future__ import annotations

import copy
from argparse import Namespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from fairseq_aggdec.stored import nodes
from fairseq_aggdec.stored.nodes import configuration, value_node

PLAIN: dict[str, Any] = {
    "model": {"layers": [1, {"width": None}], "name": "a", "rates": (0.5, "b")},
    "task": {"data": "${model.name}", "lost": "???"},
}


@pytest.fixture(params=["as it is here", "as OmegaConf 2.0 needs it"])
def _version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "2.0" in request.param:
        monkeypatch.setattr(nodes, "REFUSES", True)


@pytest.mark.usefixtures("_version")
def test_plain_values_are_those_of_omegaconf() -> None:
    made = configuration(PLAIN)
    assert made == OmegaConf.create(PLAIN)
    assert OmegaConf.to_container(made) == OmegaConf.to_container(OmegaConf.create(PLAIN))
    assert made.task.data == "a" and "lost" not in made.task
    made.model.layers[1].width = 3
    assert made.model["layers"][1]["width"] == 3


@pytest.mark.usefixtures("_version")
def test_objects_are_kept() -> None:
    model = Namespace(layers=2)
    made = configuration({"model": model, "task": OmegaConf.create({"a": 1})})
    assert made.model is model and made.task.a == 1
    assert copy.deepcopy(made).model == model
    assert value_node(model)._value() is model


@pytest.mark.usefixtures("_version")
def test_a_configuration_is_copied() -> None:
    given = OmegaConf.create({"a": {"b": 1}})
    made = configuration(given)
    made.a.b = 2
    assert isinstance(made, DictConfig) and given.a.b == 1
