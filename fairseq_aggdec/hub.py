"""fairseq's hub, ``TransformerModel.from_pretrained(..., user_dir=...)``: a word where it does not do as asked.

The hub builds the task that the checkpoint was trained with. A name in ``task=`` is ignored for it, and so are options
that this task does not have; none of our code runs then. But the hub logs the configuration that came of it: a filter
there sees it, and nothing of fairseq is changed. What works is a ``task`` that holds the options (or a checkpoint that
was trained with our task)::

    TransformerModel.from_pretrained(
        folder, checkpoint_file="model.pt", user_dir=fairseq_aggdec.__path__[0],
        task={"_name": "translation_aggdec", "data": data, "decoding": "iad"},
    )
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parent
ANNOUNCES = "fairseq.models.fairseq_model"  # logs what the hub has built
TASK = "translation_aggdec"
WHAT_TO_DO = (
    f'give task={{"_name": "{TASK}", "data": ..., "decoding": ...}}, or use '
    "fairseq_aggdec.from_pretrained(path, data, decoding=...)"
)


def watch_hub() -> None:
    """Says so for each model of a hub that was told of this package and does not decode as it was asked to."""
    announcing = logging.getLogger(ANNOUNCES)
    if not any(isinstance(present, HubFilter) for present in announcing.filters):
        announcing.addFilter(HubFilter())
    announcing.setLevel(logging.INFO)  # it is asked at every level of the others; see HubFilter


class HubFilter(logging.Filter):
    """Lets every record pass that the root's level lets pass, and looks at configurations among them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, Mapping):
            warn_about_stock(record.msg)
        return record.levelno >= logging.getLogger("fairseq").getEffectiveLevel()


def warn_about_stock(cfg: Mapping[str, Any]) -> None:
    """A warning if a configuration names this package but its task is not ours, or does not say how to decode."""
    common, task = cfg.get("common") or {}, cfg.get("task") or {}
    user_dir = common.get("user_dir")
    if not user_dir or Path(user_dir).resolve() != PACKAGE or not isinstance(task, Mapping):
        return
    name = task.get("_name")
    if name == TASK and "decoding" not in task:
        logger.warning(
            "this hub model decodes with --decoding beam, as fairseq's hub drops options beside task=: %s",
            WHAT_TO_DO,
        )
    elif name == "translation":
        logger.warning(
            "this hub model decodes with stock fairseq, as fairseq's hub takes the checkpoint's own task, which is "
            "translation: %s",
            WHAT_TO_DO,
        )
