"""Classes of torch and fairseq that are patched, and classes that users derive from them: the output is stock's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from fairseq.models.transformer import (
    TransformerDecoderBase,
    TransformerEncoder,
    TransformerEncoderBase,
)
from fairseq.modules import FairseqDropout, TransformerDecoderLayer, TransformerEncoderLayer
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import nn

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import FastEncoder
from fairseq_aggdec.engine.plain.walk import global_gap
from tests import warm
from tests.alterations import lively
from tests.equality.test_altered_models import (
    METHODS,
    assert_equal,
    by_stock,
    generator_of,
    nbest,
)


def legacy() -> Any:
    """With the encoder's older class, which inherits what it does."""
    model = lively()
    model.encoder.__class__ = TransformerEncoder
    return model


class Sub(TransformerDecoderLayerBase):
    """Computes as its base does."""


def derived() -> Any:
    model = lively()
    for layer in model.decoder.layers:
        layer.__class__ = Sub
    return model


CALL, LAYER = nn.Module.__call__, TransformerDecoderLayerBase.forward
ENCODE = TransformerEncoderBase.forward


def call_of_norms(self: Any, *args: Any, **kwargs: Any) -> Any:
    found = CALL(self, *args, **kwargs)
    return found * 1.5 if isinstance(self, nn.LayerNorm) else found


def backwards(self: Any, *args: Any, **kwargs: Any) -> Any:
    found = ENCODE(self, *args, **kwargs)
    return found | {"encoder_out": [found["encoder_out"][0].flip(-1)]}


def halved(self: Any, *args: Any, **kwargs: Any) -> Any:
    x, *others = LAYER(self, *args, **kwargs)
    return (x / 2, *others)


Patch = tuple[Callable[[], Any], type, str, Any]
PATCHES: dict[str, Patch] = {
    "every call": (lively, nn.Module, "__call__", call_of_norms),
    "call of norms": (lively, nn.LayerNorm, "__call__", call_of_norms),
    "call of dropout": (lively, FairseqDropout, "__call__", lambda self, x: CALL(self, x) * 1.5),
    "inherited forward": (legacy, TransformerEncoder, "forward", backwards),
    "forward of a derived class": (derived, Sub, "forward", halved),
}


@pytest.mark.parametrize("name", PATCHES)
@pytest.mark.parametrize("method", ["beam", "iad"])
def test_a_method_that_a_class_inherited(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, cls, attribute, patch = PATCHES[name]
    models, beam = [make()], METHODS[method]
    older = generator_of(method, models, beam)
    before = nbest(older, models)
    with monkeypatch.context() as context:
        context.setattr(cls, attribute, patch)
        expected = by_stock(models, beam)
        assert_equal(nbest(older, models), expected)
        assert_equal(nbest(generator_of(method, models, beam), models), expected)
    assert_equal(nbest(older, models), before)
    (member,) = older.verifier.members
    assert isinstance(member.encoder, FastEncoder) and isinstance(member.decoder, CachedDecoder)


class Weird(TransformerDecoderLayerBase):
    forward = halved


class DerivedTwice(TransformerDecoderLayer, Weird):
    pass


class WeirdEncoderLayer(TransformerEncoderLayerBase):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs).flip(-1)


class EncoderLayerDerivedTwice(TransformerEncoderLayer, WeirdEncoderLayer):
    pass


def test_a_method_behind_a_known_class() -> None:
    models = [lively()]
    models[0].decoder.layers[0].__class__ = DerivedTwice
    models[0].encoder.layers[0].__class__ = EncoderLayerDerivedTwice
    generator = generator_of("iad", models, 1, eval_bleu=True)
    assert_equal(nbest(generator, models), by_stock(models, 1))
    (member,) = generator.verifier.members
    assert member.encoder_gap is not None and member.stock_only == member.decoder_gap is not None


BEFORE = """
import functools
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
forward = TransformerEncoderLayerBase.forward
{decorator}
def mine(self, *args, **kwargs):
    return forward(self, *args, **kwargs).flip(-1)
TransformerEncoderLayerBase.forward = mine
from fairseq_aggdec.engine.plain.walk import global_gap
print(global_gap())
"""


@pytest.mark.parametrize("decorator", ["", "@functools.wraps(forward)"])
def test_patched_before_the_plugin_is_imported(decorator: str) -> None:
    command = [warm.python(), "-c", BEFORE.format(decorator=decorator)]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
    assert run.stdout.strip() == "TransformerEncoderLayerBase with another forward()"


# What alters nothing


@pytest.mark.parametrize(
    "name",
    [
        *("cuda", "cpu", "_apply", "apply", "type", "zero_grad"),
        *("register_buffer", "named_parameters", "__init__"),
    ],
)
def test_patches_that_compute_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = getattr(nn.Module, name)
    monkeypatch.setattr(nn.Module, name, lambda self, *a, **k: method(self, *a, **k))
    assert global_gap() is None
    models = [lively()]
    generator = generator_of("greedy", models, 1, strict=4)
    nbest(generator, models)
    (member,) = generator.verifier.members
    assert isinstance(member.encoder, FastEncoder) and isinstance(member.decoder, CachedDecoder)


class Moving(TransformerDecoderBase):
    """Notes where it goes."""

    def cuda(self, *args: Any) -> Any:
        return super().cuda(*args)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return super().named_parameters(*args, **kwargs)


def test_derived_classes_that_compute_the_same() -> None:
    models = [lively()]
    models[0].decoder.__class__ = Moving
    generator = generator_of("iad", models, 1)
    nbest(generator, models)
    assert isinstance(generator.verifier.members[0].decoder, CachedDecoder)
