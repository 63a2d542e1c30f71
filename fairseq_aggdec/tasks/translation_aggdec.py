"""``--task translation_aggdec``: fairseq's translation task with a choice of decoders."""

import atexit
import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import II

from fairseq_aggdec import compat
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
            atexit.register(lambda: logger.info("decoding summary: %s", self.counters.summary()))
