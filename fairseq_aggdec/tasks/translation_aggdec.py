"""``--task translation_aggdec``: fairseq's translation task with a choice of decoders."""

from dataclasses import dataclass
from typing import Optional

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import II

from fairseq_aggdec.data.whole import naming_dictionary
from fairseq_aggdec.methods.config import DecodingConfig
from fairseq_aggdec.tasks.decoding_task import DecodingTask
from fairseq_aggdec.tasks.dictionaries import WholeDictionary


@dataclass
class CheckpointPaths(FairseqDataclass):
    """Options of other sections, as a task sees them; without help texts, which would make them flags."""

    model_paths: Optional[str] = II("common_eval.path")
    model_overrides: Optional[str] = II("common_eval.model_overrides")
    lm_path: Optional[str] = II("generation.lm_path")
    results_path: Optional[str] = II("common_eval.results_path")
    num_shards: int = II("dataset.num_shards")
    shard_id: int = II("dataset.shard_id")
    distributed_world_size: int = II("distributed_training.distributed_world_size")
    distributed_rank: int = II("distributed_training.distributed_rank")


@dataclass
class TranslationAggdecConfig(TranslationConfig, DecodingConfig, CheckpointPaths):
    """fairseq's translation options and :class:`DecodingConfig`."""


@register_task("translation_aggdec", dataclass=TranslationAggdecConfig)
class TranslationAggdecTask(DecodingTask, TranslationTask):
    """Translation whose generator is chosen by ``--decoding``; data, training and validation are stock.

    Works on checkpoints trained with the stock ``translation`` task as well as with this one.
    """

    kind = "translation_aggdec"
    cfg: TranslationAggdecConfig

    @classmethod
    def load_dictionary(cls, filename: str) -> Dictionary:
        with naming_dictionary(filename):
            return WholeDictionary.load(filename)
