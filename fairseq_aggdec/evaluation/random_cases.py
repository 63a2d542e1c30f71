"""Cases for an audit without end: a number -> models of some shape, sentences, options together.

A case is a function of its number alone, so that a run can be split, go on, and repeat one case.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

# Sentences of a case by its batch size, so that none takes much longer than others; the last batch is not full.
SENTENCES = {1: 25, 8: 150, 32: 400, 120: 700, 256: 1000}
# Methods that take several times as long decode one of so many.
PART = 3
# Of each option its values, the first the usual one. A flag is True or False.
VALUES: dict[str, tuple[Any, ...]] = {
    "--min-len": (1, 3),
    "--max-len-b": (12, 30, 6),
    "--unkpen": (0, 1, -0.5),
    "--temperature": (1, 0.7, 1.5),
    "--prefix-size": (0, 1, 2),
    "--lenpen": (1, 0.6, 1.4),
    "--unnormalized": (False, True),
}


@dataclass(frozen=True)
class Case:
    """What is decoded, and how.

    Attributes:
        seed: the number that all comes from.
        shape: of the models, as fairseq names it. models: in the ensemble.
        heads: of the model, where it has any. drafter: options of a non-autoregressive one.
        options: of the command line. left_pad: of the sources. longest: source, in words.
        batch_size, draft_length, beam: of this case's decodings.
        nodes: of the trees that heads and drafter grow. types, draft_int8: how these draft.
        real: a folder of binary data and a checkpoint, in place of random models and sentences.
    """

    seed: int
    shape: dict[str, Any] = field(default_factory=dict)
    models: int = 1
    heads: dict[str, Any] = field(default_factory=dict)
    drafter: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    left_pad: bool = True
    longest: int = 12
    batch_size: int = 8
    draft_length: int = 5
    beam: int = 4
    nodes: int = 9
    types: int = 0
    draft_int8: bool = False
    real: tuple[str, str] | None = None

    @property
    def sentences(self) -> int:
        return SENTENCES[self.batch_size]

    @property
    def part(self) -> int:
        return -(-self.sentences // PART)

    @classmethod
    def of(cls, seed: int) -> Case:
        chosen = random.Random(seed)
        shape, given = _shape(chosen), _options(chosen)
        models = chosen.choice((1, 1, 2))
        case = cls(
            seed,
            shape,
            models=models,
            heads=_heads(chosen) if models == 1 and chosen.random() < 0.6 else {},
            drafter=_drafter(chosen),
            options=given,
            left_pad=chosen.random() < 0.5,
            longest=chosen.choice((12, 12, 25)),
            batch_size=chosen.choice((1, 8, 32, 32, 120, 120, 120, 256, 256, 256)),
            draft_length=chosen.choice((1, 2, 5, 10, 25)),
            beam=chosen.randint(2, 6),
            nodes=chosen.choice((1, 4, 9, 25)),
            types=chosen.choice((0, 0, 9)),
            draft_int8=chosen.random() < 0.3,
        )
        # Drawn last: cases of older records stay what they were but for these.
        layers = {"head_layers": chosen.choice((0, 1, 2))} if case.heads else {}
        return replace(case, heads=case.heads | layers)


def _shape(chosen: random.Random) -> dict[str, Any]:
    heads = chosen.choice((1, 2, 4))
    width = heads * chosen.choice((4, 8))
    shape: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        shape |= {
            f"{side}_layers": chosen.randint(1, 3),
            f"{side}_embed_dim": width,
            f"{side}_ffn_embed_dim": chosen.choice((8, 16, 32)),
            f"{side}_attention_heads": heads,
            f"{side}_normalize_before": chosen.random() < 0.5,
            f"{side}_learned_pos": chosen.random() < 0.3,
        }
    shape["activation_fn"] = chosen.choice(("relu", "gelu"))
    shape["share_decoder_input_output_embed"] = chosen.random() < 0.5
    shape["layernorm_embedding"] = chosen.random() < 0.3
    shape["no_scale_embedding"] = chosen.random() < 0.3
    if chosen.random() < 0.3:  # the decoder's own width
        shape["decoder_embed_dim"] = heads * chosen.choice((4, 6, 12))
    return shape


def _options(chosen: random.Random) -> tuple[str, ...]:
    given: list[str] = []
    for option, values in VALUES.items():
        value = chosen.choice(values) if chosen.random() < 0.5 else values[0]
        if value is True:
            given.append(option)
        elif value is not False:
            given.append(f"{option}={value}")
    return tuple(given)


def _heads(chosen: random.Random) -> dict[str, Any]:
    return {
        "block_size": chosen.choice((2, 4, 6)),
        "head_layout": chosen.choice(("dense", "per-head")),
        "head_hidden_dim": chosen.choice((4, 8)),
        "identity_first_head": chosen.random() < 0.5,
        "slot_chain": chosen.random() < 0.3,
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
