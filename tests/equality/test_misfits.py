"""Models whose parts do not fit together: they fail with a message, as stock does; none is read as if it fitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import nn

from tests.alterations import lively
from tests.equality.test_altered_models import (
    METHODS,
    assert_equal,
    by_stock,
    generator_of,
    nbest,
)
from tests.support import make_model, make_task

WIDTH, HIDDEN, TYPES = 16, 32, 40
Make = Callable[[], nn.Module]


def linear(inputs: int, outputs: int) -> Make:
    return lambda: nn.Linear(inputs, outputs)


# Of a layer: where -> what does not fit there.
OF_LAYERS: dict[str, Make] = {
    "fc1": linear(8, HIDDEN),
    "fc2": linear(HIDDEN, 8),
    "final_layer_norm": lambda: nn.LayerNorm(8),
    "self_attn.q_proj": linear(8, WIDTH),
    "self_attn.k_proj": linear(WIDTH, 8),
    "self_attn.v_proj": linear(8, WIDTH),
    "self_attn.out_proj": linear(WIDTH, 8),
}
OF_PARTS: dict[str, Make] = {
    "embed_tokens": lambda: nn.Embedding(TYPES, 8, 1),
    "embed_positions": lambda: SinusoidalPositionalEmbedding(8, 1, 50),
    "layer_norm": lambda: nn.LayerNorm(8),
}
MISFITS = {
    **{
        f"{part}.{name}": make for part in ("encoder", "decoder") for name, make in OF_PARTS.items()
    },
    **{
        f"{part}.layers.1.{name}": make
        for part in ("encoder", "decoder")
        for name, make in OF_LAYERS.items()
    },
    "decoder.layers.1.encoder_attn.k_proj": linear(8, WIDTH),
    "decoder.layers.1.encoder_attn.v_proj": linear(WIDTH, 8),
    "decoder.output_projection": linear(8, TYPES),
    "encoder": lambda: made(encoder_embed_dim=2 * WIDTH).encoder,
}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}


def made(**options: Any) -> Any:
    return make_model(make_task(), 1, **options)


@pytest.mark.parametrize("where", MISFITS)
@pytest.mark.filterwarnings("ignore")
def test_what_does_not_fit_is_refused_as_by_stock(where: str) -> None:
    models = [lively()]
    older = {method: generator_of(method, models, beam) for method, beam in METHODS.items()}
    models[0].set_submodule(where, MISFITS[where]())
    models[0].eval()
    with pytest.raises((RuntimeError, AssertionError)):
        by_stock(models, 1)
    for method, beam in METHODS.items():
        with pytest.raises((RuntimeError, AssertionError, ValueError)):
            nbest(older[method], models)
        with pytest.raises((RuntimeError, AssertionError, ValueError)):
            nbest(generator_of(method, models, beam), models)


def test_an_encoder_of_another_model() -> None:
    models = [lively()]
    models[0].encoder = made(encoder_embed_dim=2 * WIDTH).encoder
    with pytest.raises(ValueError, match="gives 32 numbers for a token and the decoder reads 16"):
        nbest(generator_of("greedy", models, 1), models)


def test_an_encoder_of_another_width_that_fits() -> None:
    models = [made(encoder_embed_dim=2 * WIDTH)]
    for method, beam in METHODS.items():
        assert_equal(nbest(generator_of(method, models, beam), models), by_stock(models, beam))


@pytest.mark.parametrize("part", ["encoder", "decoder"])
@pytest.mark.filterwarnings("ignore")
def test_positions_of_fewer_numbers(part: str) -> None:
    """Whatever the module says of itself. One number stands for all, as in stock."""
    for width in (8, 1):
        models = [made(**LEARNED)]
        older = {method: generator_of(method, models, beam) for method, beam in METHODS.items()}
        positions = getattr(models[0], part).embed_positions
        positions.weight = nn.Parameter(torch.randn(len(positions.weight), width))
        for method, beam in METHODS.items():
            if width == 1:
                assert_equal(nbest(older[method], models), by_stock(models, beam))
                continue
            with pytest.raises(RuntimeError, match="size of"):
                by_stock(models, beam)
            with pytest.raises(RuntimeError, match="size of"):
                nbest(older[method], models)


@pytest.mark.filterwarnings("ignore")
def test_tokens_without_an_embedding() -> None:
    """They can be chosen, and cannot be read."""
    models = [made(share_decoder_input_output_embed=False)]
    older = {method: generator_of(method, models, beam) for method, beam in METHODS.items()}
    models[0].decoder.embed_tokens = nn.Embedding(8, WIDTH, 1)
    with pytest.raises(IndexError):
        by_stock(models, 1)
    for method in METHODS:
        with pytest.raises(IndexError):
            nbest(older[method], models)


def cut(model: Any) -> None:
    model.decoder.output_projection = nn.Linear(WIDTH, 3, bias=False)


def grown(model: Any) -> None:
    model.decoder.output_projection = nn.Linear(WIDTH, TYPES + 8, bias=False)
    model.decoder.embed_tokens = nn.Embedding(TYPES + 8, WIDTH, 1)


@pytest.mark.parametrize("resize", [cut, grown])
def test_outputs_resized_after_a_generator_was_built(resize: Callable[[Any], None]) -> None:
    """The searches make room for the types of the dictionary: more or fewer are stock's affair, which fails."""
    models = [lively()]
    older = {method: generator_of(method, models, beam) for method, beam in METHODS.items()}
    for method in METHODS:
        nbest(older[method], models)
    resize(models[0])
    for method, beam in METHODS.items():
        with pytest.raises((RuntimeError, IndexError)) as by_stocks_search:
            by_stock(models, beam)
        with pytest.raises(by_stocks_search.type):
            nbest(older[method], models)


PRECISE = ("encoder.embed_tokens", "encoder.layers.1.fc1", "encoder.layers.0.final_layer_norm")
PRECISE += ("decoder.embed_tokens", "decoder.layers.1.fc1", "decoder.layers.0.encoder_attn.k_proj")
PRECISE += ("decoder.layers.0.final_layer_norm", "decoder.output_projection")


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("where", PRECISE)
@pytest.mark.filterwarnings("ignore")
def test_one_weight_of_another_precision(where: str, kind: torch.dtype) -> None:
    """Stock's numbers, or its error: the compiled library read such weights as if they were in fp32."""
    models = [made(share_decoder_input_output_embed=False)]
    older = {method: generator_of(method, models, beam) for method, beam in METHODS.items()}
    models[0].get_submodule(where).to(kind)
    for method, beam in METHODS.items():
        try:
            expected = by_stock(models, beam)
        except (RuntimeError, ValueError):
            with pytest.raises((RuntimeError, ValueError)):
                nbest(older[method], models)
            with pytest.raises((RuntimeError, ValueError)):
                nbest(generator_of(method, models, beam), models)
            continue
        for generator in (older[method], generator_of(method, models, beam)):
            assert_equal(nbest(generator, models), expected)
