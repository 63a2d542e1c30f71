"""fairseq's hub, ``TransformerModel.from_pretrained(..., user_dir=...)``: a word about options that it drops.

The hub builds the task that the checkpoint was trained with, which the plugin takes over. Options that this task does
not know already, such as ``decoding="iad"``, are lost on the way there. But the hub logs the configuration that came
of it: a filter there sees it, and nothing of fairseq is changed. Options arrive by ``fairseq_aggdec.adopt(model,
decoding="iad")``, or in a call: ``model.translate(sentences, decoding="iad")``.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parents[1]
ANNOUNCES = "fairseq.models.fairseq_model"  # logs what the hub has built


def watch_hub(is_enabled: Callable[[], bool]) -> None:
    """Says how each model of a hub decodes that was told of this package.

    Args:
        is_enabled: tells whether somebody has asked for the plugin, so that tasks that it took over decode with it.
    """
    announcing = logging.getLogger(ANNOUNCES)
    announcing.addFilter(HubWatch(is_enabled))  # a second time changes nothing
    announcing.setLevel(
        logging.INFO
    )  # the filter sees every record, and drops what fairseq's level drops


def of_this_package(kind: type) -> bool:
    return any(one.__module__.startswith(f"{PACKAGE.name}.") for one in kind.__mro__)


@dataclass(frozen=True)
class HubWatch:
    """A filter of the log, which reads the configurations that the hub logs there."""

    is_enabled: Callable[[], bool]

    def filter(self, record: logging.LogRecord) -> bool:
        """Logs a line about the model of a configuration: by which task stock fairseq decodes it, or that options of
        the plugin were dropped.

        Returns:
            whether the level of fairseq's loggers lets the record pass.
        """
        if isinstance(cfg := record.msg, Mapping):
            common, task = cfg.get("common") or {}, cfg.get("task") or {}
            self._tell(common.get("user_dir"), task if isinstance(task, Mapping) else vars(task))
        return record.levelno >= logging.getLogger("fairseq").getEffectiveLevel()

    def _tell(self, user_dir: str | None, task: Mapping[str, Any]) -> None:
        name = task.get("_name") or task.get("task")
        ours = bool(user_dir) and Path(str(user_dir)).resolve() == PACKAGE
        if self._is_stock(name, bool(user_dir) and not ours):
            logger.warning(
                "--task %s is left to stock fairseq in this hub model: fairseq_aggdec.adopt(model) takes it over",
                name,
            )
        elif ours and "decoding" not in task:
            logger.info(
                "this hub model decodes with --decoding beam; fairseq's hub drops other options of the plugin, which "
                "fairseq_aggdec.adopt(model, decoding=...) takes"
            )

    def _is_stock(self, name: str | None, of_others: bool) -> bool:
        """Tells whether stock fairseq decodes with a task, and who loads it should know: it came after the plugin, or
        (``of_others``) with a user-dir beside which nobody has asked for the plugin."""
        from fairseq.tasks import TASK_REGISTRY

        kind = TASK_REGISTRY.get(name)
        if kind is None:
            return False
        if getattr(kind, "taken_over", None) is not None:
            return of_others and not self.is_enabled()
        return not of_this_package(kind)
