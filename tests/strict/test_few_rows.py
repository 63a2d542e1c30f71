"""Decoder layers over few rows in the fused products of a GPU, and by PyTorch's operators."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import FastEncoder
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.kernels.gpu import products
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.windows.grid import GridWindow
from tests.random_models import make_batch, make_model, make_task

PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
ROWS, WIDTH, KEYS = 3, 4, 64
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.15}


def features(
    dtype: torch.dtype, gpu: torch.device, options: dict[str, Any], **precision: Any
) -> tuple[Tensor, int]:
    """Of two windows of three rows, and how many products were fused."""
    model = make_model(make_task(), 0, **options).to(gpu, dtype)
    encoder = FastEncoder(model.encoder, Precision(pack=False))
    decoder = CachedDecoder(model.decoder, Precision(pack=False, **precision))
    tokens = make_batch([[5, 6, 7, 8], [9, 10], [11, 12, 13]])["net_input"]["src_tokens"].to(gpu)
    chance, found = torch.Generator().manual_seed(0), []
    with (
        torch.inference_mode(),
        mock.patch.object(products, "product", wraps=products.product) as product,
    ):
        decoder.start(encoder({"src_tokens": tokens}), ROWS, KEYS)
        for start in (0, WIDTH):
            words = torch.randint(4, 30, (ROWS * WIDTH,), generator=chance).to(gpu)
            at = torch.arange(start, start + WIDTH).repeat(ROWS).to(gpu)
            found.append(decoder.features(GridWindow(words, at, (ROWS, WIDTH, KEYS))))
    return torch.cat(found).cpu().float(), product.call_count


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("options", [{}, PRE_NORM], ids=["post-norm", "pre-norm"])
def test_fused_layers_give_what_operators_give(
    dtype: torch.dtype,
    options: dict[str, Any],
    gpu: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, fused = features(dtype, gpu, options)
    with mock.patch.object(products, "MOST_ROWS", ROWS * WIDTH - 1):
        plain, none = features(dtype, gpu, options)
    # Windows, layers, products of a layer beside that of attention; keys and values of the sources.
    assert (fused, none) == (2 * 2 * 5 + 2, 0)
    torch.testing.assert_close(own, plain, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    monkeypatch.setenv(VARIABLE, "none")
    assert features(dtype, gpu, options)[1] == 0


@pytest.mark.parametrize(
    "options, precision",
    [({"activation_fn": "gelu"}, {}), ({}, {"strict": WIDTH}), ({}, {"tf32": True})],
    ids=["gelu", "strict", "tf32"],
)
def test_layers_that_are_left_to_operators(
    options: dict[str, Any], precision: dict[str, Any], gpu: torch.device
) -> None:
    assert features(torch.float32, gpu, options, **precision)[1] == 0


def test_half_precision_is_fused_whatever_fp32_rounds_to(gpu: torch.device) -> None:
    assert features(torch.float16, gpu, {}, tf32=True)[1] > 0
