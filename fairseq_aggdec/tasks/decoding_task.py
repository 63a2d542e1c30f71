"""What ``--decoding`` adds to a fairseq task: the generator of each method, its counters, no lost sentence."""

import atexit
import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask

from fairseq_aggdec.decoding.counters import Counters
from fairseq_aggdec.decoding.drafter import Drafter, EmptyDrafter
from fairseq_aggdec.decoding.generator import AlignedGenerator, DraftAndVerifyGenerator
from fairseq_aggdec.decoding.interleaved import build_interleaved_generator
from fairseq_aggdec.decoding.linear import multiplies_bfloat16
from fairseq_aggdec.decoding.options import (
    acceptance_rule,
    announce_ngram_blocking,
    announce_unused,
    blockwise_size,
    drafted_size,
    proposing,
    refusal,
    refuse_slots,
    refuse_unsupported,
    set_greedy_beam,
)
from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.draft_only import DraftOnlyGenerator
from fairseq_aggdec.drafters.from_text import build_text_drafter
from fairseq_aggdec.drafters.input_copy import InputCopyDrafter
from fairseq_aggdec.drafters.loading import load_drafter
from fairseq_aggdec.drafters.nar import NarDrafter, check_shared_encoder
from fairseq_aggdec.lattice.decoding import build_lattice_generator
from fairseq_aggdec.lattice.shortlist import build_shortlist

logger = logging.getLogger(__name__)


class DecodingTask(FairseqTask):
    """Mixed in before a sequence-to-sequence task whose configuration has the fields of ``DecodingConfig``.

    Attributes:
        counters: of everything that this task's generators decoded.
        first_number: index of the first symbol that is a number, for ``--acceptance distance``; None where symbols are
            words.
    """

    first_number: int | None = None

    def __init__(self, cfg: Any, *args: Any, **kwargs: Any):
        super().__init__(cfg, *args, **kwargs)
        self.counters = Counters()
        self.summary_at_exit = False
        self.training = False

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

    def train_step(
        self, sample: Any, model: Any, criterion: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """fairseq's, with ``--amp`` on CPU too: products in bfloat16, weights and sums in fp32."""
        with torch.autocast("cpu", torch.bfloat16, enabled=isinstance(optimizer, AMPOptimizer)):
            return super().train_step(sample, model, criterion, optimizer, *args, **kwargs)

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
            # Not mean_accepted, which is what a criterion measures, by other means and on other positions.
            emitted = sum(log.get("_emitted", 0) for log in logging_outputs)
            metrics.log_scalar("decoded_accepted", emitted / iterations, iterations, round=2)

    def build_generator(
        self,
        models: Sequence[torch.nn.Module],
        args: Namespace,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: Mapping[str, Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
    ) -> Any:
        """fairseq's hook; ``args`` are its generation options, complete or (``--eval-bleu-args``) a few of them."""
        if self.cfg.bf16 is True and not self.training:  # a name where nothing filled it in
            logger.info("models in bfloat16 (--bf16)")
            for model in models:
                model.bfloat16()
            on_cpu = all(weight.is_cpu for model in models for weight in model.parameters())
            if on_cpu and not multiplies_bfloat16():
                logger.warning(
                    "this processor does not multiply bfloat16: fp32 is faster here than --bf16"
                )
        decoding = str(self.cfg.decoding)
        extra = dict(extra_gen_cls_kwargs or {})
        announce_unused(self.cfg)
        shortlist = build_shortlist(self.cfg, self, args)
        if decoding == "beam" or getattr(args, "score_reference", False):
            return super().build_generator(
                models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn
            )
        if prefix_allowed_tokens_fn is not None:
            reason = "a search under constraints needs --decoding beam"
            raise ValueError(refusal("prefix_allowed_tokens_fn", decoding, reason))
        self._log_summary_at_exit()
        if decoding == "interleaved":
            return build_interleaved_generator(self.cfg, self, models, args, extra)
        if decoding == "lattice":
            return build_lattice_generator(self.cfg, self, models, args, extra)
        refuse_unsupported(args, extra, decoding)
        refuse_slots(models, decoding)
        set_greedy_beam(args, decoding)
        announce_ngram_blocking(args)
        generator_class: Any = DraftOnlyGenerator if decoding == "nar" else DraftAndVerifyGenerator
        if getattr(args, "print_alignment", None):
            if decoding == "nar":
                raise ValueError("--print-alignment does not go with --decoding nar: use gad")
            generator_class = AlignedGenerator
            extra["print_alignment"] = args.print_alignment
        extra |= {
            "drafter": self.build_drafter(decoding, models, args),
            "accept": acceptance_rule(self.cfg, self.first_number),
            "counters": self.counters,
            "pack": not self.cfg.no_weight_packing,
            "retain_history": bool(getattr(args, "retain_iter_history", False)),
            "shortlist": shortlist,
        }
        return super().build_generator(models, args, generator_class, extra)

    def build_drafter(
        self, decoding: str, models: Sequence[torch.nn.Module], args: Namespace
    ) -> Drafter:
        """The drafter of a method; ``args`` are fairseq's generation options."""
        if decoding == "greedy":
            return EmptyDrafter()
        if decoding == "blockwise":
            return BlockwiseHeadsDrafter(blockwise_size(self.cfg, models), proposing(self.cfg))
        if decoding in ("gad", "nar"):
            return self._nar_drafter(decoding, models)
        device = next(models[0].parameters()).device
        if str(self.cfg.draft_from) != "source" or self.cfg.draft_file:
            return build_text_drafter(self.cfg, self, models[0], args)
        return InputCopyDrafter(
            self.source_dictionary, self.target_dictionary, str(self.cfg.iad_match), device.type
        )

    def _nar_drafter(self, decoding: str, models: Sequence[Any]) -> NarDrafter:
        if not self.cfg.drafter_path:
            raise ValueError(
                f"--decoding {decoding} needs a drafter (--arch nar_drafter): name its checkpoint with --drafter-path"
            )
        drafter = load_drafter(self.cfg.drafter_path, self)
        drafter.to(next(models[0].parameters()))  # device and precision
        if drafter.shares_encoder and len(models) == 1:
            check_shared_encoder(drafter, models[0])
        return NarDrafter(
            drafter,
            drafted_size(self.cfg, drafter),
            not self.cfg.no_weight_packing,
            proposing(self.cfg),
        )

    def _log_summary_at_exit(self) -> None:
        # fairseq's tools have no hook for the end of a run; training reports through its metrics instead.
        if not self.summary_at_exit and not getattr(self.cfg, "eval_bleu", False):
            self.summary_at_exit = True
            atexit.register(self._log_summary)

    def _log_summary(self) -> None:
        if self.counters.sentences:
            logger.info("decoding summary: %s", self.counters.summary())
