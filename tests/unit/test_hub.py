"""fairseq's hub: what decodes with ours, and a warning in one sentence where it decodes with stock."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models.transformer import TransformerModel

import fairseq_aggdec
from fairseq_aggdec.hub import ANNOUNCES, watch_hub

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


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("translation_aggdec", "takes the checkpoint's own task"),
        (NAME, "drops options beside task="),
    ],
    ids=["a name", "options outside"],
)
def test_what_decodes_with_stock_says_so_each_time(
    task: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        caplog.clear()
        hub(task=task, decoding="iad", **OURS)
        (said,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
        assert reason in said and "fairseq_aggdec.from_pretrained" in said


def test_who_does_not_ask_for_us_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = torch.load(SHIPPED / "checkpoint.pt", weights_only=True)
    state["cfg"]["common"]["user_dir"] = None  # it was trained with ours
    torch.save(state, tmp_path / "checkpoint.pt")
    hub(tmp_path)
    assert "stock fairseq" not in caplog.text


def test_the_log_is_no_fuller_than_before(caplog: pytest.LogCaptureFixture) -> None:
    watch_hub()  # a second time
    announcing = logging.getLogger(ANNOUNCES)
    assert len(announcing.filters) == 1
    with caplog.at_level(logging.WARNING, logger="fairseq"):
        announcing.info("quiet")
        announcing.warning("loud")
    with caplog.at_level(logging.INFO, logger="fairseq"):
        announcing.info("wanted")
    assert [record.getMessage() for record in caplog.records] == ["loud", "wanted"]
