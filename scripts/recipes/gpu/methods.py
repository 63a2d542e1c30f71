"""How long batches of the cases of :mod:`device_cases` take on a device, with captured graphs and without."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from scripts.recipes.gpu.plan import Plan, Row, Rows, tried
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES, Case, Options

BASE: Options = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (
        ("layers", 6),
        ("embed_dim", 512),
        ("ffn_embed_dim", 2048),
        ("attention_heads", 8),
    )
}
TIMED = [
    case
    for case in CASES
    if case.name
    in (
        "greedy",
        "iad, aligned",
        "gad, next, chain, causal",
        "gad, trees, next, chain, causal",
        "blockwise, dense",
        "beam 5, nothing drafted",
        "interleaved, one word, beam 3",
        "interleaved, 2x2, beam 3",
        "lattice, serial",
    )
]


def batch_seconds(
    case: Case, folder: Path, device: torch.device, sizes: Options, rows: int, repeats: int
) -> dict[bool, float]:
    """With graphs and without: the shortest of so many times that a batch took, each in turn.

    Models are random and their dictionary is tiny; batches before have made what is kept.
    """
    models, drafter = device_cases.random_models(case, sizes)
    sample = device_cases.batch(7, rows, longest=24)
    forms: dict[bool, Any] = {}
    for graphs in (True, False):
        own = dataclasses.replace(case, task=case.task | {"no_graphs": not graphs})
        forms[graphs] = device_cases.prepared(own, models, drafter, folder, device)
        for _ in range(3):
            forms[graphs].decode(sample, None)
    found = dict.fromkeys(forms, float("inf"))
    for _ in range(repeats):
        for graphs, ready in forms.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            ready.decode(sample, None)
            torch.cuda.synchronize()
            found[graphs] = min(found[graphs], time.perf_counter() - began)
    return found


def methods(plan: Plan) -> Rows:
    """Batches of every method with captured graphs and without: base size, random, a tiny dictionary."""
    small = {"encoder_layers": 1, "decoder_layers": 1}
    with plan.device() as device:
        for case in plan.cases(TIMED):
            for rows in plan.few([1, 32], 2):
                yield tried(
                    lambda case=case, rows=rows: _in_both_forms(  # type: ignore[misc]
                        batch_seconds(
                            case,
                            plan.folder,
                            device,
                            small if plan.rehearse else BASE,
                            rows,
                            1 if plan.rehearse else 5,
                        )
                    ),
                    method=case.name,
                    rows=rows,
                )


def _in_both_forms(seconds: Mapping[bool, float]) -> Row:
    return {
        "graphs, ms": 1e3 * seconds[True],
        "no graphs, ms": 1e3 * seconds[False],
        "x": seconds[False] / seconds[True],
    }
