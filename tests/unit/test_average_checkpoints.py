"""Averaging: means, shared storage, half precision, and no folders of the training machine."""

from __future__ import annotations

import argparse

import pytest
import torch
from fairseq.models import build_model

from fairseq_aggdec.distill import average_checkpoints
from fairseq_aggdec.stored.nodes import configuration
from tests.support import SIZES, make_task

SCRIPT = vars(average_checkpoints)
average, plain, without_folders = (SCRIPT[n] for n in ("average", "plain", "without_folders"))


def _model(value: float) -> dict[str, torch.Tensor]:
    shared = torch.full((2, 3), value)
    return {"embed": shared, "output": shared, "version": torch.tensor(3)}


def test_mean_of_models_keeps_sharing_and_integers() -> None:
    mean = average([_model(1.0), _model(2.0)], half=False)
    assert torch.equal(mean["embed"], torch.full((2, 3), 1.5))
    assert mean["embed"].data_ptr() == mean["output"].data_ptr()
    assert mean["version"] == 3


def test_half_precision() -> None:
    mean = average([_model(1.0)], half=True)
    assert (mean["embed"].dtype, mean["version"].dtype) == (torch.float16, torch.int64)


def test_other_parameters_are_refused() -> None:
    with pytest.raises(SystemExit, match="different parameters"):
        average([_model(1.0), {"embed": torch.zeros(1)}], half=False)


def test_options_are_plain_and_without_folders_of_the_machine() -> None:
    model = argparse.Namespace(data="/data/me/a:/data/me/b", arch="transformer", layers=[3, "/x/y"])
    cleaned = without_folders({"model": model, "common": {"user_dir": "/data/me/plugin"}})
    assert cleaned["model"] == {"data": "a:b", "arch": "transformer", "layers": [3, "y"]}
    assert cleaned["common"] == {"user_dir": "plugin"}
    assert model.data == "/data/me/a:/data/me/b"


@pytest.mark.parametrize(
    "own",
    [
        {"arch": "blockwise_transformer", "block_size": 3},
        {"arch": "interleaved_transformer", "directions": 4},
        {"arch": "lattice_transformer", "markov_order": "3"},
        {"arch": "nar_drafter", "block_size": 3, "prefix_attention": "causal"},
    ],
    ids=lambda own: own["arch"],
)
def test_options_of_our_own_reach_the_model_again(own: dict[str, str | int]) -> None:
    task = make_task()
    trained = argparse.Namespace(**SIZES, **own)
    model = build_model(trained, task)  # completes the options, as in training
    saved = plain({"model": trained})
    loaded = configuration(saved)  # as fairseq does
    again = build_model(loaded.model, task)
    assert {name: value.shape for name, value in again.state_dict().items()} == {
        name: value.shape for name, value in model.state_dict().items()
    }
    for option, value in own.items():
        assert getattr(loaded.model, option) == value


def test_options_of_a_stock_model_need_no_plugin() -> None:
    saved = plain({"model": argparse.Namespace(arch="transformer", layers=3)})
    assert saved == {"model": {"arch": "transformer", "layers": 3}}
