"""``--input-noise``: what the decoder reads while it learns is off by as much as was asked for."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from aggdec_images.data import INTENSITIES, ImageFormat
from aggdec_images.super_resolution import (
    SuperResolutionConfig,
    SuperResolutionTask,
    noisy,
)
from omegaconf import OmegaConf

from fairseq_aggdec.tasks.decoding_task import DecodingTask

OFFSET, EOS = 4, 2


def test_noise_has_the_spread_that_was_asked_for() -> None:
    torch.manual_seed(1)
    tokens = torch.full((400, 300), OFFSET + 128)
    error = (noisy(tokens, 12, OFFSET) - tokens).double()
    spread = error.std(dim=1)  # of each image
    assert spread.max() < 14 and spread.min() < 1
    assert spread.mean() == pytest.approx(6, abs=0.5)  # evenly between 0 and 12
    assert error.mean().abs() < 0.2


def test_symbols_stay_and_intensities_stay_intensities() -> None:
    torch.manual_seed(2)
    ends = torch.tensor([[EOS, OFFSET, OFFSET + INTENSITIES - 1]]).expand(50, 3)
    found = noisy(ends, 60, OFFSET)
    assert (found[:, 0] == EOS).all()
    assert found[:, 1:].min() == OFFSET and found[:, 1:].max() == OFFSET + INTENSITIES - 1
    assert (found[:, 1:] != ends[:, 1:]).any()


def task(noise: float) -> SuperResolutionTask:
    config = SuperResolutionConfig(
        data="images", model_paths="", train_subset="", input_noise=noise
    )
    return SuperResolutionTask(OmegaConf.structured(config), ImageFormat(2, 4, 1))


@pytest.mark.parametrize("noise", [0.0, 9.0])
def test_training_reads_noise_and_writes_the_truth(noise: float) -> None:
    torch.manual_seed(3)
    tokens = torch.full((3, 17), OFFSET + 100)
    sample: Any = {"net_input": {"prev_output_tokens": tokens}, "target": tokens}
    with mock.patch.object(DecodingTask, "train_step") as step:
        task(noise).train_step(sample, "model")
    given, model = step.call_args.args
    assert model == "model" and given["target"] is tokens
    changed = bool((given["net_input"]["prev_output_tokens"] != tokens).any())
    assert changed == (noise > 0)
    assert sample["net_input"]["prev_output_tokens"] is tokens  # the batch is not touched


def test_negative_noise_is_refused() -> None:
    config = SuperResolutionConfig(data="images", model_paths="", train_subset="", input_noise=-1)
    with pytest.raises(ValueError, match="--input-noise -1"):
        SuperResolutionTask.setup_task(OmegaConf.structured(config))
