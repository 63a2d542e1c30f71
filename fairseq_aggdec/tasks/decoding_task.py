"""What ``--decoding`` adds to a fairseq task: the generator of each method."""

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from fairseq.utils import split_paths

from fairseq_aggdec.drafters.draft_only import DraftOnlyGenerator
from fairseq_aggdec.engine.linear import against_bfloat16
from fairseq_aggdec.methods.method import Request
from fairseq_aggdec.methods.refusing import (
    announce_unused,
    refuse_missing_constraints,
    refuse_no_beam,
    refuse_wide_beam,
)
from fairseq_aggdec.methods.table import build_drafter, build_generator
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.errors import (
    BROKEN,
    NonFiniteError,
    broken_weight,
    check_best,
    explained,
)
from fairseq_aggdec.tasks.hooks import Hooks

logger = logging.getLogger(__name__)


class DecodingTask(Hooks):
    """Mixed in before a sequence-to-sequence task whose configuration has the fields of ``DecodingConfig``.

    Attributes:
        first_number: index of the first symbol that is a number, for ``--acceptance distance``; None where symbols are
            words.
    """

    first_number: int | None = None

    def build_generator(
        self,
        models: Sequence[torch.nn.Module],
        args: Namespace,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: Mapping[str, Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
    ) -> Any:
        """fairseq's hook; ``args`` are its generation options, complete or (``--eval-bleu-args``) a few of them."""
        refuse_no_beam(args)
        for model in models:
            model.eval()  # as all generators do, and as they are looked at here
        self._set_precision(models)
        self._warn_of_broken(models)
        announce_unused(self.cfg)
        request = self._request(models, args, extra_gen_cls_kwargs)
        request.generator_class = seq_gen_cls
        request.prefix_allowed_tokens_fn = prefix_allowed_tokens_fn
        request.make = partial(super().build_generator, models, args)
        request.drafter = partial(self.build_drafter, models=models, args=args)
        self._log_summary_at_exit()
        return build_generator(request, prepare=not getattr(self.cfg, "eval_bleu", False))

    def build_drafter(
        self, decoding: str, models: Sequence[torch.nn.Module], args: Namespace
    ) -> Drafter:
        """The drafter of a method; ``args`` are fairseq's generation options."""
        return build_drafter(decoding, self._request(models, args))

    def _request(
        self,
        models: Sequence[torch.nn.Module],
        args: Namespace,
        extra: Mapping[str, Any] | None = None,
    ) -> Request:
        make = partial(FairseqTask.build_generator, self, models, args)
        return Request(self.cfg, self, models, args, make, dict(extra or {}))

    def _set_precision(self, models: Sequence[torch.nn.Module]) -> None:
        """``--bf16``, which stock generation ignores."""
        if self.cfg.bf16 is not True or self.training:  # a name where nothing filled it in
            return
        logger.info("models in bfloat16 (--bf16)")
        for model in models:
            model.bfloat16()
        on_cpu = all(weight.is_cpu for model in models for weight in model.parameters())
        if on_cpu and (reason := against_bfloat16()):
            logger.warning("%s: fp32 is likely faster here than --bf16", reason)

    def _warn_of_broken(self, models: Sequence[torch.nn.Module]) -> None:
        """A weight that is no number ends decoding only at a sentence that needs it."""
        paths = split_paths(getattr(self.cfg, "model_paths", None) or "")
        for place, model in enumerate(models if not self.training else ()):
            if weight := broken_weight(model):
                name = paths[place] if len(paths) == len(models) else "a model"
                logger.warning("%s: %s", name, BROKEN.format(weight))

    def inference_step(self, generator: Any, models: Any, sample: Any, **options: Any) -> Any:
        """fairseq's, but scores that are not finite numbers end it, whatever decodes.

        Raises:
            NonFiniteError: names the sentence and the model.
            ValueError: a search under constraints, of sentences that have none.
        """
        refuse_missing_constraints(generator, options.get("constraints"))
        try:
            found = super().inference_step(generator, models, sample, **options)
            if type(generator) is SequenceGenerator:  # ours have looked
                check_best(found)
            return found
        except (AssertionError, NonFiniteError) as error:
            paths, named = getattr(self.cfg, "model_paths", None), models
            if isinstance(generator, DraftOnlyGenerator):
                paths, named = self.cfg.drafter_path, [generator.drafter.model]
            if isinstance(error, AssertionError) and not any(map(broken_weight, models)):
                refuse_wide_beam(generator, models)
                raise  # stock search, which looks for no NaN, has a limit that it does not pass otherwise
            names = split_paths(paths) if paths else []
            row = getattr(error, "row", None)
            raise explained(row, sample, named, names) from None
