"""Captured graphs: what a replay may rely on, and window steps that give what windows run as they are give."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.tasks.translation import TranslationTask
from torch import Tensor, nn

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import StockEncoder
from fairseq_aggdec.engine.graphs import window_graphs
from fairseq_aggdec.engine.graphs.capture import Captured, made
from fairseq_aggdec.engine.graphs.window_graphs import CapturedStep, GridSize, KeysValues
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.window import Window
from tests.reference.trees import drafted_tree
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES, Case
from tests.strict.device.graphs import CaptureError
from tests.strict.test_drafts import Prompter
from tests.strict.test_methods import SIZES, assert_equal
from tests.support import make_batch, make_model, make_task, random_sources

BY_NAME = {case.name: case for case in CASES}


def captured(function: Callable[[], Tensor], gpu: torch.device, pool: Any = None) -> Captured:
    return Captured(function, gpu, torch.cuda.graph_pool_handle() if pool is None else pool)


def strict(gpu: torch.device) -> None:
    if torch.cuda.is_available():
        pytest.skip("this is about the device that takes a GPU's place")


def test_a_replay_reads_what_stands_there_then_and_calls_nothing(gpu: torch.device) -> None:
    x, calls = torch.zeros(4, device=gpu), []

    def function() -> Tensor:
        calls.append(1)
        return (2 * x + 1).view(2, 2)[:, :1]

    graph = captured(function, gpu)
    for number in (1.0, 5.0):
        x.fill_(number)
        assert graph.replay().cpu().tolist() == [[2 * number + 1]] * 2
    assert len(calls) == 2


def test_a_capture_computes_nothing(gpu: torch.device) -> None:
    x = torch.zeros(3, device=gpu)
    graph = captured(lambda: x.add_(1), gpu)
    assert x.cpu().tolist() == [1.0] * 3  # once, to warm up
    graph.replay()
    assert x.cpu().tolist() == [2.0] * 3


def test_nothing_is_there_before_the_first_replay(gpu: torch.device) -> None:
    strict(gpu)
    x = torch.zeros(3, device=gpu)
    assert captured(lambda: x + 1, gpu).result.cpu().isnan().all()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0],
        lambda x: x * x.max().item(),
        lambda x: x + to_device([1.0, 2.0], x.device),
        lambda x: x * torch.tensor(2.0),
        lambda x: x + torch.tensor([1.0, 2.0]).pin_memory()[0],
        lambda x: x.cpu().to(x.device),
    ],
    ids=["mask", "item", "copy", "number", "pin", "round trip"],
)
def test_a_capture_refuses(function: Callable[[Tensor], Tensor], gpu: torch.device) -> None:
    strict(gpu)
    x = torch.ones(2, device=gpu)
    with pytest.raises(CaptureError):
        captured(lambda: function(x), gpu)
    assert (x + 1).cpu().tolist() == [2.0, 2.0]  # and everything goes on


def test_a_replay_misses_memory_that_was_given_up(gpu: torch.device) -> None:
    strict(gpu)
    held = [torch.ones(2, device=gpu)]
    graph = captured(lambda: held[0] + 1, gpu)
    graph.replay()
    held.clear()
    with pytest.raises(CaptureError, match="given up"):
        graph.replay()


def test_graphs_of_a_pool_share_their_memory(gpu: torch.device) -> None:
    strict(gpu)
    pool, x = torch.cuda.graph_pool_handle(), torch.ones(2, device=gpu)
    first, second = captured(lambda: x + 1, gpu, pool), captured(lambda: x + 2, gpu, pool)
    kept = first.replay()
    assert second.replay().cpu().tolist() == [3.0, 3.0]
    assert kept.cpu().isnan().all()


class Twins:
    """A decoder with graphs on the device and one without on the CPU, which are asked the same."""

    def __init__(self, gpu: torch.device, dtype: torch.dtype, seed: int, **options: Any):
        self.gpu, self.random = gpu, random.Random(seed)
        self.model = make_model(make_task(), seed, **options).to(dtype).eval()
        own = make_model(make_task(), seed, **options).to(dtype).to(gpu).eval()
        self.encoder = StockEncoder(self.model.encoder)
        self.decoder = CachedDecoder(self.model.decoder, Precision(pack=False))
        self.graphed = CachedDecoder(own.decoder, Precision(pack=False, graphs=True))

    def start(self, rows: int, longest: int, capacity: int) -> None:
        net_input = make_batch(random_sources(rows, rows, longest))["net_input"]
        out = self.encoder(net_input)
        there = {key: [t.to(self.gpu) for t in value] for key, value in out.items()}
        self.decoder.start(out, rows, capacity)
        self.graphed.start(there, rows, capacity)  # type: ignore[arg-type]
        self.places = [0] * rows

    def draw(self, device: torch.device, kind: str, drawn: list[Any]) -> Window:
        tokens, starts, blocks, parents = drawn
        if kind == "tree":
            return drafted_tree(tokens, parents, starts, device)
        flat = to_device([token for row in tokens for token in row], device)
        return Window(flat, starts, list(map(len, tokens)), blocks if kind == "block" else None)

    def compare(self, kind: str, tolerance: float) -> None:
        """A window, twice: the second time its size is known."""
        rows = range(len(self.places))
        widths = [self.random.choice([1, 2, 3, 6]) for _ in rows]
        drawn = [
            [[self.random.randrange(4, 20) for _ in range(width)] for width in widths],
            [self.random.randint(0, place) for place in self.places],
            [self.random.randint(0, width) for width in widths],
            [[self.random.randint(0, node) for node in range(width - 1)] for width in widths],
        ]
        expected = self.decoder.features(self.draw(torch.device("cpu"), kind, drawn))
        for _ in range(2):
            found = self.graphed.features(self.draw(self.gpu, kind, drawn))
            torch.testing.assert_close(found.cpu(), expected, atol=tolerance, rtol=tolerance)
        # what a tree leaves behind is no sentence: later windows begin before it or at it
        if kind == "causal":
            ends = [start + width for start, width in zip(drawn[1], widths, strict=True)]
            self.places = [max(old, new) for old, new in zip(self.places, ends, strict=True)]

    def keep(self) -> None:
        kept = self.random.sample(range(len(self.places)), self.random.randint(1, len(self.places)))
        for decoder in (self.decoder, self.graphed):
            decoder.keep_rows(kept)
        self.places = [self.places[row] for row in kept]


TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("seed", range(3))
@torch.inference_mode()
def test_any_windows(seed: int, dtype: torch.dtype, gpu: torch.device) -> None:
    """Ragged rows of any widths, plain, with blocks and with branches, while rows leave and batches follow."""
    before = made.graphs
    twins = Twins(gpu, dtype, seed, decoder_layers=2, decoder_normalize_before=seed == 1)
    for rows, longest, capacity in ((5, 12, 20), (1, 70, 70), (6, 12, 20)):
        twins.start(rows, longest, capacity)
        for step in range(6):
            for kind in ("causal", "block", "tree"):
                twins.compare(kind, TOLERANCE[dtype])
            if step % 3 == 2:
                twins.keep()
    assert made.graphs > before + 5


@torch.inference_mode()
def test_a_cache_that_outgrows_its_room(gpu: torch.device) -> None:
    twins = Twins(gpu, torch.float32, 4)
    for _ in range(2):
        twins.start(2, 5, 8)
        for _ in range(3):
            twins.compare("causal", 1e-5)
        twins.places = [70, 66]  # beyond what there is room for: zeros there, as in the twin
        twins.decoder.cache.reserve(80)
        for _ in range(2):
            twins.compare("causal", 1e-5)
    graphs = twins.graphed.graphs
    assert graphs is not None and graphs.room is not None and graphs.room.size.end == 128


@torch.inference_mode()
def test_a_cache_that_grows_within_its_room(gpu: torch.device) -> None:
    """There is room since a longer batch, of which a later one is given a part at first."""
    twins = Twins(gpu, torch.float32, 4)
    for capacity in (500, 8):
        twins.start(2, 5, capacity)
        for _ in range(2):
            twins.compare("causal", 1e-5)
    graphs = twins.graphed.graphs
    assert graphs is not None and graphs.batch is not None and graphs.room is not None
    assert graphs.batch.end < graphs.room.size.end
    room, twins.places = graphs.room, [270, 266]
    for decoder in (twins.decoder, twins.graphed):
        decoder.cache.reserve(280)
    for _ in range(2):
        twins.compare("causal", 1e-5)
    assert graphs.room is room


@torch.inference_mode()
def test_nothing_is_left_of_the_batch_before(gpu: torch.device) -> None:
    """Not even what is no number: it would spread through keys that are hidden."""
    twins = Twins(gpu, torch.float32, 5)
    twins.start(4, 12, 20)
    twins.compare("causal", 1e-5)
    room = twins.graphed.graphs and twins.graphed.graphs.room
    assert room is not None
    for part in (room.cache, room.memory, room.mask):
        part.fill_(torch.nan)
    twins.start(3, 7, 20)
    for _ in range(3):
        twins.compare("causal", 1e-5)


@torch.inference_mode()
def test_more_rows_than_a_graph_has(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_graphs, "ROWS", (1, 2, 4))
    twins = Twins(gpu, torch.float32, 6)
    twins.start(5, 6, 12)
    before = made.graphs
    twins.compare("causal", 1e-5)
    assert made.graphs == before
    twins.start(4, 6, 12)
    twins.compare("causal", 1e-5)
    assert made.graphs > before


@pytest.mark.parametrize(
    "name",
    ["greedy", "iad, unique", "gad, causal", "blockwise, dense", "nar, source copy"],
)
def test_batches_of_any_size_in_turn(name: str, gpu: torch.device, tmp_path: Path) -> None:
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    samples = [
        device_cases.batch(seed, rows, longest)
        for seed, rows, longest in ((1, 3, 9), (2, 9, 30), (3, 1, 70), (4, 3, 12))
    ]
    wanted = device_cases.expected(case, models, drafter, tmp_path, samples)
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    before = made.graphs
    for sample, reference in zip(samples, wanted, strict=True):
        assert_equal(ready.decode(sample, None), reference, gpu)
    assert made.graphs > before


def test_long_drafts_of_which_most_stand(gpu: torch.device, tmp_path: Path) -> None:
    case = Case("prompted", "greedy", generation={"max_len_b": 90})
    models, _ = device_cases.random_models(case, SIZES)
    samples = [device_cases.batch(seed, 3) for seed in (9, 10)]
    wanted = device_cases.expected(case, models, None, tmp_path, samples)
    ready = device_cases.prepared(case, models, None, tmp_path, gpu)
    for sample, reference in zip(samples, wanted, strict=True):
        outputs = [ranked[0]["tokens"].tolist() for ranked in reference]
        ready.generator.drafter = Prompter(outputs, 0.9)
        assert_equal(ready.decode(sample, None), reference, gpu)


CHANGING = [
    *("greedy", "gad", "gad, next, chain, causal", "nar, chain", "nar, source copy"),
    *("blockwise, dense", "blockwise, per head", "beam 3", "no repeated n-grams, gad"),
]


@pytest.mark.parametrize("name", CHANGING)
def test_weights_that_change(name: str, gpu: torch.device, tmp_path: Path) -> None:
    """In place, as an optimiser writes them, or in other memory."""
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(1, 3)
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    parts = [*zip(models, ready.models, strict=True)]
    if drafter is not None:
        parts.append((drafter, ready.generator.drafter.model))
    told = []
    for moved in (False, True, False):
        (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
        for _ in range(3):
            found = ready.decode(sample, None)
            assert_equal(found, wanted, gpu, 5e-4)
        told.append([ranked[0]["tokens"].tolist() for ranked in found])
        for theirs, own in parts:
            for one, other in zip(theirs.parameters(), own.parameters(), strict=True):
                one.data.mul_(-1.3)
                other.data.mul_(-1.3)
            if moved:
                move(own)
    assert told[0] != told[1] != told[2]


def move(model: Any) -> None:
    """Puts all parameters into other memory; what was tied stays tied."""
    anew: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for key, weight in module._parameters.items():
            if weight is not None:
                copied = nn.Parameter(weight.detach().clone())
                module._parameters[key] = anew.setdefault(id(weight), copied)


@pytest.mark.parametrize(
    "name", ["greedy", "gad, source copy", "blockwise, dense", "iad, unique", "beam 3"]
)
def test_memory_is_given_back(name: str, gpu: torch.device, tmp_path: Path) -> None:
    """After a validation, when training goes on; the next one makes everything anew."""
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(1, 3)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    for _ in range(2):
        before = made.graphs
        for _ in range(3):
            assert_equal(ready.decode(sample, None), wanted, gpu)
        assert made.graphs > before
        kept = ready.generator.verifier.members[0].decoder.graphs
        room = weakref.ref(kept.room)
        del kept
        ready.task.sequence_generator, ready.task.validated = ready.generator, True
        with mock.patch.object(TranslationTask, "train_step"):
            ready.task.train_step(None, None, None, None)
        gc.collect()
        assert room() is None


@pytest.mark.parametrize("name", ["greedy", "iad", "gad"])
def test_without_graphs(name: str, gpu: torch.device, tmp_path: Path) -> None:
    case = BY_NAME[f"{name}, no graphs"]
    models, drafter = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(1, 3)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    before = made.graphs
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    for _ in range(2):
        assert_equal(ready.decode(sample, None), wanted, gpu)
    assert made.graphs == before
    # The device goes on alone all the same.
    assert ready.generator.memory.device_loop.board is not None


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@torch.inference_mode()
def test_a_step_has_no_break(tree: bool) -> None:
    """A compiler sees all of it, whatever the numbers are: nothing in it asks the host."""
    model = make_model(make_task(), 3)
    decoder = CachedDecoder(model.decoder, Precision(pack=False))
    net_input = make_batch(random_sources(3, 2))["net_input"]
    decoder.start(StockEncoder(model.encoder)(net_input), 2, 64)
    memory = list(decoder.cache.memory)
    kept = KeysValues(decoder.cache.entries, memory, decoder.cache.memory_mask)
    size = GridSize(2, 4, 64, memory[0].size(1), tree)
    tokens = torch.tensor([5, 6, 7, 8, 9])
    step = CapturedStep(size, decoder.run_on_grid, kept, tokens)
    decoder.embedding.positions(8)
    step.read_input[:5] = tokens
    step.numbers[0, :5] = torch.arange(5)
    expected = step._features()
    torch._dynamo.reset()
    compiled = torch.compile(step._features, fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(compiled(), expected)
