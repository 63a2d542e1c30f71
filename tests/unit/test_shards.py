"""Shards that were changed, mixed up or are another set's: refused before anything is made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec.distill.shards import check_tokens, collect
from fairseq_aggdec.jobs.job import BulkError, Job, header_path
from tests.support import make_dictionary
from tests.unit.test_distillation import SUBSET, change, write

BATCHES = [[3, 1], [0, 2], [5, 4]]


def whole(folder: Path) -> Path:
    """A finished shard, which is as it should be."""
    job: Job = write(folder, BATCHES)
    check_tokens(collect(folder, SUBSET), make_dictionary())
    return job.shard_path(0)


def set_row(row: list[Any]) -> Callable[[list[Any]], object]:
    return lambda batches: batches[0].__setitem__(1, row)


@pytest.mark.parametrize("row", [[1, False, [4.5]], [1, False, [True]], [1, False, ["4"]]])
def test_what_is_no_number_is_named(row: list[Any], tmp_path: Path) -> None:
    """NumPy would make a whole number of each."""
    change(whole(tmp_path), set_row(row))
    with pytest.raises(BulkError, match="line 2 and on, is not what was written"):
        collect(tmp_path, SUBSET)


@pytest.mark.parametrize("row", [[1, 0, []], [1.0, False, []], [1, False, [2**40]], [1, False, 7]])
def test_fields_of_another_kind_are_named(row: list[Any], tmp_path: Path) -> None:
    change(whole(tmp_path), set_row(row))
    with pytest.raises(BulkError, match="line 2 and on, is not what was written"):
        collect(tmp_path, SUBSET)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("sentences", "6"),
        ("batches", None),
        ("shards", -1),
        ("too_long", None),
        ("too_long", [1.5]),
        ("subset", 7),
        ("options", []),
    ],
)
def test_a_header_of_another_kind_is_named(entry: str, value: Any, tmp_path: Path) -> None:
    whole(tmp_path)
    path = header_path(tmp_path, SUBSET)
    path.write_text(json.dumps(json.loads(path.read_text()) | {entry: value}))
    with pytest.raises(BulkError, match=r"train.job.json is not"):
        collect(tmp_path, SUBSET)
