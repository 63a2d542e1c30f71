"""The start of a batch as captured graphs: what an encoder gives that runs as it is, whatever was decoded before."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.engine.encoder import FastEncoder, StockEncoder
from fairseq_aggdec.engine.graphs import start_graphs
from fairseq_aggdec.engine.graphs.capture import made
from fairseq_aggdec.engine.graphs.start_graphs import StartGraphs, grid_length
from fairseq_aggdec.engine.graphs.streams import BESIDE, CAPTURE, CAPTURE_BESIDE, side_stream
from fairseq_aggdec.engine.graphs.window_graphs import ROWS, grid_end, grid_rows
from fairseq_aggdec.engine.member import Member
from fairseq_aggdec.engine.precision import Precision
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES
from tests.strict.test_methods import SIZES, assert_equal
from tests.support import make_model, make_task

BY_NAME = {case.name: case for case in CASES}
PAD, FIRST = 1, 4


def sources(chance: random.Random, rows: int, length: int, left: bool) -> Tensor:
    """(rows, length) tokens with padding before or behind them; one row has none."""
    found = torch.full((rows, length), PAD)
    for row in range(rows):
        count = length if row == 0 else chance.randint(1, length)
        tokens = torch.tensor([chance.randrange(FIRST, 12) for _ in range(count - 1)] + [2])
        found[row, length - count if left else 0 :][:count] = tokens
    return found


def read(member: Member, source: Tensor) -> Any:
    member.begin({"src_tokens": source, "src_lengths": (source != PAD).sum(1)}, 20)
    return member.encoder_out


def member_of(model: Any, device: torch.device, **options: Any) -> Member:
    found = Member(model.to(device).eval(), Precision(pack=False, **options))
    found.refresh()
    return found


@torch.inference_mode()
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float16, 0.03)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoder_learned_pos": True, "max_source_positions": 40},
        {"layernorm_embedding": True},
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
    ],
    ids=["sinusoids", "learned", "norm", "norms before"],
)
def test_sources_are_read_as_without_graphs(
    options: dict[str, Any], dtype: torch.dtype, tolerance: float, gpu: torch.device
) -> None:
    plain, own = (make_model(make_task(), 1, **options).to(dtype) for _ in range(2))
    stock, member = StockEncoder(plain.eval().encoder), member_of(own, gpu, graphs=True)
    chance = random.Random(3)
    shapes = [
        (1, 5),
        (2, 16),
        (3, 16),
        (3, 17),
        (2, 40),
        (9, 33),
        (3, 16),
        (1, 3),
        (2, 39),
        (9, 40),
    ]
    for rows, length in [*shapes, *shapes]:
        source = sources(chance, rows, length, left=chance.random() < 0.5)
        wanted = stock({"src_tokens": source, "src_lengths": (source != PAD).sum(1)})
        found, real = read(member, source.to(gpu)), source != PAD
        states = found["encoder_out"][0].transpose(0, 1).cpu()[real]
        expected = wanted["encoder_out"][0].transpose(0, 1)[real]
        assert torch.allclose(states.float(), expected.float(), atol=tolerance)
        embeddings = found["encoder_embedding"][0].cpu()[real]
        expected = wanted["encoder_embedding"][0][real]
        assert torch.allclose(embeddings.float(), expected.float(), atol=tolerance)
        assert found.keys() == wanted.keys()
        masks = found["encoder_padding_mask"]
        assert bool(masks) == (not bool(real.all()))
        assert not masks or torch.equal(masks[0].cpu(), ~real)
        assert found["src_lengths"][0].flatten().tolist() == real.sum(1).tolist()
        laid_out(member, rows, length, real)
    assert isinstance(member.decoder.starts, StartGraphs)
    assert member.decoder.starts.starts.keys() & member.decoder.graphs.graphs.captured.keys()


def laid_out(member: Member, rows: int, length: int, real: Tensor) -> None:
    """Keys of padding and of rows without a sentence are hidden, and there are no numbers that are none."""
    graphs, cache = member.decoder.graphs, member.decoder.cache
    room = graphs.room
    seen = room.mask[: graphs.batch.rows, 0, 0, : graphs.batch.sources].cpu() == 0
    before = grid_length(length) - length
    assert torch.equal(seen[:rows, before : before + length], real)
    assert seen[:rows].sum() == real.sum() and bool((seen.sum(1) > 0).all())
    assert bool(room.memory[:, : graphs.batch.rows].isfinite().all().cpu())
    assert cache.entries.shape[:3] == (len(cache.memory), rows, graphs.batch.end)
    assert not bool(cache.entries.any().cpu())


@torch.inference_mode()
def test_a_size_follows_from_the_batch_alone(gpu: torch.device) -> None:
    """The same numbers, bit for bit, before a graph was captured and after others were."""
    member = member_of(make_model(make_task(), 1).to(torch.float16), gpu, graphs=True)
    chance = random.Random(1)
    source = sources(chance, 3, 11, left=True).to(gpu)
    first = read(member, source)["encoder_out"][0].cpu()
    for rows, length in ((8, 30), (1, 60), (3, 11), (3, 12), (8, 30)):
        read(member, sources(chance, rows, length, left=True).to(gpu))
    graphs = made.graphs
    again = read(member, source)["encoder_out"][0].cpu()
    assert torch.equal(first, again) and made.graphs == graphs


def test_sizes_leave_at_most_a_third_unused() -> None:
    for tokens in range(1, 2000):
        length = grid_length(tokens)
        assert length >= tokens and length % 16 == 0
        assert length - tokens <= max(15, length / 3) and grid_end(length) == grid_end(tokens)


@torch.inference_mode()
@pytest.mark.parametrize("reason", ["a hook", "too many rows", "too many tokens", "too long"])
def test_what_is_read_as_it_is(
    reason: str, gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(make_task(), 1, max_source_positions=30)
    rows, length = 2, 20
    if reason == "a hook":
        model.encoder.layers[0].register_forward_hook(lambda *_: None)
    elif reason == "too many rows":
        rows = ROWS[-1] + 1
    elif reason == "too many tokens":
        monkeypatch.setattr(start_graphs, "MOST", 32)
    else:
        length = 31
    member = member_of(model, gpu, graphs=True)
    for _ in range(3):
        source = sources(random.Random(2), rows, length, left=True).to(gpu)
        found = read(member, source)
    assert found["encoder_out"][0].shape[:2] == (length, rows)
    assert isinstance(member.encoder, FastEncoder) == (reason != "a hook")
    starts = member.decoder.starts
    assert starts is None or not starts.starts


def test_what_runs_at_the_same_time_has_other_scratch_memory(
    gpu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafter reads the source beside the verifier: its graph is captured on a stream of its own."""
    case = BY_NAME["gad"]
    models, drafter = device_cases.random_models(case, SIZES)
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    sample = device_cases.batch(1, 3)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    for _ in range(3):
        assert_equal(ready.decode(sample, None), wanted, gpu)
    generator = ready.generator
    readers = generator.verifier.members[0].decoder, generator.drafter.slots.reader
    sizes = [size for reader in readers for size in reader.starts.starts]
    assert [size.purpose for size in sizes] == [CAPTURE, CAPTURE_BESIDE]
    assert sizes[0][:2] == sizes[1][:2] == (grid_rows(3), 16)
    purposes = BESIDE, CAPTURE, CAPTURE_BESIDE
    assert len({id(side_stream(gpu, purpose)) for purpose in purposes}) == 3


@pytest.mark.parametrize("name", ["greedy", "gad"])
def test_graphs_are_captured_anew_after_an_update_of_the_weights(
    name: str, gpu: torch.device, tmp_path: Path
) -> None:
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    sample, told = device_cases.batch(1, 3), []
    parts = [(models[0], ready.models[0])]
    if drafter is not None:
        parts.append((drafter, ready.generator.drafter.model))
    for _ in range(2):
        (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
        for _ in range(3):
            assert_equal(ready.decode(sample, None), wanted, gpu)
        generator = ready.generator
        readers = [generator.verifier.members[0].decoder]
        if drafter is not None:
            readers.append(generator.drafter.slots.reader)
        told.append(
            [r.graphs.graphs.captured.get(size) for r in readers for size in r.starts.starts]
        )
        for theirs, own in parts:
            for one, other in zip(theirs.parameters(), own.parameters(), strict=True):
                one.data.mul_(-1.3)
                other.data.mul_(-1.3)
    assert all(all(captured) and len(captured) == len(parts) for captured in told)
    assert not any(first is second for first, second in zip(*told, strict=True))
