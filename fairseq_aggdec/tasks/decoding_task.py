"""A mixin for fairseq tasks: ``build_generator`` gives the generator of ``--decoding`` in place of the task's own."""

import inspect
import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.fairseq_task import StatefulContainer
from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf

from fairseq_aggdec.engine.linear import against_bfloat16
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.stored import used
from fairseq_aggdec.methods.config import add_decoding_options
from fairseq_aggdec.methods.method import Request
from fairseq_aggdec.methods.options.kinds import kind_of
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.methods.refusing import (
    precision,
    refuse_missing_constraints,
    refuse_senseless,
    refuse_wide_beam,
)
from fairseq_aggdec.methods.table import build_generator, method_of
from fairseq_aggdec.options.hypotheses import are_hypotheses
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.errors import (
    BROKEN,
    NonFiniteError,
    broken_weight,
    check_best,
    explained,
)
from fairseq_aggdec.search.generator import CachedGenerator
from fairseq_aggdec.search.greedy.generator import DraftAndVerifyGenerator
from fairseq_aggdec.tasks.decoding_options import resolve_options
from fairseq_aggdec.tasks.hooks import Hooks
from fairseq_aggdec.tasks.reuse import ReusableGenerator, ReusableGenerators

logger = logging.getLogger(__name__)


