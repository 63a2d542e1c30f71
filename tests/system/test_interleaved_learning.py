"""Interleaved models learn to reverse a sequence, whatever the number of directions and words per step."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.data import data_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from tests.support import SIZES, generation_options, make_batch, make_dictionary, make_task

EOS, PAD, WORDS = 2, 1, 12
UPDATES = 700


def sources(seed: int, count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 8, (count,), generator=generator).tolist()
    return [torch.randint(4, 4 + WORDS, (n,), generator=generator).tolist() for n in lengths]


def learn(task: Any, directions: int, words: int) -> Any:
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_embed_dim": 64, f"{side}_ffn_embed_dim": 128}
    geometry = {"directions": directions, "words_per_direction": words}
    args = Namespace(**(SIZES | sizes | geometry | {"share_all_embeddings": True}))
    ARCH_CONFIG_REGISTRY["interleaved_transformer"](args)
    torch.manual_seed(1)
    model: Any = ARCH_MODEL_REGISTRY["interleaved_transformer"].build_model(args, task).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, UPDATES)
    for update in range(UPDATES):
        batch = sources(100 + update, 64)
        targets = [torch.tensor([*reversed(source), EOS]) for source in batch]
        target = data_utils.collate_tokens(targets, PAD)
        previous = data_utils.collate_tokens(targets, PAD, EOS, move_eos_to_beginning=True)
        logits = model(**make_batch(batch)["net_input"], prev_output_tokens=previous)[0]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=PAD
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@pytest.mark.parametrize(("directions", "words"), [(2, 1), (2, 2), (4, 1)])
def test_99_of_100_reversals_are_right(directions: int, words: int) -> None:
    dictionary = make_dictionary([f"w{i}" for i in range(WORDS)])
    task = make_task("interleaved", dictionary, dictionary)
    model = learn(task, directions, words)
    held_out = sources(7, 300)
    generator = task.build_generator([model], generation_options(beam=4))
    found = task.inference_step(generator, [model], make_batch(held_out))
    right = sum(
        hypotheses[0]["tokens"].tolist() == [*reversed(source), EOS]
        for source, hypotheses in zip(held_out, found, strict=True)
    )
    assert right >= 0.99 * len(held_out), right / len(held_out)
