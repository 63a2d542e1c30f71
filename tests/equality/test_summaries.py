"""Summarization settings: long sources of which pieces are copied, repeated n-grams blocked, a minimum length."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_aggdec.search.guards import block_repeats
from tests.support import generation_options, make_batch, make_dictionary, make_task

WORDS, SIZE = 300, 64
PIECES = ((0, 15), (90, 20), (40, 18), (150, 30))  # first token in the source, tokens
SETTINGS: dict[str, Any] = {
    "max_len_b": 70,
    "min_len": 27,
    "no_repeat_ngram_size": 3,
    "lenpen": 2.0,
    "temperature": 3.0,
}


@pytest.fixture(scope="module")
def copier() -> Any:
    """Copies the pieces in their order: each position of the output looks at one of the source.

    The first half of a vector is a token, the second a position. The last layer takes away the token that was read
    and adds the one that is looked at; all other weights are small and random.
    """
    task = make_task("stock", make_dictionary([f"w{i}" for i in range(WORDS)]))
    task.tgt_dict = task.src_dict
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "layers": 1,
            "embed_dim": SIZE,
            "ffn_embed_dim": SIZE,
            "attention_heads": 2,
            "normalize_before": True,
            "learned_pos": True,
        }.items()
    }
    args = Namespace(
        **sizes,
        dropout=0.0,
        max_source_positions=256,
        max_target_positions=256,
        share_all_embeddings=True,
        no_scale_embedding=True,
    )
    ARCH_CONFIG_REGISTRY["transformer"](args)
    torch.manual_seed(1)
    model: Any = ARCH_MODEL_REGISTRY["transformer"].build_model(args, task).eval()
    half = SIZE // 2
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1 / parameter.size(-1) ** 0.5)
        model.encoder.embed_tokens.weight.zero_()[:, :half] = torch.randn(WORDS + 4, half)
        source = model.encoder.embed_positions.weight.zero_()
        source[:, half:] = torch.randn(len(source), half)
        read = model.decoder.embed_positions.weight.zero_()
        places = [first + index for first, count in PIECES for index in range(count)]
        read[2 : 2 + len(places), half:] = source[[place + 2 for place in places], half:]
        look = torch.randn(SIZE, half) / half**0.5 * 3
        layer = model.decoder.layers[-1]
        for attention, share in ((layer.self_attn, -0.9), (layer.encoder_attn, 1.2)):
            for projection in (attention.q_proj, attention.k_proj):
                projection.weight.zero_()[:, half:] = look
            attention.v_proj.weight.zero_()[:half, :half] = torch.eye(half) * share
            attention.out_proj.weight.copy_(torch.eye(SIZE))
    return model


def nbest(
    generator: Any, task: Any, model: Any, sample: Any
) -> list[list[tuple[list[int], float]]]:
    found = task.inference_step(generator, [model], sample)
    return [[(one["tokens"].tolist(), float(one["score"])) for one in ranked] for ranked in found]


@pytest.mark.parametrize("types", [WORDS, 12])
@pytest.mark.parametrize(("decoding", "beam", "gain"), [("beam", 4, 2.0), ("iad", 1, 2.0)])
def test_pieces_are_copied_faster(
    copier: Any, decoding: str, beam: int, gain: float, types: int
) -> None:
    """The n-best list of stock, which blocks repeated n-grams too, in few calls; also of a text of few words."""
    chance = torch.Generator().manual_seed(5)
    rows = [torch.randint(4, 4 + types, (200,), generator=chance).tolist() for _ in range(2)]
    dictionary = copier.decoder.dictionary
    options = generation_options(beam=beam, **SETTINGS)
    stock = make_task("stock", dictionary, dictionary)
    theirs = stock.build_generator([copier], options)
    block_repeats(theirs, SETTINGS["no_repeat_ngram_size"])
    task = make_task(decoding, dictionary, dictionary)
    ours = task.build_generator([copier], options)
    for row in rows:
        sample = make_batch([row])
        found = nbest(ours, task, copier, sample)
        expected = nbest(theirs, stock, copier, sample)
        assert [[words for words, _ in ranked] for ranked in found] == [
            [words for words, _ in ranked] for ranked in expected
        ]
        scores = [[score for _, score in ranked] for ranked in (*found, *expected)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)
        assert len(expected[0][0][0]) > SETTINGS["min_len"]
    assert ours.counters.mean_accepted_tokens > (gain if types == WORDS else 1.2)
