"""fairseq's hub decodes with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fairseq.models.transformer import TransformerModel

import fairseq_aggdec

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


def test_what_the_hub_drops_is_adopted() -> None:
    model = hub(task=NAME, decoding="iad", **OURS)
    fairseq_aggdec.adopt(model, decoding="iad")
    assert model.translate([SENTENCE], beam=1) == [CORRECTED]
    assert model.task.counters.iterations < model.task.counters.tokens
