"""Random cases of every kernel, which are compared with PyTorch's operators, by the source that it is in."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch

from fairseq_aggdec.kernels.gpu import operators
from fairseq_aggdec.search.beam.fused import FusedBoard
from tests.emulated.beam_searches import Twins, check_a_search, check_visibility
from tests.unit.test_beam_board import compare_candidates, compare_steps
from tests.unit.test_cross_attention import compare_cross_attention
from tests.unit.test_drafting_kernels import compare_chains, compare_embeddings, compare_sources
from tests.unit.test_gpu_attention import compare_attention
from tests.unit.test_gpu_kernels import (
    compare_an_iteration,
    compare_copies,
    compare_largest,
    compare_slot_windows,
)
from tests.unit.test_gpu_logits import compare_logits
from tests.unit.test_gpu_products import compare_products


def compare_searches(seed: int) -> None:
    """Beam searches by stock's rules on the host, and what their hypotheses see."""
    dtype = (torch.float32, torch.float16)[seed % 2]
    with mock.patch.object(operators, "PART", 4):
        check_a_search(Twins(seed, FusedBoard, dtype))
        check_visibility(Twins(seed, FusedBoard, dtype))


COMPARED: dict[str, tuple[Callable[[int], None], ...]] = {
    "attention": (compare_attention,),
    "beam": (compare_candidates, compare_steps, compare_searches),
    "bookkeeping": (compare_copies, compare_slot_windows),
    "chain": (compare_chains,),
    "cross": (compare_cross_attention,),
    "embedding": (compare_embeddings, compare_sources),
    "logits": (compare_logits,),
    "products": (compare_products,),
    "vocabulary": (compare_an_iteration, compare_largest),
}
