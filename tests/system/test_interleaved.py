"""Models that write in several places learn to reverse a sequence and decode what they learnt."""

from __future__ import annotations

import random
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import data_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask
from tests.support import SIZES, generation_options, make_batch, make_dictionary, make_task

PAD, EOS = 1, 2
DIGITS = range(4, 14)  # their symbols
SIZE = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_embed_dim": 64,
    "decoder_embed_dim": 64,
    "encoder_ffn_embed_dim": 128,
    "decoder_ffn_embed_dim": 128,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "dropout": 0.0,
    "share_all_embeddings": True,
}
RATE, BATCH = 0.003, 64


def digits(rng: random.Random, count: int) -> list[list[int]]:
    return [rng.choices(DIGITS, k=rng.randint(3, 8)) for _ in range(count)]


def sample_of(sources: list[list[int]]) -> dict[str, Any]:
    sample = make_batch(sources)
    targets = [torch.tensor([*reversed(source), EOS]) for source in sources]
    previous = data_utils.collate_tokens(targets, PAD, EOS, move_eos_to_beginning=True)
    sample["net_input"]["prev_output_tokens"] = previous
    sample["target"] = data_utils.collate_tokens(targets, PAD)
    sample["ntokens"] = sum(map(len, targets))
    return sample


def trained(
    task: TranslationAggdecTask, directions: int, words: int, updates: int, rng: random.Random
) -> Any:
    """A model trained with the stock criterion."""
    args = Namespace(**(SIZES | SIZE), directions=directions, words_per_direction=words)
    ARCH_CONFIG_REGISTRY["interleaved_transformer"](args)
    torch.manual_seed(1)
    model: Any = ARCH_MODEL_REGISTRY["interleaved_transformer"].build_model(args, task).train()
    criterion = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, updates)
    for _ in range(updates):
        sample = sample_of(digits(rng, BATCH))
        loss = criterion(model, sample)[0] / sample["ntokens"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@pytest.mark.parametrize(("directions", "words", "updates"), [(2, 2, 450), (4, 1, 700)])
def test_reversing_is_learnt(directions: int, words: int, updates: int) -> None:
    rng = random.Random(1)
    digit_names = make_dictionary([str(digit) for digit in range(len(DIGITS))])
    task = make_task("interleaved", digit_names, digit_names)
    model = trained(task, directions, words, updates, rng)
    sources = digits(rng, 200)
    generator = task.build_generator([model], generation_options(beam=4))
    found = task.inference_step(generator, [model], make_batch(sources))
    right = [
        hypotheses[0]["tokens"].tolist() == [*reversed(source), EOS]
        for hypotheses, source in zip(found, sources, strict=True)
    ]
    assert sum(right) >= 0.99 * len(sources)
    step = directions * words
    fewest = sum(-(-(len(source) + 1) // step) for source in sources)
    assert fewest <= task.counters.iterations < 2 * fewest
