"""Builds the generator of a request, and says whose scores were not finite. Loaded when something is to be decoded."""

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import split_paths

from fairseq_aggdec.engine.linear import against_bfloat16
from fairseq_aggdec.kernels.stored import used
from fairseq_aggdec.methods.method import Request
from fairseq_aggdec.methods.options.kinds import kind_of
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.methods.refusing import (
    precision,
    refuse_missing_constraints,
    refuse_senseless,
    refuse_wide_beam,
)
from fairseq_aggdec.methods.reuse import ReusableGenerator
from fairseq_aggdec.methods.table import build_generator
from fairseq_aggdec.options.hypotheses import are_hypotheses
from fairseq_aggdec.search.acceptance import trusting
from fairseq_aggdec.search.errors import (
    BROKEN,
    NonFiniteError,
    broken_weight,
    check_best,
    explained,
)
from fairseq_aggdec.search.generator import CachedGenerator
from fairseq_aggdec.stored.held_files import check_held

logger = logging.getLogger(__name__)

Models = Sequence[torch.nn.Module]


def build(
    task: Any, models: Models, args: Namespace, call_options: Mapping[str, Any], alone: bool = False
) -> Any:
    """Builds a task's generator, with the drafters and budgets of an earlier one (:mod:`fairseq_aggdec.methods.reuse`)
    and with what a folder of packed weights has for the models.

    Args:
        task: a :class:`~fairseq_aggdec.tasks.decoding_task.DecodingTask`.
        call_options: arguments of the task's own ``build_generator``.
        alone: shares nothing with earlier generators but the verifier.
    """
    refuse_senseless(args)
    with used(models) as count:
        return _build_packed(task, models, args, call_options, alone, count.sound)


def _build_packed(
    task: Any,
    models: Models,
    args: Namespace,
    call_options: Mapping[str, Any],
    alone: bool,
    sound: bool,
) -> Any:
    """Args as of :func:`build`; ``sound``: it is known that the models hold finite numbers only."""
    for model in models:
        model.eval()  # as all generators do, and as they are looked at here
    task._resolve_options(args)
    _set_precision(task, models)
    stock = cache(partial(task._build_stock, models, args, call_options))
    extra = dict(call_options.get("extra_gen_cls_kwargs") or {})
    if (function := call_options.get("prefix_allowed_tokens_fn")) is not None:
        extra["prefix_allowed_tokens_fn"] = function
    settings = read_settings(task.decoding_options, task.always_draft)
    request = Request(settings, task, models, args, stock, extra, quiet=task.quiet)
    how = precision(settings)
    known = (one for one in (task.verifier, *task.reusable.verifiers()) if one is not None)
    fitting = next((one for one in known if one.is_for(models, how)), None)
    request.known = fitting is not None
    task.verifier = fitting or task.verifier
    if not request.known and not sound:
        _warn_of_broken(task, models)
    task._log_summary_at_exit()
    light = kind_of(settings.decoding).light
    training = task.learning or getattr(task.settings, "eval_bleu", False)
    prepare = not training and not (request.known and light)
    task.asked_engines = []
    generator = build_generator(request, prepare)
    # The file of drafts may change.
    plain = light and settings.draft_from != "file" and not any(call_options.values())
    if plain and not alone and isinstance(generator, CachedGenerator) and not task.learning:
        new = ReusableGenerator(request.cfg, generator)
        task.reusable.pass_on(new, partial(build, task, models, args, call_options, alone=True))
    return generator


def _set_precision(task: Any, models: Models) -> None:
    """``--bf16``, which stock generation ignores."""
    # Where nothing filled it in, bf16 is the text of an interpolation.
    if task.decoding_options.bf16 is not True or task.learning:
        return
    logger.info("models in bfloat16 (--bf16)")
    for model in models:
        model.bfloat16()
    on_cpu = all(weight.is_cpu for model in models for weight in model.parameters())
    if on_cpu and (reason := against_bfloat16()):
        logger.warning("%s: fp32 is likely faster here than --bf16", reason)


def _warn_of_broken(task: Any, models: Models) -> None:
    """A weight that is no number ends decoding only at a sentence that needs it."""
    paths = split_paths(task.model_paths or "")
    for place, model in enumerate(models if not task.learning else ()):
        if weight := broken_weight(model):
            name = paths[place] if len(paths) == len(models) else "a model"
            logger.warning("%s: %s", name, BROKEN.format(weight))


def infer(
    task: Any, step: Any, generator: Any, models: Any, sample: Any, *more: Any, **options: Any
) -> Any:
    """``step``, the ``inference_step`` of fairseq, but scores that are not finite numbers end it, whatever decodes:
    NonFiniteError names it."""
    constraints = options.get("constraints", more[1] if len(more) > 1 else None)
    refuse_missing_constraints(generator, constraints)
    mapped = [*models, getattr(getattr(generator, "drafter", None), "model", None)]
    check_held(mapped)
    try:
        nbest = step(generator, models, sample, *more, **options)
        check_held(mapped)  # what was written to meanwhile is no output
        if type(generator) is SequenceGenerator and are_hypotheses(nbest):  # ours have looked
            check_best(nbest)
        return nbest
    except (AssertionError, NonFiniteError) as error:
        paths, named = task.model_paths, models
        if getattr(generator, "accept", None) is trusting:
            drafter: Any = generator.drafter
            paths, named = task.decoding_options.drafter_path, [drafter.model]
        if isinstance(error, AssertionError) and not any(map(broken_weight, models)):
            refuse_wide_beam(generator)
            raise  # stock search, which looks for no NaN, has a limit that it does not pass otherwise
        names = split_paths(paths) if paths else []
        row = getattr(error, "row", None)
        raise explained(row, sample, named, names) from None
