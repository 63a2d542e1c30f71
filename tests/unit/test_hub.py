"""fairseq's hub: what decodes with ours, and a sentence where it drops options."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models.transformer import TransformerModel

import fairseq_aggdec
from fairseq_aggdec.pipelines.takeover import is_enabled
from fairseq_aggdec.startup.hub import ANNOUNCES, watch_hub

SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints" / "ua_gec"
SENTENCE, CORRECTED = "Я знаю що ти тут .", "Я знаю , що ти тут ."


def hub(folder: Path = SHIPPED, **options: Any) -> Any:
    return TransformerModel.from_pretrained(
        str(folder),
        checkpoint_file="checkpoint.pt",
        data_name_or_path=str(SHIPPED),
        bpe="sentencepiece",
        sentencepiece_model=str(SHIPPED / "spm.model"),
        **options,
    )


OURS = {"user_dir": fairseq_aggdec.__path__[0]}
NAME = {"_name": "translation_aggdec", "data": str(SHIPPED)}


def test_a_task_with_its_options_inside_decodes_with_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = hub(task={**NAME, "decoding": "iad"}, **OURS)
    assert "stock fairseq" not in caplog.text
    assert model.translate([SENTENCE], beam=1) == [CORRECTED]
    assert model.task.counters.iterations < model.task.counters.tokens


def test_what_was_dropped_is_said_each_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fairseq_aggdec")
    for _ in range(2):
        caplog.clear()
        model = hub(task=NAME, decoding="iad", **OURS)
        (said,) = (r.getMessage() for r in caplog.records if r.name == "fairseq_aggdec.startup.hub")
        assert "decodes with --decoding beam" in said and "adopt" in said
    fairseq_aggdec.adopt(model, decoding="iad")
    assert model.translate([SENTENCE], beam=1) == [CORRECTED]
    assert model.task.counters.iterations < model.task.counters.tokens


def test_who_does_not_ask_for_us_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = torch.load(SHIPPED / "checkpoint.pt", weights_only=True)
    state["cfg"]["common"]["user_dir"] = None  # it was trained with ours
    torch.save(state, tmp_path / "checkpoint.pt")
    hub(tmp_path)
    assert not [record for record in caplog.records if record.name == "fairseq_aggdec.startup.hub"]


def test_the_log_is_no_fuller_than_before(caplog: pytest.LogCaptureFixture) -> None:
    watch_hub(is_enabled)  # a second time
    announcing = logging.getLogger(ANNOUNCES)
    assert len(announcing.filters) == 1
    with caplog.at_level(logging.WARNING, logger="fairseq"):
        announcing.info("quiet")
        announcing.warning("loud")
    with caplog.at_level(logging.INFO, logger="fairseq"):
        announcing.info("wanted")
    assert [record.getMessage() for record in caplog.records] == ["loud", "wanted"]
