"""A replayed beam search decides as the recorded one did, on whatever model."""

from __future__ import annotations

from pathlib import Path

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench.recording import Record
from scripts import random_models
from scripts.recipes.beam import replay_beam


def tiny(folder: Path, records: list[Record], seed: int) -> Session:
    arguments = random_models.prepare(folder, "tiny", records)
    flags = random_models.SIZES["tiny"].flags()
    random_models.write_checkpoint(folder / "tiny.pt", folder, "transformer", *flags, seed=seed)
    return Session(generation_parser(None), [*arguments, "--cpu", "--max-len-b", "9"])


def test_the_recorded_outputs_are_written_again(tmp_path: Path) -> None:
    session = tiny(tmp_path / "one", [Record(i, list(range(4, 7 + i))) for i in range(4)], seed=1)
    recorded = replay_beam.record_searches(session, 3, None)
    other = tiny(tmp_path / "other", [item.record for item in recorded], seed=2)
    ours = replay_beam.replayed(other, 3, recorded)
    stock = replay_beam.stock_of_as_many_steps(other, 3, recorded)
    for index, item in enumerate(recorded):
        sample = other.dataset.collater([other.dataset[index]])
        assert ours.decode(sample) == [item.output]
        (written,) = stock.decode(sample)
        assert len(written) == item.steps
    assert ours.counters is not None
    assert ours.counters.nodes == sum(len(item.rows) for item in recorded)
