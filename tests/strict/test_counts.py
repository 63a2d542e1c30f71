"""What decoding asks of a GPU stays what docs/results/device-counts.json says: above all, how often the host waits."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.windows import transfer
from tests.strict.device import cases as device_cases
from tests.strict.device import counts as device_counts
from tests.strict.device.cases import Case
from tests.strict.device.counts import COUNTED, END, ITERATIONS, ROWS, START, Counts
from tests.strict.device.recorder import IN_GRAPH, KERNEL
from tests.strict.device.strict_device import DEVICE, strict_device

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "device-counts.json"
# Fewer layers than the table's: the host waits as often, whatever the depth.
SIZES = {"encoder_layers": 1, "decoder_layers": 1}

# What waits more often than once per iteration, once before it and once behind the last, and why.
MORE: dict[str, dict[str, int]] = {
    # drafts that live on the device are needed on the host to look for repetitions
    "no repeated n-grams, gad": {START: 3, ITERATIONS: 2},
    # forced tokens are read, before anything is launched
    "prefix, gad": {START: 3},
    # how many words there are in a batch's shortlist
    "shortlist, greedy": {START: 3},
    "shortlist, iad": {START: 3},
    # a whole decoding of another model before the first iteration
    # a pass over the finished hypotheses for their alignment, each of which is cut to its length
    "interleaved, 2x2, independent": {END: 9},
}
USUAL = {START: 2, ITERATIONS: 1, END: 1}
# What goes on without the host: all of an iteration is captured, and no copy blocks before the batch has ended.
FOLLOWED = (
    "greedy",
    "greedy, two models",
    *(f"iad, {match}" for match in device_cases.MATCHES),
    "iad, drafts from a file",
    "no repeated n-grams, iad",
    "no repeated n-grams, gad",
    "no repeated n-grams, nar",
    "nar",
    "nar, chain",
    "nar, source copy",
    "gad",
    "gad, source copy",
    "gad, source copy, causal",
    "gad, causal",
    "gad, next, chain, causal",
    "gad, block size auto",
    "gad, top-beta",
    "blockwise, dense",
    "blockwise, per head",
    "beam 3",
    "beam 5, nothing drafted",
    "beam 4, options",
    "interleaved, one word, beam 3",
)


@pytest.fixture(autouse=True)
def _no_gpu(device: torch.device) -> None:
    if device.type == "cuda":
        pytest.skip("counted on the strict device only")


@pytest.fixture(scope="module")
def written() -> Any:
    return json.loads(RESULTS.read_text(encoding="utf-8"))["results"]


Count = Callable[..., Counts]


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> Count:
    """Counts of a case by its name; several tests look at the same ones."""

    @functools.cache
    def counted(name: str, as_written: bool = False) -> Counts:
        (case,) = [case for case in COUNTED if case.name == name]
        sizes = device_counts.SIZES if as_written else SIZES
        return device_counts.count(case, tmp_path_factory.mktemp("counts"), sizes=sizes)

    return counted


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: case.name)
def test_the_host_waits_as_often_as_written(case: Case, written: Any, count: Count) -> None:
    # fairseq's pass for an alignment waits in every layer. The model decides whether a node of a tree is accepted.
    by_the_model = "draft_tree" in case.task
    as_written = "print_alignment" in case.generation or by_the_model
    counts = count(case.name, as_written)
    found = {part: counts.blocking(part) for part in (START, ITERATIONS, END)}
    assert found == written[case.name]["blocking"], counts.places
    allowed = USUAL | MORE.get(case.name, {})
    assert all(found[part] <= allowed[part] for part in found), counts.places
    if case.name in FOLLOWED:
        assert found[ITERATIONS] == 0 and found[END] == 1
        assert counts.means[ITERATIONS][KERNEL] == 1


@pytest.mark.parametrize(
    "name, models", [("greedy", 1), ("iad, aligned", 1), ("gad", 2), ("blockwise, dense", 1)]
)
def test_the_start_is_one_launch_for_each_model(name: str, models: int, count: Count) -> None:
    counts = count(name)
    asked = models + (models > 1)  # whether weights have changed, before anything is launched
    # The first iteration is a launch too.
    assert counts.means[START][KERNEL] == models + 1 + asked


@pytest.mark.parametrize("name", ["greedy", "beam 3"])
def test_few_tokens_are_read_by_the_fused_kernels(name: str, tmp_path: Path) -> None:
    """Sources of up to 32 places start a batch in 47 kernels where operators take 96."""
    (case,) = [case for case in COUNTED if case.name == name]
    counts = [device_counts.count(case, tmp_path, rows) for rows in (1, ROWS)]
    # Rows that are none fill a grid of 16 places each.
    few, many = (one.means[START][IN_GRAPH] - one.means[ITERATIONS][IN_GRAPH] for one in counts)
    assert few == 47 and many == 96


@pytest.mark.parametrize("name", ["greedy", "iad, aligned", "gad", "blockwise, dense", "nar"])
def test_the_end_is_one_kernel_and_one_copy(name: str, count: Count) -> None:
    counts = count(name)
    # The last iteration may have been launched in vain; fairseq gets its hypotheses on the device.
    assert (
        sum(
            times
            for (kind, _, where), times in counts.lines.items()
            if kind == KERNEL and where.startswith("search/board.py")
        )
        == 1
    )
    assert counts.means[END][KERNEL] - 1 in (0, 1)
    assert counts.blocking(END) == 1
    sent = [line for line in counts.lines if line[1] == "copy to device"]
    lines, first = inspect.getsourcelines(transfer.sent)
    (line,) = (first + i for i, text in enumerate(lines) if ".to(device, non_blocking" in text)
    assert sum(counts.lines[at] for at in sent if f"transfer.py:{line}" in at[2]) == 1


@pytest.mark.parametrize("name", ["beam 3", "beam 4, options", "gad, block size auto"])
def test_two_counts_have_the_same_waits(name: str, count: Count, tmp_path: Path) -> None:
    (case,) = [case for case in COUNTED if case.name == name]
    first, again = count(name), device_counts.count(case, tmp_path, sizes=SIZES)
    assert first.iterations == again.iterations
    assert first.places == again.places


def test_no_graph_is_captured_in_the_counted_batch(count: Count) -> None:
    # With these sizes the fourth batch of the case still captures a graph.
    operators = {what for _, what, _ in count("beam 4, options", as_written=True).places}
    assert operators == {"copy to host"}


def test_every_case_is_written(written: Any) -> None:
    assert sorted(written) == sorted(case.name for case in COUNTED)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("name", ["greedy", "iad, unique", "gad, causal", "blockwise, dense"])
def test_the_host_waits_no_more_in_another_batch(name: str, rows: int, tmp_path: Path) -> None:
    (case,) = [case for case in COUNTED if case.name == name]
    counts = device_counts.count(case, tmp_path, rows, SIZES)
    assert counts.blocking(ITERATIONS) == (0 if name in FOLLOWED else 1)
    assert counts.blocking(START) <= 2 and counts.blocking(END) <= 1


@pytest.mark.parametrize(
    "name",
    ["iad, unique", "gad, causal", "image, band", "interleaved, 2x2, beam 3", "lattice, serial"],
)
def test_no_mask_is_copied_in_every_layer(name: str, count: Count) -> None:
    lines = count(name).lines
    operators = {operator for _, operator, _ in lines}
    assert "attention: efficient" in operators
    assert "attention: mask copied" not in operators, lines


def test_the_drafter_reads_the_source_beside_the_verifier(count: Count) -> None:
    counts = count("gad")
    streams = dict(counts.streams)
    # One event before the batch; the host is told of every iteration, of at most one in vain.
    assert streams.pop("record_event") - counts.iterations in (1, 2)
    assert streams == {"wait_event": 1, "stream": 1, "wait_stream": 1}


@pytest.mark.parametrize("name", ["greedy", "gad, causal", "interleaved, 2x2, beam 3"])
def test_no_attention_makes_a_plan_per_shape(name: str, tmp_path: Path) -> None:
    (case,) = [case for case in COUNTED if case.name == name]
    models, drafter = device_cases.random_models(case, SIZES)
    with strict_device() as recorder:
        ready = device_cases.prepared(case, models, drafter, tmp_path, DEVICE, torch.float16)
        ready.decode(device_cases.batch(2, 3), None)
    operators = {event.operator for event in recorder.events}
    assert "attention: efficient" in operators
    assert "attention: cudnn" not in operators
