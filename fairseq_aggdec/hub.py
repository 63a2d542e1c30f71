"""fairseq's hub, ``TransformerModel.from_pretrained(..., user_dir=...)``: a word about options that it drops.

The hub builds the task that the checkpoint was trained with, which the plugin takes over. Options that this task does
not know already, such as ``decoding="iad"``, are lost on the way there. But the hub logs the configuration that came
of it: a filter there sees it, and nothing of fairseq is changed. Options arrive by ``fairseq_aggdec.adopt(model,
decoding="iad")``, or in a call: ``model.translate(sentences, decoding="iad")``.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parent
ANNOUNCES = "fairseq.models.fairseq_model"  # logs what the hub has built


def watch_hub() -> None:
    """Says how each model of a hub decodes that was told of this package."""
    announcing = logging.getLogger(ANNOUNCES)
    announcing.addFilter(tell_of_dropped_options)  # a second time changes nothing
    announcing.setLevel(
        logging.INFO
    )  # the filter sees every record, and drops what fairseq's level drops


def of_this_package(kind: type) -> bool:
    return any(one.__module__.startswith(f"{PACKAGE.name}.") for one in kind.__mro__)


def tell_of_dropped_options(record: logging.LogRecord) -> bool:
    """Logs a line if a record holds a configuration with this package as its user_dir and without ``decoding``.

    Returns:
        whether the level of fairseq's loggers lets the record pass.
    """
    from fairseq.tasks import TASK_REGISTRY

    if isinstance(cfg := record.msg, Mapping):
        common, task = cfg.get("common") or {}, cfg.get("task") or {}
        user_dir = common.get("user_dir")
        told = task if isinstance(task, Mapping) else vars(task)
        name = told.get("_name") or told.get("task")
        kind = TASK_REGISTRY.get(name)
        if kind is not None and not hasattr(kind, "taken_over") and not of_this_package(kind):
            logger.info(
                "--task %s is left to stock fairseq in this hub model: fairseq_aggdec.adopt(model) takes it over",
                name,
            )
        if user_dir and Path(user_dir).resolve() == PACKAGE and "decoding" not in told:
            logger.info(
                "this hub model decodes with --decoding beam; fairseq's hub drops other options of the plugin, which "
                "fairseq_aggdec.adopt(model, decoding=...) takes"
            )
    return record.levelno >= logging.getLogger("fairseq").getEffectiveLevel()
