"""Files of distillation that were changed or are another set's: refused before anything is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec.distill.distillation import DistillationError, check_tokens, collect
from fairseq_aggdec.jobs.job import BulkError, UnfinishedError, header_path
from tests.support import make_dictionary
from tests.unit.test_distillation import SUBSET, change, write

BATCHES = [[3, 1], [0, 2], [5, 4]]


@pytest.mark.parametrize("tokens", [[5], [99999999], [-1], [4.5], [True], ["4"], [2**40], 7])
def test_a_change_of_any_kind_is_seen(tokens: Any, tmp_path: Path) -> None:
    """Even one that a teacher might have written."""
    job = write(tmp_path, BATCHES)
    collect(tmp_path, SUBSET)
    row = [1, False, tokens]
    change(job.shard_path(0), lambda batches: batches[0].__setitem__(1, row), seal=False)
    with pytest.raises(BulkError, match="line 1 and on, is not what was written"):
        collect(tmp_path, SUBSET)


def test_batches_in_another_order_are_seen(tmp_path: Path) -> None:
    job = write(tmp_path, BATCHES)
    change(job.shard_path(0), lambda batches: batches.reverse(), seal=False)
    with pytest.raises(BulkError, match="line 1 and on, is not what was written"):
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
def test_a_header_that_was_changed_is_seen(entry: str, value: Any, tmp_path: Path) -> None:
    write(tmp_path, BATCHES)
    path = header_path(tmp_path, SUBSET)
    path.write_text(json.dumps(json.loads(path.read_text()) | {entry: value}))
    with pytest.raises(BulkError, match=r"train.job.json is not|not what its name says"):
        collect(tmp_path, SUBSET)


def test_a_header_of_another_set_has_no_shards(tmp_path: Path) -> None:
    write(tmp_path, BATCHES)
    header_path(tmp_path, SUBSET).rename(header_path(tmp_path, "valid"))
    with pytest.raises(UnfinishedError, match=r"valid: shard 0 of 1 is not there"):
        collect(tmp_path, "valid")


@pytest.mark.parametrize("token", [99999999, -1, 40, 1, 2])
def test_ids_that_no_teacher_writes(token: int, tmp_path: Path) -> None:
    """Beyond the dictionary of 40 types, below it, padding and the end of a sentence; sealed as a worker does it."""
    job = write(tmp_path, BATCHES)
    check_tokens(collect(tmp_path, SUBSET), make_dictionary())
    row = [1, False, [4, token]]
    change(job.shard_path(0), lambda batches: batches[0].__setitem__(1, row))
    with pytest.raises(DistillationError, match=rf"train, sentence 1: the token id {token} cannot"):
        check_tokens(collect(tmp_path, SUBSET), make_dictionary())
