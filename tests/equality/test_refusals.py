"""Options and models that a method cannot use: one sentence each, before anything is decoded."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from tests.support import generate, make_batch, make_model, make_task

SAMPLE = make_batch([[5, 6], [7]])


def refused(decoding: str, model: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as error:
        generate(make_task(decoding, **options), [model], SAMPLE)
    return str(error.value)


@pytest.mark.parametrize(
    ("decoding", "options", "model", "says"),
    [
        ("iad", {"strict": 1}, {}, "--strict 1: it must be at least 2, or 0"),
        ("iad", {"strict": -4}, {}, "--strict -4: it must be at least 2, or 0"),
        ("iad", {"strict": 4, "int8": True}, {}, "--strict does not go with --int8"),
        ("greedy", {"strict": 4}, {"scale_heads": True}, "--strict needs the decoder of a stock"),
    ],
    ids=range(4),
)
def test_windows_of_a_fixed_shape(
    decoding: str, options: dict[str, Any], model: dict[str, Any], says: str
) -> None:
    assert says in refused(decoding, make_model(make_task(), 5, **model), **options)


def test_windows_of_a_fixed_shape_are_not_for_beam_search() -> None:
    with pytest.raises(
        ValueError, match="--strict does not go with --decoding beam: give --beam 1"
    ):
        generate(make_task("beam", strict=4), [make_model(make_task(), 5)], SAMPLE, beam=2)


@pytest.mark.parametrize("decoding", ["stock", "beam"])
def test_constraints_of_sentences_that_have_none(decoding: str) -> None:
    model = make_model(make_task(), 5)
    with pytest.raises(ValueError, match="--constraints: these sentences have none"):
        generate(make_task(decoding), [model], SAMPLE, constraints="ordered", beam=3)


@pytest.mark.parametrize(("beam", "named"), [(25, True), (5, False)])
def test_a_beam_for_which_stock_has_too_few_words(
    beam: int, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock's search then fails an assertion of its own in some sentences."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("9 < 9")

    monkeypatch.setattr(SequenceGenerator, "_generate", fail)
    with pytest.raises((AssertionError, ValueError)) as found:
        generate(make_task("stock"), [make_model(make_task(), 5)], SAMPLE, beam=beam)
    assert ("--beam 25 is too wide for stock" in str(found.value)) == named


@pytest.mark.parametrize("arch", ["transformer", "interleaved_transformer"])
def test_interleaved_decoding_of_a_model_that_writes_word_by_word(
    arch: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        generate(make_task("interleaved"), [make_model(make_task(), 5, arch)], SAMPLE, beam=3)
    assert ("--path writes one word per step" in caplog.text) == (arch == "transformer")


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
@pytest.mark.parametrize("decoding", ["beam", "iad"])
def test_a_batch_of_nothing(decoding: str, shape: tuple[int, int]) -> None:
    """Stock fairseq fails too, in the middle of its layers."""
    source, task = torch.zeros(shape, dtype=torch.long), make_task(decoding)
    sample = {"net_input": {"src_tokens": source}}
    with pytest.raises(
        ValueError, match=r"src_tokens of shape \(\d, \d\): a batch needs a sentence"
    ):
        generate(task, [make_model(task, 1)], sample)
