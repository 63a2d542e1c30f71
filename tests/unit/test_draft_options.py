"""How much is drafted where nothing is said of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.int8 import int8_available
from fairseq_aggdec.methods.shared.amounts import with_what_pays
from tests.support import make_model, make_task

pytestmark = pytest.mark.skipif(not int8_available(), reason="no compiled kernels")


def chosen(dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Any, Any, bool]:
    task = make_task("gad", block_size=None, **options)
    cfg = with_what_pays(task.cfg, [make_model(make_task(), 1).to(dtype)])
    return cfg.block_size, cfg.draft_nodes, bool(cfg.draft_int8)


def test_on_cpu_as_much_as_pays() -> None:
    assert chosen() == (None, "auto", True)
    assert chosen(torch.bfloat16) == ("auto", None, False)


@pytest.mark.parametrize("chosen_int8", [False, True])
def test_no_clock_decides_where_the_output_depends_on_it(chosen_int8: bool) -> None:
    relaxed = {"acceptance": "top-beta", "draft_int8": chosen_int8}
    assert chosen(**relaxed) == (None, "8", True)
    assert chosen(torch.bfloat16, **relaxed) == (None, "8", chosen_int8)
    assert chosen(**relaxed, no_weight_packing=True) == (None, "8", chosen_int8)


RELAXED = {"acceptance": "top-beta"}


@pytest.mark.parametrize(
    "options",
    [
        {"acceptance": "top-k"},
        {"acceptance": "distance"},
        {"strict": True},
        {"min_block_size": 2},
        {"draft_nodes": "7"},
        RELAXED | {"draft_nodes": "7"},
        RELAXED | {"min_block_size": 2},
        RELAXED | {"strict": True},
        RELAXED | {"draft_from": "source"},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_said_stays(dtype: torch.dtype, options: dict[str, Any]) -> None:
    assert chosen(dtype, **options) == (None, options.get("draft_nodes"), False)
