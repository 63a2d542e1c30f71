"""Random cases: a number -> models of some shape, sentences, options together, and the methods that decode them.

A case is a function of its number alone, so a run can be split, resumed, and one case repeated.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support import ACTIVATIONS

# Sentences of a large case by its batch size, so that none takes much longer than others; the last batch is not full.
SENTENCES = {1: 25, 8: 150, 32: 400, 120: 700, 256: 1000}
# Of a large case, methods that take several times as long decode one sentence of so many.
PART = 3
# How often a method decodes a small case. Each case then takes about a quarter of a second.
SHARE = 0.12
# Values of each option of generation, the default first.
VALUES: dict[str, tuple[Any, ...]] = {
    "min_len": (1, 3, 0, 12),
    "max_len_a": (0.0, 0.5, 1.2),
    "max_len_b": (12, 30, 6, 1),
    "unkpen": (0.0, 1.0, -0.5, -3.0),
    "temperature": (1.0, 0.7, 1.5, 3.0),
    "prefix_size": (0, 1, 2, 5),
    "lenpen": (1.0, 0.6, 1.4, 0.0, -1.0),
    "no_repeat_ngram_size": (0, 2, 3),  # of 1 stock blocks nothing
    "unnormalized": (False, True),
    "match_source_len": (False, True),
}
# Each option has another value than its default in so many cases.
CHANGED = 0.25
# Of cases without heads so many have a trained model.
COPIERS = 0.2
# Architectures whose decoder runs by recomputing the prefix, or that is left to stock.
UNUSUAL: tuple[dict[str, Any], ...] = (
    {"scale_heads": True, "scale_fc": True},
    {"scale_attn": True},
    {"adaptive_softmax_cutoff": "5,8", "adaptive_softmax_dropout": 0.0},
    {"no_cross_attention": True},
    {
        "arch": "lstm",
        "encoder_hidden_size": 16,
        "decoder_hidden_size": 16,
        "decoder_out_embed_dim": 16,
        "criterion": "",
    },
)


@dataclass(frozen=True)
class Case:
    """What is decoded, and how.

    Attributes:
        seed: the number that everything comes from.
        large: many sentences, decoded by every method; else a few sentences and some of the methods.
        words: types of source and target besides fairseq's four symbols.
        arch, shape: of the models, as fairseq names them.
        unusual: the decoder is no plain Transformer decoder.
        copier: the model has learned to copy with edits, so that drafts from the source stand.
        output_bias: the projection to the vocabulary has a bias.
        models: in the ensemble.
        heads: options of block heads; empty where the model has none.
        drafter: options of a non-autoregressive drafter.
        options: of generation, every one of :data:`VALUES`.
        copying: options of the task that say how iad copies.
        left_pad: of the sources.
        longest: source, in words.
        sentences, batch_size, draft_length, beam: of this case's decodings.
        nodes: of the trees that heads and drafter grow.
        draft_int8: these draft in 8 bits.
        strict, dtype: width of windows and precision under ``--strict``.
        real: a folder of binary data and a checkpoint, in place of random models and sentences.
    """

    seed: int
    large: bool = False
    words: tuple[int, int] = (36, 36)
    arch: str = "transformer"
    shape: dict[str, Any] = field(default_factory=dict)
    unusual: bool = False
    copier: bool = False
    output_bias: bool = False
    models: int = 1
    heads: dict[str, Any] = field(default_factory=dict)
    drafter: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    copying: dict[str, str] = field(default_factory=dict)
    left_pad: bool = True
    longest: int = 12
    sentences: int = 8
    batch_size: int = 8
    draft_length: int = 5
    beam: int = 4
    nodes: int = 9
    draft_int8: bool = False
    strict: int = 4
    dtype: str = "float32"
    real: tuple[str, str] | None = None

    @property
    def part(self) -> int:
        """Sentences for the slow methods."""
        return -(-self.sentences // PART) if self.large else self.sentences

    def wants(self, method: str, share: float = SHARE) -> bool:
        """Whether this case is decoded by ``method``."""
        return self.large or random.Random(f"{self.seed} {method}").random() < share

    @property
    def command_line(self) -> list[str]:
        """The options as a user writes them."""
        given = []
        for name, value in self.options.items():
            option = f"--{name.replace('_', '-')}"
            given += [option] * value if type(value) is bool else [f"{option}={value}"]
        return given

    @classmethod
    def of(cls, seed: int, large: bool = False) -> Case:
        chosen = random.Random(seed)
        unusual = chosen.random() < 0.08
        models = chosen.choice((1, 1, 1, 2, 3))
        headed = models == 1 and not unusual and chosen.random() < 0.6
        case = cls(
            seed,
            large,
            words=_words(chosen),
            unusual=unusual,
            output_bias=chosen.random() < 0.1 and not unusual,
            models=models,
            heads=_heads(chosen) if headed else {},
            drafter=_drafter(chosen),
            options=_options(chosen, large),
            copying=_copying(chosen),
            left_pad=chosen.random() < 0.5,
            longest=chosen.choice((12, 12, 25, 1)),
            draft_length=chosen.choice((1, 2, 5, 10, 25)),
            beam=chosen.randint(2, 10),
            nodes=chosen.choice((1, 4, 9, 25)),
            draft_int8=chosen.random() < 0.3,
            strict=chosen.choice((2, 3, 5, 16)),
            dtype=chosen.choice(("float32", "float16", "bfloat16")),
        )
        case = replace(case, **_sizes(chosen, large))
        shape = dict(chosen.choice(UNUSUAL)) if unusual else transformer_shape(chosen, case.words)
        if chosen.random() < COPIERS and not (headed or unusual):
            return replace(case, copier=True, models=1, words=(36, 36), output_bias=False)
        if headed:  # with layers of their own they take the decoder's width
            if case.heads["head_layers"]:
                shape.pop("decoder_output_dim", None)
                shape.pop("decoder_input_dim", None)
            return replace(case, arch="blockwise_transformer", shape=shape)
        return replace(case, arch=shape.pop("arch", "transformer"), shape=shape)


def _sizes(chosen: random.Random, large: bool) -> dict[str, int]:
    if large:
        size = chosen.choice((1, 8, 32, 32, 120, 120, 120, 256, 256, 256))
        return {"batch_size": size, "sentences": SENTENCES[size]}
    size = chosen.choice((1, 1, 2, 3, 5, 8, 12))
    return {"batch_size": size, "sentences": size + chosen.randint(0, 2)}


def _words(chosen: random.Random) -> tuple[int, int]:
    source = chosen.choice((36, 36, 36, 7, 120))
    return source, chosen.choice((source, source, 36, 9, 70))


def transformer_shape(chosen: random.Random, words: tuple[int, int]) -> dict[str, Any]:
    """Options of a plain Transformer; heads of an odd size, layers that differ and none at all."""
    heads = chosen.choice((1, 2, 4))
    width = heads * chosen.choice((4, 8, 6))
    shape: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        shape |= {
            f"{side}_layers": chosen.choice((0, 1, 1, 2, 2, 3)),
            f"{side}_embed_dim": width,
            f"{side}_ffn_embed_dim": chosen.choice((8, 16, 32, 37)),
            f"{side}_attention_heads": heads,
            f"{side}_normalize_before": chosen.random() < 0.5,
            f"{side}_learned_pos": chosen.random() < 0.3,
        }
    shape["activation_fn"] = chosen.choice(ACTIVATIONS)
    shape["layernorm_embedding"] = chosen.random() < 0.3
    shape["no_scale_embedding"] = chosen.random() < 0.3
    shape["no_token_positional_embeddings"] = chosen.random() < 0.15
    shape["no_decoder_final_norm"] = chosen.random() < 0.2
    shape["share_decoder_input_output_embed"] = chosen.random() < 0.5
    if words[0] == words[1] and chosen.random() < 0.3:
        return shape | {"share_all_embeddings": True}
    if chosen.random() < 0.3:  # the decoder's own width
        shape["decoder_embed_dim"] = heads * chosen.choice((4, 6, 12))
    if chosen.random() < 0.15:
        sizes = {"decoder_input_dim": chosen.choice((8, 20)), "decoder_output_dim": 12}
        shape |= sizes | {"share_decoder_input_output_embed": False}
    return shape


def _options(chosen: random.Random, large: bool) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, values in VALUES.items():
        changed = chosen.random() < CHANGED
        given[name] = chosen.choice(values[1:]) if changed else values[0]
    if given["match_source_len"]:  # stock fails where a prefix is longer than the source
        given |= {"prefix_size": 0, "min_len": min(given["min_len"], 1)}
        given["unkpen"] = max(given["unkpen"], 0.0)  # refused, and left to stock
    if large:  # limits by the longest source of a batch differ between batches of several sizes
        given["max_len_a"] = 0.0
    # Above the limit it is refused by the methods of the loop, and an error of stock.
    return given | {"min_len": min(given["min_len"], given["max_len_b"])}


def _heads(chosen: random.Random) -> dict[str, Any]:
    return {
        "block_size": chosen.choice((2, 4, 6)),
        "head_layout": chosen.choice(("dense", "per-head")),
        "head_hidden_dim": chosen.choice((4, 8)),
        "identity_first_head": chosen.random() < 0.5,
        "slot_chain": chosen.random() < 0.3,
        "head_layers": chosen.choice((0, 1, 2)),
    }


def _drafter(chosen: random.Random) -> dict[str, Any]:
    return {
        "block_size": chosen.choice((2, 5, 9)),
        "encoder_layers": 1,
        "decoder_layers": chosen.randint(1, 2),
        "encoder_embed_dim": 8,
        "decoder_embed_dim": 8,
        "prefix_attention": chosen.choice(("bidirectional", "causal")),
        "slot_predicts": chosen.choice(("itself", "next")),
        "slot_chain": chosen.random() < 0.3,
        "src_embedding_copy": chosen.random() < 0.3,
        "decoder_learned_pos": chosen.random() < 0.3,
    }


def _copying(chosen: random.Random) -> dict[str, str]:
    return {
        "variant": "iad-match=" + chosen.choice(("aligned", "unique", "longest", "recent")),
        "draft_tokens": chosen.choice(("auto", "all", "1", "4")),
    }
