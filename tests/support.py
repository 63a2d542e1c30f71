"""Tiny random models, batches and the stock oracle that the tests share."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary, data_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_aggdec.drafters.chain import CANDIDATES
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecConfig, TranslationAggdecTask

WORDS = 36
SIZES = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_embed_dim": 16,
    "decoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "decoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "dropout": 0.1,
    "max_source_positions": 64,
    "max_target_positions": 64,
}


def make_dictionary(words: Sequence[str] | None = None) -> Dictionary:
    dictionary = Dictionary()
    for word in words or [f"w{i}" for i in range(WORDS)]:
        dictionary.add_symbol(word)
    return dictionary


def make_task(
    decoding: str = "beam",
    source: Dictionary | None = None,
    target: Dictionary | None = None,
    **options: Any,
) -> TranslationAggdecTask:
    config = TranslationAggdecConfig(data="", source_lang="src", target_lang="tgt")
    config.decoding = decoding
    for name, value in options.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    return TranslationAggdecTask(config, source or make_dictionary(), target or make_dictionary())


def make_model(
    task: TranslationAggdecTask, seed: int, arch: str = "transformer", **options: Any
) -> Any:
    """A random model in evaluation mode whose output depends on the source, varies along the sentence and ends.

    Freshly initialised models repeat one token with tiny margins. Larger layers over smaller embeddings make them
    chaotic, which is what a test of equality wants: a wrong key or position shows at once.
    """
    args = Namespace(**(SIZES | options))
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(seed)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_tokens" in name:
                parameter.normal_(0, 0.4, generator=generator)
            elif parameter.dim() > 1 and "embed_positions" not in name:
                parameter.normal_(0, 1.5 / parameter.size(-1) ** 0.5, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.05, generator=generator)
    return model.eval()


def make_batch(
    rows: Sequence[Sequence[int]], left_pad: bool = True, pad: int = 1, eos: int = 2
) -> dict[str, Any]:
    """A sample as fairseq collates it from source token ids without ``</s>``."""
    sources = [torch.tensor([*row, eos]) for row in rows]
    lengths = torch.tensor([len(source) for source in sources])
    tokens = data_utils.collate_tokens(sources, pad, eos, left_pad=left_pad)
    return {
        "id": torch.arange(len(rows)),
        "net_input": {"src_tokens": tokens, "src_lengths": lengths},
        "target": None,
    }


def random_sources(seed: int, count: int, longest: int = 12) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [
        torch.randint(4, 4 + WORDS, (length,), generator=generator).tolist() for length in lengths
    ]


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


def stock(
    models: Sequence[Any], sample: dict[str, Any], prefix: Tensor | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The oracle: what stock fairseq finds with beam 1."""
    task = make_task("beam", models[0].encoder.dictionary, models[0].decoder.dictionary)
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


def edited(source: Sequence[int]) -> list[int]:
    """The task of :func:`trained_copier`: every twelfth type is replaced, every thirteenth dropped."""
    replaced = [token + 1 if token % 12 == 0 else token for token in source if token % 13]
    return replaced or list(source[:1])


def trained_copier(
    updates: int = 600, seed: int = 1, **options: Any
) -> tuple[TranslationAggdecTask, Any]:
    """A tiny model that has learnt to copy with edits well enough to draft from its input, in a few seconds."""
    task = make_task()
    sizes = {
        "encoder_embed_dim": 32,
        "decoder_embed_dim": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "dropout": 0.0,
    }
    args = Namespace(**(SIZES | sizes | {"share_all_embeddings": True} | options))
    ARCH_CONFIG_REGISTRY["transformer"](args)
    torch.manual_seed(seed)
    model: Any = ARCH_MODEL_REGISTRY["transformer"].build_model(args, task).train()
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
    return task, model.eval()


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
