"""Batches of ``--max-tokens``, of more sentences than a GPU decodes at once: in parts, without the host."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_aggdec.engine.graphs.window_graphs import ROWS
from fairseq_aggdec.search.parts import parts
from fairseq_aggdec.search.state import Batch
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES, Case
from tests.strict.device.recorder import TRANSFER
from tests.strict.device.strict_device import DEVICE, strict_device
from tests.strict.test_methods import SIZES, assert_equal

BY_NAME = {case.name: case for case in CASES}
LONGEST = 24  # positions of an output
FLAG = 8  # bytes of a row that the host reads in each iteration
TABLE = 5 * 4  # bytes of a place in a table of its best token


@pytest.mark.parametrize(
    ("name", "rows", "beam"),
    [
        *(("greedy", rows, 1) for rows in (257, 400, 1000)),
        *((name, 400, 1) for name in ("iad, unique", "gad", "blockwise, dense")),
        ("nar", 257, 1),
        ("beam 3", 257, 8),
    ],
)
def test_no_logits_leave_the_device(
    name: str, rows: int, beam: int, device: torch.device, tmp_path: Path
) -> None:
    """What ``fairseq-generate`` writes as stock fairseq does, and what comes to the host."""
    if device.type == "cuda":
        pytest.skip("copies are counted on the strict device only")
    case = BY_NAME[name]
    if beam > 1:
        case = Case(name, "beam", generation={"beam": beam, "max_len_b": 6})
    models, drafter = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(1, rows)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    with strict_device() as recorder:
        ready = device_cases.prepared(case, models, drafter, tmp_path, DEVICE)
        counters = ready.task.counters
        on_device = device_cases.moved(sample, DEVICE)
        recorder.events.clear()
        found, events = ready.decode(on_device, None), list(recorder.events)
        assert_equal(found, wanted, DEVICE)
    assert ready.generator.engines[-1][0].name == "board"
    copies = [one for one in events if one.kind == TRANSFER and one.operator == "copy to host"]
    to_host = [one.bytes for one in copies]
    if beam > 1:  # what the search has found is larger than the logits of so few types
        return
    # At the start the sources come, and at the end what was written: five numbers for each position.
    around = 8 * sample["net_input"]["src_tokens"].numel() + 5 * 8 * LONGEST * rows
    turns = counters.calls * rows / -(-rows // ROWS[-1])  # of rows; each part counts its own
    assert sum(to_host) - around <= FLAG * turns <= 8 * (2 * 1 + 1) * turns


@pytest.mark.parametrize(
    "name",
    [
        f"{name}, {method}"
        for name in ("source length", "shortlist", "history")
        for method in ("greedy", "iad")
    ],
)
def test_whole_batches_send_no_logits(name: str, device: torch.device, tmp_path: Path) -> None:
    """What depends on its batch, or is looked at: the host sees every iteration, by five numbers for each place."""
    if device.type == "cuda":
        pytest.skip("copies are counted on the strict device only")
    rows, case = 300, BY_NAME[name]
    sample = device_cases.batch(1, rows)
    models, drafter = device_cases.random_models(case, SIZES)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    with strict_device() as recorder:
        ready = device_cases.prepared(case, models, drafter, tmp_path, DEVICE)
        on_device = device_cases.moved(sample, DEVICE)
        recorder.events.clear()
        found, events = ready.decode(on_device, None), list(recorder.events)
        assert_equal(found, wanted, DEVICE)
    copies = [one for one in events if one.kind == TRANSFER and one.operator == "copy to host"]
    files = [one.place.partition(":")[0] for one in copies]
    around = {"windows/transfer.py", "options/options.py", "search/compiled/tables.py"}
    assert set(files) <= around  # sources and their lengths, then tables
    tables = [
        one.bytes
        for one, file in zip(copies, files, strict=True)
        if file == "search/compiled/tables.py"
    ]
    assert len(tables) == ready.task.counters.calls
    assert all(size % TABLE == 0 for size in tables)
    if "greedy" in name:
        assert max(tables) == TABLE * rows


def test_parts_of_a_sample() -> None:
    """Everything that has an entry for each sentence is cut; all of it comes back in order."""
    source = torch.arange(14).view(7, 2)
    sample: dict[str, Any] = {
        "id": torch.arange(7),
        "nsentences": 7,
        "texts": list("abcdefg"),
        "net_input": {"src_tokens": source, "src_lengths": torch.full((7,), 2)},
        "target": None,
    }
    found = list(parts(Batch(sample, 2, [[i] for i in range(7)]), 3))
    assert [first for first, _ in found] == [0, 2, 4]
    assert torch.equal(torch.cat([part.source for _, part in found]), source)
    assert [text for _, part in found for text in part.sample["texts"]] == list("abcdefg")
    assert [prefix for _, part in found for prefix in part.prefixes] == [[i] for i in range(7)]
    assert [part.sample["id"].tolist() for _, part in found] == [[0, 1], [2, 3], [4, 5, 6]]
    ((_, whole),) = parts(Batch(sample, 2, [()] * 7), 7)
    assert whole.sample is sample


def test_parts_shrink_where_the_cache_would_not_fit(
    gpu: torch.device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case, sample = BY_NAME["greedy"], device_cases.batch(1, 20)
    models, drafter = device_cases.random_models(case, SIZES)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    taken = []
    plain = type(ready.generator)._decode

    def decode(self: Any, batch: Batch) -> Any:
        taken.append(len(batch.source))
        return plain(self, batch)

    free = 2**20
    with (
        mock.patch.object(torch.cuda, "mem_get_info", lambda device: (free, 2**40)),
        mock.patch.object(torch.cuda, "memory_reserved", lambda device=None: 0),
        mock.patch.object(torch.cuda, "memory_allocated", lambda device=None: 0),
        mock.patch.object(type(ready.generator), "_decode", decode),
        caplog.at_level(logging.INFO),
    ):
        assert_equal(ready.decode(sample, None), wanted, gpu)
    assert sum(taken) == 20 and max(taken) < 20
    assert "the KV cache of more would not fit" in caplog.text


def test_a_sentence_of_a_later_part_is_named(gpu: torch.device, tmp_path: Path) -> None:
    from fairseq_aggdec.search.errors import NonFiniteError

    case, sample = BY_NAME["greedy"], device_cases.batch(1, ROWS[-1] + 4)
    models, drafter = device_cases.random_models(case, SIZES)
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    plain, told = type(ready.generator)._hypotheses, []

    def hypotheses(self: Any, done: Any) -> Any:
        if told:
            raise NonFiniteError(3)
        told.append(1)
        return plain(self, done)

    with (
        mock.patch.object(type(ready.generator), "_hypotheses", hypotheses),
        pytest.raises(NonFiniteError) as error,
    ):
        ready.generator._generate(device_cases.moved(sample, gpu))
    assert error.value.row == (ROWS[-1] + 4) // 2 + 3
