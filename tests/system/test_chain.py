"""Block heads on a frozen base learn to draft what goes together: with a chain, and trees over it, more stands."""

from __future__ import annotations

import random
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.data import data_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_aggdec.criterions.blockwise_loss import BlockwiseLoss, BlockwiseLossConfig
from tests.support import SIZES, assert_same, generate, make_batch, make_task, random_sources, stock

PAD, EOS, FIRST = 1, 2, 4
TINY = {"encoder_embed_dim": 32, "decoder_embed_dim": 32, "encoder_layers": 1, "decoder_layers": 1}
TINY |= {"dropout": 0.0, "share_all_embeddings": True}
HEADS = {"block_size": 4, "head_layout": "per-head", "head_hidden_dim": 4}
HEADS |= {"identity_first_head": True}


TYPES = len(make_task().target_dictionary) - FIRST


def pieces(source: list[int], luck: random.Random) -> list[int]:
    """Every word in three pieces: the first is one of two, as likely as each other, and the others follow from it."""
    target = []
    for word in source:
        piece = word - FIRST + luck.choice([0, TYPES // 2])
        target += [FIRST + (piece + 7 * place) % TYPES for place in range(3)]
    return target


def batch(number: int) -> dict[str, Any]:
    sources = random_sources(1000 + number, 32)
    sample = make_batch(sources)
    luck = random.Random(number)
    targets = [torch.tensor([*pieces(source, luck), EOS]) for source in sources]
    sample["target"] = data_utils.collate_tokens(targets, PAD)
    previous = data_utils.collate_tokens(targets, PAD, EOS, move_eos_to_beginning=True)
    sample["net_input"]["prev_output_tokens"] = previous
    sample["ntokens"] = sum(map(len, targets))
    return sample


def trained(updates: int, base: Any = None, **options: Any) -> Any:
    """Heads that learn from the criterion, alone where a base is given."""
    args = Namespace(**(SIZES | TINY | HEADS | options), freeze_base=base is not None)
    task = make_task()
    ARCH_CONFIG_REGISTRY["blockwise_transformer"](args)
    torch.manual_seed(1)
    model: Any = ARCH_MODEL_REGISTRY["blockwise_transformer"].build_model(args, task)
    if base is not None:
        model.load_state_dict(base.state_dict(), strict=False)
    config = BlockwiseLossConfig(label_smoothing=0.0, sentence_avg=False)
    config.head_loss = "mean"
    criterion = BlockwiseLoss(config, task)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=5e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, updates)
    model.train()
    for update in range(updates):
        loss, size, _ = criterion(model, batch(update))
        optimizer.zero_grad()
        (loss / size).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@pytest.mark.parametrize("rows", [1, 12])
def test_a_chain_drafts_more_and_trees_over_it_more_again(heads: list[Any], rows: int) -> None:
    alone, chained = heads
    gained = []
    samples = [make_batch(random_sources(number, rows)) for number in range(24 // rows)]
    for model, nodes in ((alone, None), (chained, None), (chained, "16")):
        task = make_task("blockwise", draft_tree=nodes)
        for sample in samples:
            options = {"max_len_b": 50}
            assert_same(
                generate(task, [model], sample, **options), stock([model], sample, **options)
            )
        gained.append(task.counters.mean_accepted_tokens)
    # With these seeds some 1.5, 2.0 and 2.3.
    assert 1.2 < gained[0] < gained[1] - 0.3 < gained[2] - 0.4, gained


@pytest.fixture(scope="module")
def heads() -> list[Any]:
    base = trained(500, block_size=2)
    base = {n: p for n, p in base.state_dict().items() if ".heads." not in n}
    frozen = Namespace(state_dict=lambda: base)
    return [trained(200, frozen), trained(200, frozen, slot_chain=True)]
