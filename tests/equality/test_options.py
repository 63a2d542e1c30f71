"""fairseq's generation options under speculation, together: as stock --beam 1 with the same flags, or refused.

Each of them alone is a case of ``tests/rule_cases.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.equality.test_blockwise import headed
from tests.support import (
    assert_same,
    generate,
    generation_options,
    make_batch,
    make_model,
    make_task,
    stock,
    trained_copier,
)

METHODS = ["greedy", "iad", "blockwise"]


@pytest.fixture(scope="module")
def copier() -> Any:
    return trained_copier()[1]


@pytest.fixture(scope="module")
def models(copier: Any) -> dict[str, Any]:
    """A model for each of the methods."""
    return {"greedy": copier, "iad": copier, "blockwise": headed("dense")}


def sample() -> dict[str, Any]:
    return make_batch([[5, 6, 7, 8, 9, 10, 11], [12, 13, 14], [20, 24, 26, 30, 20, 21], [3, 9, 3]])


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("method", METHODS)
def test_alignment(models: dict[str, Any], kind: str, method: str) -> None:
    model = models[method]
    found = generate(make_task(method), [model], sample(), print_alignment=kind)
    expected = stock([model], sample(), print_alignment=kind)
    assert_same(found, expected)
    for ours, theirs in zip(found, expected, strict=True):
        # hard: (source, target) pairs; soft: probabilities, spelt with six digits
        left, right = (
            torch.tensor([[float(item) for item in row] for row in hypothesis["alignment"]])
            for hypothesis in (ours, theirs)
        )
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_alignment_of_a_model_with_an_alignment_layer(kind: str) -> None:
    """Stock reads it off its steps, whose attention is the last layer's, not the alignment layer's."""
    task = make_task("greedy")
    model = make_model(task, 3, "transformer_align", alignment_heads=1, alignment_layer=0)
    found = generate(task, [model], sample(), print_alignment=kind)
    expected = stock([model], sample(), print_alignment=kind)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours["attention"], theirs["attention"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", [*METHODS, "interleaved", "lattice"])
def test_allowed_tokens_are_refused(copier: Any, models: dict[str, Any], method: str) -> None:
    """fairseq's hub hands them to build_generator beside the options."""
    with pytest.raises(ValueError, match="prefix_allowed_tokens_fn does not go with --decoding"):
        make_task(method).build_generator(
            [models.get(method, copier)],
            generation_options(),
            prefix_allowed_tokens_fn=lambda *_: [2],
        )
