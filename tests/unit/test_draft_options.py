"""How much is drafted where nothing is said of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.int8 import int8_available
from fairseq_aggdec.kernels.library import multiplies_bf16
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.methods.shared.amounts import with_what_pays
from tests.support import make_model, make_task

pytestmark = pytest.mark.skipif(not int8_available(), reason="no compiled kernels")


def chosen(dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Any, Any, Any]:
    task = make_task("gad", draft_tokens=None, **options)
    settings = read_settings(task.cfg)
    cfg = with_what_pays(settings, [make_model(make_task(), 1).to(dtype)])
    return cfg.draft_tokens, cfg.draft_tree, cfg.int8


def test_on_cpu_as_much_as_pays() -> None:
    assert chosen() == (None, "auto", "drafts")
    assert chosen(int8="none") == (None, "auto", "none")
    assert chosen(int8="all") == (None, "auto", "all")


def test_in_half_precision_the_amount_is_fixed() -> None:
    """There rounding depends on how much is drafted, so that outputs would depend on a clock."""
    for dtype, options in ((torch.float16, {}), (torch.bfloat16, {"low_memory": True})):
        assert chosen(dtype, **options) == (None, None, None)
        assert chosen(dtype, int8="none", **options) == (None, None, "none")


@pytest.mark.skipif(not multiplies_bf16(), reason="no compiled products in bfloat16")
def test_in_compiled_bfloat16_as_much_as_pays() -> None:
    """There rounding does not depend on it."""
    assert chosen(torch.bfloat16) == (None, "auto", "drafts")


@pytest.mark.parametrize("int8", [None, "drafts"])
def test_no_clock_decides_where_the_output_depends_on_it(int8: str | None) -> None:
    relaxed = {"acceptance": "top-beta", "int8": int8}
    assert chosen(**relaxed) == (None, "8", "drafts")
    assert chosen(torch.float16, **relaxed) == (None, "8", int8)
    assert chosen(**relaxed, low_memory=True) == (None, "8", int8)


RELAXED = {"acceptance": "top-beta"}


@pytest.mark.parametrize(
    "options",
    [
        {"acceptance": "top-k"},
        {"acceptance": "distance"},
        {"strict": True},
        {"acceptance": "min:2"},
        {"draft_tree": "7"},
        RELAXED | {"draft_tree": "7"},
        {"acceptance": "top-beta,min:2"},
        RELAXED | {"strict": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_said_stays(dtype: torch.dtype, options: dict[str, Any]) -> None:
    assert chosen(dtype, **options) == (None, options.get("draft_tree"), None)
