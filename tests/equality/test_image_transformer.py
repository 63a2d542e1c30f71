"""The band of the image Transformer's decoder: what a position sees, incremental against full, ours against stock."""

from __future__ import annotations

import math
from argparse import Namespace
from itertools import pairwise
from typing import Any

import pytest
import torch
from aggdec_images.data import ImageFormat
from aggdec_images.super_resolution import SuperResolutionConfig, SuperResolutionTask
from aggdec_images.transformer import ImageTransformerDecoder, image_places
from fairseq.models import ARCH_CONFIG_REGISTRY
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_aggdec.engine.plain.support import decoder_gap
from tests.support import (
    assert_same,
    generate,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)

SPANS = [1, 2, 5, 40]
LENGTH = 14
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


def make_image_model(span: int, seed: int = 1, **options: Any) -> Any:
    model = make_model(make_task(), seed, "image_transformer", attention_span=span, **options)
    assert isinstance(model.decoder, ImageTransformerDecoder)
    assert decoder_gap(model.decoder) is None
    return model


def random_prefixes(rows: int, seed: int = 5) -> Tensor:
    """(B, T) decoder input that begins with ``</s>``."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, 40, (rows, LENGTH), generator=generator)
    tokens[:, 0] = 2
    return tokens


def encode(model: Any, rows: int = 3) -> Any:
    net_input = make_batch(random_sources(3, rows))["net_input"]
    return model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("span", [1, 3])
def test_a_position_sees_its_band_and_nothing_else(span: int, layers: int) -> None:
    model = make_image_model(span, decoder_layers=layers)
    encoder_out, tokens = encode(model), random_prefixes(3)
    with torch.inference_mode():
        logits = model.decoder(tokens, encoder_out=encoder_out)[0]
        for changed in range(LENGTH):
            other = tokens.clone()
            other[:, changed] = (other[:, changed] + 1) % 30 + 4
            moved = (model.decoder(other, encoder_out=encoder_out)[0] - logits).abs().amax((0, 2))
            # Every layer lets a position see ``span`` further back.
            reached = torch.zeros(LENGTH, dtype=torch.bool)
            reached[changed : changed + layers * span + 1] = True
            assert (moved[reached] > 1e-3).all(), f"position {changed} is not seen"
            assert (moved[~reached] == 0).all(), f"position {changed} is seen from outside its band"


def test_a_band_as_long_as_the_sequence_is_the_stock_transformer() -> None:
    model = make_image_model(LENGTH - 1)
    options = {"encoder_learned_pos": True, "decoder_learned_pos": True}
    plain = make_model(
        make_task(),
        9,
        encoder_normalize_before=True,
        decoder_normalize_before=True,
        share_all_embeddings=True,
        **options,
    )
    plain.load_state_dict(model.state_dict())
    tokens = random_prefixes(3)
    with torch.inference_mode():
        expected = plain.decoder(tokens, encoder_out=encode(plain))[0]
        torch.testing.assert_close(
            model.decoder(tokens, encoder_out=encode(model))[0], expected, **TOLERANCE
        )


@pytest.mark.parametrize("span", SPANS)
def test_incremental_equals_full(span: int) -> None:
    model = make_image_model(span)
    encoder_out, tokens = encode(model), random_prefixes(3)
    state: dict[str, dict[str, Tensor | None]] = {}
    with torch.inference_mode():
        expected = model.decoder(tokens, encoder_out=encoder_out)[0]
        for end in range(1, LENGTH + 1):
            found = model.decoder(
                tokens[:, :end], encoder_out=encoder_out, incremental_state=state
            )[0]
            torch.testing.assert_close(found[:, 0], expected[:, end - 1], **TOLERANCE)
    for layer in model.decoder.layers:
        cached = layer.self_attn._get_input_buffer(state)["prev_key"]
        assert cached.size(2) == min(span, LENGTH)


@pytest.mark.parametrize("span", SPANS)
def test_incremental_rows_can_be_reordered(span: int) -> None:
    model = make_image_model(span)
    # Rows of a beam: one source, which stock does not reorder.
    net_input = make_batch([[5, 9, 7]] * 3)["net_input"]
    encoder_out = model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])
    tokens = random_prefixes(3)
    state: dict[str, dict[str, Tensor | None]] = {}
    with torch.inference_mode():
        for end in range(1, 8):
            model.decoder(tokens[:, :end], encoder_out=encoder_out, incremental_state=state)
        order = torch.tensor([2, 0, 0])
        model.decoder.reorder_incremental_state_scripting(state, order)
        tokens = tokens[order]
        expected = model.decoder(tokens, encoder_out=encoder_out)[0]
        for end in range(8, LENGTH + 1):
            found = model.decoder(
                tokens[:, :end], encoder_out=encoder_out, incremental_state=state
            )[0]
            torch.testing.assert_close(found[:, 0], expected[:, end - 1], **TOLERANCE)


def test_padded_rows_equal_the_row_alone() -> None:
    model = make_image_model(3)
    tokens = random_prefixes(2)
    tokens[1, 9:] = 1
    batch = make_batch([[5, 6, 7]] * 2)["net_input"]
    one = {name: value[1:] for name, value in batch.items()}
    with torch.inference_mode():
        together = model(**batch, prev_output_tokens=tokens)[0][1, :9]
        alone = model(**one, prev_output_tokens=tokens[1:, :9])[0][0]
    torch.testing.assert_close(together, alone, **TOLERANCE)


@pytest.mark.parametrize("decoding", ["greedy", "iad"])
@pytest.mark.parametrize("span", SPANS)
def test_our_decoders_equal_stock(span: int, decoding: str) -> None:
    model = make_image_model(span, seed=2)
    sample = make_batch(random_sources(13, 5))
    for options in ({}, {"max_len_b": 20, "min_len": 20}):
        found = generate(make_task(decoding), [model], sample, **options)
        assert_same(found, stock([model], sample, **options))


def test_options_that_local_attention_cannot_honour_are_refused() -> None:
    with pytest.raises(ValueError, match="--attention-span 0"):
        make_image_model(0)
    with pytest.raises(ValueError, match="--cross-self-attention does not go with"):
        make_image_model(3, cross_self_attention=True)


@pytest.mark.parametrize(
    ("arch", "span", "width", "layers", "pre_norm"),
    [
        ("image_transformer", 64, 128, (2, 4), True),
        ("image_transformer_b3", 255, 512, (4, 8), False),
    ],
)
def test_architectures(
    arch: str, span: int, width: int, layers: tuple[int, int], pre_norm: bool
) -> None:
    args = Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    again = Namespace(**vars(args))
    ARCH_CONFIG_REGISTRY["image_transformer"](again)  # as build_model does
    assert again == args
    assert (args.attention_span, args.decoder_embed_dim) == (span, width)
    assert (args.encoder_layers, args.decoder_layers) == layers
    assert args.decoder_normalize_before is pre_norm
    given = Namespace(attention_span=7, decoder_layers=1)
    ARCH_CONFIG_REGISTRY[arch](given)
    assert (given.attention_span, given.decoder_layers) == (7, 1)


@given(st.integers(1, 4), st.sampled_from([1, 3]), st.integers(8, 20))
@settings(max_examples=15)
def test_places_are_waves_along_rows_and_columns(side: int, channels: int, dim: int) -> None:
    finest = 2 * side * channels
    places = image_places(side, channels, finest, dim)
    assert places.shape == (side * side * channels, dim)
    quarter = dim // 4
    index = 0
    for row in range(side):
        for column in range(side * channels):
            y, x = (row + 0.5) / side, (column + 0.5) / (side * channels)
            for wave in range(quarter):
                angle = math.pi * finest ** (wave / (quarter - 1))
                expected = [f(angle * place) for place in (y, x) for f in (math.sin, math.cos)]
                found = places[index, wave : 4 * quarter : quarter]
                torch.testing.assert_close(found, torch.tensor(expected), atol=1e-3, rtol=0)
            index += 1
    assert (places[:, 4 * quarter :] == 0).all()


def test_positions_of_both_images_begin_as_places() -> None:
    form = ImageFormat(2, 4, 3)
    task = SuperResolutionTask(SuperResolutionConfig(), form)
    args = Namespace(arch="image_transformer", encoder_embed_dim=16, decoder_embed_dim=16)
    model = task.build_model(args)
    for part, side in ((model.encoder, 2), (model.decoder, 4)):
        length = side * side * 3
        tokens = torch.full((1, length + 1), 7)
        found = part.embed_positions(tokens)[0]
        torch.testing.assert_close(found[:length], image_places(side, 3, 12, 16))
        assert (found[length] == 0).all()
        assert part.max_positions() == length + 1


def test_embeddings_of_intensities_begin_in_order() -> None:
    task = SuperResolutionTask(SuperResolutionConfig(), ImageFormat(2, 4, 1))
    model = task.build_model(Namespace(arch="image_transformer"))
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    table = model.decoder.embed_tokens.weight[task.offset :].detach()
    alike = table @ table.T
    torch.testing.assert_close(alike.diagonal(), torch.ones(256))
    by_distance = [alike.diagonal(distance).mean() for distance in (0, 1, 2, 4, 8, 16, 32)]
    assert all(near > far + 0.02 for near, far in pairwise(by_distance))
    assert alike.fill_diagonal_(0).max() < 0.9


@pytest.mark.parametrize("options", [{}, {"acceptance": "distance:3"}], ids=str)
def test_block_heads_on_images(options: dict[str, Any]) -> None:
    form = ImageFormat(low=2, high=3, channels=1)
    task = SuperResolutionTask(SuperResolutionConfig(decoding="blockwise", **options), form)
    sizes = {"block_size": 3, "head_hidden_dim": 8, "attention_span": 4}
    model = make_model(task, 3, "blockwise_image_transformer", **sizes)
    assert decoder_gap(model.decoder) is None
    low = [[4, 90, 140, 255], [250, 7, 8, 9]]
    sample = make_batch(low)
    found = generate(task, [model], sample, max_len_b=200)
    expected = stock([model], sample, max_len_a=0, max_len_b=9, min_len=9)
    if options:
        assert [len(hypothesis["tokens"]) for hypothesis in found] == [10, 10]
        assert sum(h["steps"] for h in found) < sum(len(h["tokens"]) for h in expected)
    else:
        assert_same(found, expected)
