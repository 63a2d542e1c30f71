"""``--task translation_aggdec``: fairseq's translation task with a choice of decoders."""

import atexit
import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import II

from fairseq_aggdec.checkpoints import check_models
from fairseq_aggdec.decoding.acceptance import exact
from fairseq_aggdec.decoding.config import DecodingConfig
from fairseq_aggdec.decoding.counters import Counters
from fairseq_aggdec.decoding.generator import AlignedGenerator, DraftAndVerifyGenerator
from fairseq_aggdec.decoding.options import (
    announce_ngram_blocking,
    refuse_unsupported,
    set_greedy_beam,
)
from fairseq_aggdec.drafters.base import Drafter, EmptyDrafter
from fairseq_aggdec.drafters.input_copy import InputCopyDrafter

logger = logging.getLogger(__name__)


@dataclass
class TranslationAggdecConfig(TranslationConfig, DecodingConfig):
    """fairseq's translation options and :class:`DecodingConfig`."""

    # --path, seen from the task; no help text, so that fairseq makes no flag of it.
    model_paths: Optional[str] = II("common_eval.path")


@register_task("translation_aggdec", dataclass=TranslationAggdecConfig)
class TranslationAggdecTask(TranslationTask):
    """Translation whose generator is chosen by ``--decoding``; data, training and validation are stock.

    Works on checkpoints trained with the stock ``translation`` task as well as with this one.
    """

    cfg: TranslationAggdecConfig

    def __init__(self, cfg: TranslationAggdecConfig, src_dict: Any, tgt_dict: Any):
        super().__init__(cfg, src_dict, tgt_dict)
        self.counters = Counters()
        self.summary_at_exit = False
        self.training = False

    @classmethod
    def setup_task(cls, cfg: TranslationAggdecConfig, **kwargs: Any) -> "TranslationAggdecTask":
        task = super().setup_task(cfg, **kwargs)
        dictionaries = {"source": task.source_dictionary, "target": task.target_dictionary}
        check_models(cfg.model_paths, dictionaries, cfg.data)
        return task

    def build_criterion(self, *args: Any, **kwargs: Any) -> Any:
        self.training = True  # only training and validation ask for a criterion
        return super().build_criterion(*args, **kwargs)

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Stock batching, but no sentence is lost.

        fairseq drops the end of a set that does not fill ``--required-batch-size-multiple`` (default 8), which is
        harmless in training only.
        """
        if not (self.training and dataset is self.datasets.get(self.cfg.train_subset)):
            kwargs["required_batch_size_multiple"] = 1
        return super().get_batch_iterator(dataset, *args, **kwargs)

    def valid_step(self, sample: Any, model: Any, criterion: Any) -> Any:
        tokens, iterations = self.counters.tokens, self.counters.iterations
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        if self.counters.iterations > iterations:
            logging_output["_emitted"] = self.counters.tokens - tokens
            logging_output["_iterations"] = self.counters.iterations - iterations
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs: Any, criterion: Any) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        iterations = sum(log.get("_iterations", 0) for log in logging_outputs)
        if iterations:
            emitted = sum(log.get("_emitted", 0) for log in logging_outputs)
            metrics.log_scalar("mean_accepted", emitted / iterations, iterations, round=2)

    def build_generator(
        self,
        models: Sequence[torch.nn.Module],
        args: Namespace,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: Mapping[str, Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
    ) -> Any:
        """fairseq's hook; ``args`` are its generation options, complete or (``--eval-bleu-args``) a few of them."""
        decoding = str(self.cfg.decoding)
        extra = dict(extra_gen_cls_kwargs or {})
        if decoding == "beam" or getattr(args, "score_reference", False):
            return super().build_generator(
                models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn
            )
        refuse_unsupported(args, extra, decoding)
        set_greedy_beam(args, decoding)
        announce_ngram_blocking(args)
        generator_class: Any = DraftAndVerifyGenerator
        if getattr(args, "print_alignment", None):
            generator_class = AlignedGenerator
            extra["print_alignment"] = args.print_alignment
        extra |= {
            "drafter": self.build_drafter(decoding, models),
            "accept": exact,
            "counters": self.counters,
            "pack": not self.cfg.no_weight_packing,
            "retain_history": bool(getattr(args, "retain_iter_history", False)),
        }
        self._log_summary_at_exit()
        return super().build_generator(models, args, generator_class, extra)

    def build_drafter(self, decoding: str, models: Sequence[torch.nn.Module]) -> Drafter:
        """The drafter of a method."""
        if decoding == "greedy":
            return EmptyDrafter()
        device = next(models[0].parameters()).device
        return InputCopyDrafter(
            self.source_dictionary, self.target_dictionary, str(self.cfg.iad_match), device.type
        )

    def _log_summary_at_exit(self) -> None:
        # fairseq's tools have no hook for the end of a run; training reports through its metrics instead.
        if not self.summary_at_exit and not self.cfg.eval_bleu:
            self.summary_at_exit = True
            atexit.register(self._log_summary)

    def _log_summary(self) -> None:
        if self.counters.sentences:
            logger.info("decoding summary: %s", self.counters.summary())
