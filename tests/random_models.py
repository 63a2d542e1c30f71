"""Tiny random models with what they need: dictionaries, a task, batches, tables of candidates. For tests and counts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
from fairseq.data import Dictionary, data_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_aggdec
from fairseq_aggdec.lattice.alignment.corpus import Sentences
from fairseq_aggdec.lattice.candidates import CandidateModel, Special, Weights
from fairseq_aggdec.lattice.counting import AlignedPairs, Counter
from fairseq_aggdec.lattice.length import LengthModel
from fairseq_aggdec.methods.options.reading import joined
from fairseq_aggdec.methods.options.settings import VARIANT_FIELDS
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecConfig, TranslationAggdecTask

fairseq_aggdec.register()

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


PRICED = ("beam", "iad", "gad", "blockwise")  # methods that read --call-price


def make_dictionary(words: Sequence[str] | None = None) -> Dictionary:
    dictionary = Dictionary()
    for word in words or [f"w{i}" for i in range(WORDS)]:
        dictionary.add_symbol(word)
    return dictionary


def make_task(
    decoding: str = "stock",
    source: Dictionary | None = None,
    target: Dictionary | None = None,
    **options: Any,
) -> TranslationAggdecTask:
    config = TranslationAggdecConfig(data="", source_lang="src", target_lang="tgt")
    config.decoding = decoding
    if decoding in PRICED:
        config.call_price = "usual"  # no clock has a say in what tests count
    said = "draft_tokens" in options or options.get("draft_tree")
    if decoding in ("gad", "blockwise") and not said:
        config.draft_tokens = "all"  # to draft in every iteration, whatever pays
    keys = {name: options.pop(name) for name in VARIANT_FIELDS if name in options}
    if keys:
        options["variant"] = joined({name.replace("_", "-"): one for name, one in keys.items()})
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
    stir(model, seed)
    return model.eval()


def stir(model: torch.nn.Module, seed: int) -> None:
    """Gives a fresh model, which repeats one token, weights that make its outputs vary and end."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_tokens" in name:
                parameter.normal_(0, 0.4, generator=generator)
            elif parameter.dim() > 1 and "embed_positions" not in name:
                parameter.normal_(0, 1.5 / parameter.size(-1) ** 0.5, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.05, generator=generator)


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


def random_tables() -> CandidateModel:
    """Counts of pairs that copy, with a second translation now and then."""
    types = 4 + WORDS
    generator = torch.Generator().manual_seed(5)
    counter = Counter(types, None)
    for _ in range(40):
        source = torch.randint(4, types, (3, 7), generator=generator)
        noise = torch.randint(4, types, source.shape, generator=generator)
        target = torch.where(torch.rand(source.shape, generator=generator) < 0.6, source, noise)
        flat = [side.flatten().int().numpy() for side in (source, target)]
        sevens = torch.full((3,), 7).numpy()
        links = torch.arange(7, dtype=torch.int32).repeat(3).unsqueeze(1).expand(-1, 2).numpy()
        counter.add(AlignedPairs(*(Sentences(side, sevens) for side in flat), links, sevens))
    return CandidateModel(
        **counter.tables(40),
        max_offset=counter.reach,
        length=LengthModel(1.0, 0.0),
        weights=Weights(0.4, 0.6),
        special=Special.of(make_dictionary()),
    )
