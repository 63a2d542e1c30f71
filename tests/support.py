"""The stock oracle and what else the tests share, tiny random models and batches among it."""

from __future__ import annotations

import copy
import functools
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from fairseq.data import data_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import get_available_activation_fns
from torch import Tensor

from fairseq_aggdec.drafters.chain import CANDIDATES
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.models.swish_transformer import NAME as SWISH
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask
from tests.random_models import (
    SIZES,
    WORDS,
    make_batch,
    make_dictionary,
    make_model,
    make_task,
    random_sources,
)

__all__ = [
    "SIZES",
    "WORDS",
    "make_batch",
    "make_dictionary",
    "make_model",
    "make_task",
    "random_sources",
]

# All that fairseq can build a layer with; its swish is a class, which no layer can call.
ACTIVATIONS = (*get_available_activation_fns(), "relu_squared")
ACTIVATED: dict[
    str, dict[str, Any]
] = {  # options of models with every activation that the kernels have
    **{name: {"activation_fn": name} for name in ACTIVATIONS},
    "swish": {"arch": SWISH},
}


def generation_options(**options: Any) -> Namespace:
    """fairseq's generation options; outputs of random models are cut at 20 tokens unless said otherwise."""
    return Namespace(**({"beam": 1, "max_len_b": 20} | options))


def generate(
    task: TranslationAggdecTask,
    models: Sequence[Any],
    sample: dict[str, Any],
    prefix: Tensor | None = None,
    prepare: Callable[[Any], None] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """The hypotheses of a sample under the task's ``--decoding``; ``prepare`` may doctor the generator."""
    generator = task.build_generator(list(models), generation_options(**options))
    if prepare is not None:
        prepare(generator)
    found = task.inference_step(generator, list(models), sample, prefix_tokens=prefix)
    return [hypotheses[0] for hypotheses in found]


def generate_all(
    task: TranslationAggdecTask,
    models: Sequence[Any],
    samples: Sequence[dict[str, Any]],
    **options: Any,
) -> list[dict[str, Any]]:
    """As :func:`generate` of several batches, one behind the other: the models are packed once."""
    generator = task.build_generator(list(models), generation_options(**options))
    found = [task.inference_step(generator, list(models), sample) for sample in samples]
    return [hypotheses[0] for batch in found for hypotheses in batch]


def stock(
    models: Sequence[Any], sample: dict[str, Any], prefix: Tensor | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The oracle: what stock fairseq finds with beam 1."""
    task = make_task("stock", models[0].encoder.dictionary, models[0].decoder.dictionary)
    generator = task.build_generator(list(models), generation_options(**options))
    assert isinstance(generator, SequenceGenerator)
    found = task.inference_step(generator, list(models), sample, prefix_tokens=prefix)
    return [hypotheses[0] for hypotheses in found]


def assert_same(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> None:
    """Equal tokens; scores within 1e-4, which is stock's own noise between batch sizes."""
    assert len(found) == len(expected)
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist(), f"sentence {index}"
        torch.testing.assert_close(
            ours["positional_scores"], theirs["positional_scores"], atol=1e-4, rtol=1e-4
        )
        torch.testing.assert_close(ours["score"], theirs["score"], atol=1e-4, rtol=1e-4)


@contextmanager
def without_library() -> Iterator[None]:
    """PyTorch's operators decode, as where nothing was compiled."""
    with mock.patch.dict(os.environ, {VARIABLE: "none"}):
        kernels.cache_clear()
        try:
            yield
        finally:
            kernels.cache_clear()


def edited(source: Sequence[int]) -> list[int]:
    """The task of :func:`trained_copier`: every twelfth type is replaced, every thirteenth dropped."""
    replaced = [token + 1 if token % 12 == 0 else token for token in source if token % 13]
    return replaced or list(source[:1])


def trained_copier(
    updates: int = 600, seed: int = 1, share_all_embeddings: bool = True
) -> tuple[TranslationAggdecTask, Any]:
    """A tiny model that has learnt to copy with edits well enough to draft from its input.

    A process trains it once, in a few seconds; each caller gets a copy of its own.
    """
    return make_task(), copy.deepcopy(_learnt_copier(updates, seed, share_all_embeddings))


@functools.cache
def _learnt_copier(updates: int, seed: int, share_all_embeddings: bool) -> Any:
    sizes = {
        "encoder_embed_dim": 32,
        "decoder_embed_dim": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "dropout": 0.0,
        "share_all_embeddings": share_all_embeddings,
    }
    args = Namespace(**(SIZES | sizes))
    ARCH_CONFIG_REGISTRY["transformer"](args)
    torch.manual_seed(seed)
    model: Any = ARCH_MODEL_REGISTRY["transformer"].build_model(args, make_task()).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, updates)
    for update in range(updates):
        sources = random_sources(1000 + update, 32)
        sample = make_batch(sources)
        targets = [torch.tensor([*edited(source), 2]) for source in sources]
        target = data_utils.collate_tokens(targets, 1)
        previous = data_utils.collate_tokens(targets, 1, 2, move_eos_to_beginning=True)
        output = model(**sample["net_input"], prev_output_tokens=previous)[0]
        loss = torch.nn.functional.cross_entropy(
            output.flatten(0, 1), target.flatten(), ignore_index=1
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def slow_chain(
    decoder: Any, features: Tensor, logits: Tensor, last: int
) -> tuple[list[int], Tensor]:
    """One slot after the other: the block that a chain puts together, and the logits of every slot in it.

    Features (k, C) and logits (k, V) are those of the slots alone, in one row.
    """
    chosen, told = [], []
    for feature, alone in zip(features, logits, strict=True):
        before = torch.tensor([[chosen[-1] if chosen else last]])
        heard = decoder.output_layer(decoder.chained(feature[None, None], before)[0, 0])
        candidates = alone.topk(min(CANDIDATES, len(alone))).indices.tolist()
        chosen.append(max(candidates, key=lambda token: float(heard[token])))
        told.append(heard)
    return chosen, torch.stack(told)