class DecodingTask(Hooks):
    """Mixed in before any task: its generator is taken over where ``--decoding`` can give what it gives.

    Attributes:
        first_number: index of the first symbol that is a number, for ``--acceptance distance``; None where symbols are
            words.
        decoding_options: the plugin's options of the generator that was built last.
        hidden: names of the plugin's options that mean something else in this task.
        given: options of the plugin that were given beside the task's configuration.
        always_draft: drafts in every iteration, unless an option says how much; else where that pays.
        quiet: options without effect are not named: a tool decodes with another method than the command line's.
        verifier: of the last generator, which the next one shares: fairseq's hub builds a generator for every call.
        reusable: the last generators, whose drafters and budgets go on in calls with the same options.
    """

    first_number: int | None = None
    always_draft = False
    quiet = False
    hidden: frozenset[str] = frozenset()
    given: Mapping[str, Any] = MappingProxyType({})
    verifier: Verifier | None
    reusable: ReusableGenerators
    decoding_options: Any

    def begin(self) -> None:
        super().begin()
        self.verifier = None
        self.reusable = ReusableGenerators()
        self.decoding_options = resolve_options(self.settings, None, self.hidden, self.given)
        read_settings(self.decoding_options)  # a wrong option is told before anything is loaded

    def __getstate__(self) -> dict[str, Any]:
        """All but what was made for decoding, which a copy makes anew.

        fairseq's container of state cannot be read back, and its configurations have types that pickle does not find.
        """
        state = vars(self) | {"verifier": None, "reusable": ReusableGenerators()}
        for name, value in state.items():
            if isinstance(value, DictConfig):
                plain = OmegaConf.to_container(value, resolve=True, enum_to_str=True)
                state[name] = OmegaConf.create(plain)
        return state | {"state": vars(self.state)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, state=StatefulContainer())
        self.state.__dict__.update(state["state"])

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """fairseq's hook. It passes over options that a parser has, so that ours come first, in a group."""
        add_decoding_options(parser)
        super().add_args(parser)

    def build_generator(
        self,
        models: Sequence[torch.nn.Module],
        args: Namespace,
        *more: Any,
        **named: Any,
    ) -> Any:
        """fairseq's hook; ``args`` are its generation options, complete or (``--eval-bleu-args``) a few of them.

        What else is given is for the task's own hook, which may know other arguments than fairseq's.
        """
        refuse_senseless(args)
        names = list(inspect.signature(super().build_generator).parameters)[2:]
        given = {**dict(zip(names, more, strict=False)), **named}
        return self._build(models, args, given)

    def _build(
        self,
        models: Sequence[torch.nn.Module],
        args: Namespace,
        given: Mapping[str, Any],
        alone: bool = False,
    ) -> Any:
        """:meth:`_build_packed`, with what a folder of packed weights has for the models."""
        with used(models) as sound:
            return self._build_packed(models, args, given, alone, sound)

    def _build_packed(
        self,
        models: Sequence[torch.nn.Module],
        args: Namespace,
        given: Mapping[str, Any],
        alone: bool = False,
        sound: bool = False,
    ) -> Any:
        """Builds a generator, with the drafters and budgets of an earlier one (:mod:`fairseq_aggdec.tasks.reuse`).

        Args:
            given: arguments of the task's own ``build_generator``.
            alone: shares nothing with earlier generators but the verifier.
            sound: it is known that the models hold finite numbers only.
        """
        for model in models:
            model.eval()  # as all generators do, and as they are looked at here
        self.decoding_options = resolve_options(self.settings, args, self.hidden, self.given)
        self._set_precision(models)
        stock = cache(partial(self._build_stock, models, args, given))
        extra = dict(given.get("extra_gen_cls_kwargs") or {})
        if (function := given.get("prefix_allowed_tokens_fn")) is not None:
            extra["prefix_allowed_tokens_fn"] = function
        settings = read_settings(self.decoding_options, self.always_draft)
        request = Request(settings, self, models, args, stock, extra, quiet=self.quiet)
        how = precision(settings)
        known = (one for one in (self.verifier, *self.reusable.verifiers()) if one is not None)
        fitting = next((one for one in known if one.is_for(models, how)), None)
        request.known = fitting is not None
        self.verifier = fitting or self.verifier
        if not request.known and not sound:
            self._warn_of_broken(models)
        self._log_summary_at_exit()
        light = kind_of(settings.decoding).light
        training = self.learning or getattr(self.settings, "eval_bleu", False)
        prepare = not training and not (request.known and light)
        generator = build_generator(request, prepare)
        # The file of drafts may change.
        plain = light and settings.draft_from != "file" and not any(given.values())
        if plain and not alone and isinstance(generator, CachedGenerator) and not self.learning:
            new = ReusableGenerator(request.cfg, stock(), generator)
            self.reusable.pass_on(new, partial(self._build, models, args, given, alone=True))
        return generator

    def _build_stock(
        self, models: Sequence[torch.nn.Module], args: Namespace, given: Mapping[str, Any]
    ) -> Any:
        """The generator of the task itself; what is not given need not be among its arguments."""
        build: Any = super().build_generator
        taken = inspect.signature(build).parameters
        own = {name: value for name, value in given.items() if value is not None or name in taken}
        if own.get("extra_gen_cls_kwargs"):
            own["extra_gen_cls_kwargs"] = dict(own["extra_gen_cls_kwargs"])  # fairseq adds to it
        return build(models, args, **own)

    def build_drafter(self, request: Request) -> Drafter:
        """The drafter of the method that serves a request."""
        build = method_of(request.cfg.decoding).drafter
        assert build is not None, f"--decoding {request.cfg.decoding} has no drafter"
        return build(request)

    def _set_precision(self, models: Sequence[torch.nn.Module]) -> None:
        """``--bf16``, which stock generation ignores."""
        # Where nothing filled it in, bf16 is the text of an interpolation.
        if self.decoding_options.bf16 is not True or self.learning:
            return
        logger.info("models in bfloat16 (--bf16)")
        for model in models:
            model.bfloat16()
        on_cpu = all(weight.is_cpu for model in models for weight in model.parameters())
        if on_cpu and (reason := against_bfloat16()):
            logger.warning("%s: fp32 is likely faster here than --bf16", reason)

    def _warn_of_broken(self, models: Sequence[torch.nn.Module]) -> None:
        """A weight that is no number ends decoding only at a sentence that needs it."""
        paths = split_paths(self.model_paths or "")
        for place, model in enumerate(models if not self.learning else ()):
            if weight := broken_weight(model):
                name = paths[place] if len(paths) == len(models) else "a model"
                logger.warning("%s: %s", name, BROKEN.format(weight))

    def inference_step(
        self, generator: Any, models: Any, sample: Any, *more: Any, **options: Any
    ) -> Any:
        """fairseq's, but scores that are not finite numbers end it, whatever decodes: NonFiniteError names it."""
        constraints = options.get("constraints", more[1] if len(more) > 1 else None)
        refuse_missing_constraints(generator, constraints)
        try:
            found = super().inference_step(generator, models, sample, *more, **options)
            if type(generator) is SequenceGenerator and are_hypotheses(found):  # ours have looked
                check_best(found)
            return found
        except (AssertionError, NonFiniteError) as error:
            paths, named = self.model_paths, models
            if isinstance(generator, DraftAndVerifyGenerator) and not generator.verified:
                drafter: Any = generator.drafter
                paths, named = self.decoding_options.drafter_path, [drafter.model]
            if isinstance(error, AssertionError) and not any(map(broken_weight, models)):
                refuse_wide_beam(generator)
                raise  # stock search, which looks for no NaN, has a limit that it does not pass otherwise
            names = split_paths(paths) if paths else []
            row = getattr(error, "row", None)
            raise explained(row, sample, named, names) from None
