"""``--task translation_aggdec``: fairseq's translation task with a choice of decoders."""

from dataclasses import dataclass
from typing import Any, Optional

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import II

from fairseq_aggdec.checkpoints import check_models
from fairseq_aggdec.methods.config import DecodingConfig
from fairseq_aggdec.tasks.decoding_task import DecodingTask


@dataclass
class TranslationAggdecConfig(TranslationConfig, DecodingConfig):
    """fairseq's translation options and :class:`DecodingConfig`."""

    # --path, seen from the task; no help text, so that fairseq makes no flag of it.
    model_paths: Optional[str] = II("common_eval.path")


@register_task("translation_aggdec", dataclass=TranslationAggdecConfig)
class TranslationAggdecTask(DecodingTask, TranslationTask):
    """Translation whose generator is chosen by ``--decoding``; data, training and validation are stock.

    Works on checkpoints trained with the stock ``translation`` task as well as with this one.
    """

    cfg: TranslationAggdecConfig

    @classmethod
    def setup_task(cls, cfg: TranslationAggdecConfig, **kwargs: Any) -> "TranslationAggdecTask":
        task = super().setup_task(cfg, **kwargs)
        dictionaries = {"source": task.source_dictionary, "target": task.target_dictionary}
        check_models(cfg.model_paths, dictionaries, cfg.data)
        return task
