"""Who decodes, by method and by what is against our engines: ours, stock where that gives the same, or nobody."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_aggdec.methods import gad as gad_method
from fairseq_aggdec.methods.options.kinds import KINDS, kind_of
from fairseq_aggdec.search.engines import STOCK
from tests.equality.test_blockwise import headed
from tests.equality.test_gad import drafter
from tests.equality.test_interleaved import lively
from tests.equality.test_lattice import lattice_model
from tests.random_models import random_tables
from tests.support import generation_options, make_batch, make_model, make_task, without_library

OURS, BY_STOCK, REFUSED = "ours", "stock", "refused"
ASKED = {"sampling": {"sampling": True}, "score-reference": {"score_reference": True}}
# What stands against our engines, one reason in each column.
REASONS = (
    *("nothing", "no library", "watched, no library", "layers", "search"),
    *("several starts", *ASKED),
)
# Method, with options of its own behind a comma -> who decodes, in the order of the reasons.
TABLE = {
    "beam": "ours ours ours stock stock stock stock stock",
    "stock": "stock stock stock stock stock stock stock stock",
    "greedy": "ours ours stock stock stock stock refused stock",
    "iad": "ours ours stock stock stock stock refused stock",
    "gad": "ours ours stock stock stock stock refused stock",
    "nar": "ours ours refused ours ours refused refused refused",
    "blockwise": "ours ours stock refused stock stock refused stock",
    "interleaved": "ours ours ours refused ours refused refused refused",
    "lattice": "ours ours refused refused ours refused refused refused",
    "gad, top-k": "ours ours refused refused refused refused refused stock",
    "blockwise, top-k": "ours ours refused refused refused refused refused stock",
    "greedy, int8": "ours ours refused refused refused refused refused stock",
    "beam, int8": "ours ours ours refused refused refused refused stock",
    "greedy, strict": "ours refused refused refused refused refused refused stock",
    "greedy, shortlist": "ours refused refused refused refused refused refused refused",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "top-k": {"acceptance": "top-k:2"},
    "int8": {"int8": "all"},
    "strict": {"strict": 8},
    "shortlist": {"shortlist": 9},
}
SAMPLE = [[5, 9, 12], [30, 31]]


def test_the_table_has_every_method() -> None:
    assert {name.partition(",")[0] for name in TABLE} == set(KINDS)
    assert all(len(row.split()) == len(REASONS) for row in TABLE.values())


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "lattice"
    task = make_task()
    random_tables().save(path, task.source_dictionary, task.target_dictionary, {"command": "test"})
    return path


def model_of(method: str, **layers: Any) -> Any:
    if method == "blockwise":
        return headed(**layers)
    if method == "interleaved":
        return lively(2, 2, **layers)
    if method == "lattice":
        return lattice_model(**layers)
    return make_model(make_task(), 5, **layers)


@contextlib.contextmanager
def against(reason: str) -> Iterator[None]:
    with without_library() if "no library" in reason else contextlib.nullcontext():
        yield


def decoded(method: str, reason: str, tables: Path, beam: int = 2) -> tuple[str, Any]:
    """Who decodes, and the tokens of the best hypotheses; or why nobody does."""
    name, _, more = method.partition(", ")
    model = model_of(name, **({"scale_heads": True} if reason == "layers" else {}))
    options = dict(OPTIONS.get(more, {}))
    if name == "lattice" or more == "shortlist":
        options["lattice"] = str(tables)
    asked: dict[str, Any] = {"beam": beam if kind_of(name).searches else 1}
    asked |= {"max_len_b": 8} | ASKED.get(reason, {})
    if reason.startswith("watched"):
        asked["retain_iter_history"] = True
    call: dict[str, Any] = {}
    if reason == "several starts":
        call["bos_token"] = torch.tensor([2] * len(SAMPLE) * asked["beam"])
    with against(reason):
        try:
            task = make_task(
                name, drafter_path="drafter.pt" if name in ("gad", "nar") else None, **options
            )
            generator = task.build_generator([model], generation_options(**asked))
            if reason == "search":
                generator.search.step = type(generator.search).step.__get__(generator.search)
            if reason in ASKED:
                assert type(generator) is not None and not hasattr(generator, "engines")
                return BY_STOCK, None
            found = generator.generate([model], make_batch(SAMPLE), **call)
        except ValueError as error:
            return REFUSED, str(error)
    engines = getattr(generator, "engines", task.asked_engines)
    by_stock = type(generator) is SequenceGenerator or engines[-1][0] is STOCK
    return BY_STOCK if by_stock else OURS, [ranked[0]["tokens"].tolist() for ranked in found]


@pytest.mark.parametrize("method", TABLE)
def test_who_decodes(method: str, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafter(block_size=3))
    found = {reason: decoded(method, reason, tables) for reason in REASONS}
    assert {reason: who for reason, (who, _) in found.items()} == dict(
        zip(REASONS, TABLE[method].split(), strict=True)
    )
    for reason, (who, what) in found.items():
        if who == REFUSED:
            assert len(what) > 30  # a sentence that says why
        elif what is not None and method in ("beam", "stock", "greedy", "iad", "gad"):
            beam = 2 if kind_of(method).searches else 1
            assert what == decoded("stock", reason, tables, beam)[1], reason
