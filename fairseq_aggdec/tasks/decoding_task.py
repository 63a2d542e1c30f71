"""A mixin for fairseq tasks: ``build_generator`` gives the generator of ``--decoding`` in place of the task's own."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from fairseq.tasks.fairseq_task import StatefulContainer
from omegaconf import DictConfig, OmegaConf

from fairseq_aggdec.methods.config import add_decoding_options
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.methods.reuse import ReusableGenerators
from fairseq_aggdec.tasks.decoding_options import resolve_options
from fairseq_aggdec.tasks.hooks import Hooks

if TYPE_CHECKING:
    # What decodes is loaded when something is to be decoded.
    from fairseq_aggdec.engine.verifier import Verifier
    from fairseq_aggdec.methods.method import Request
    from fairseq_aggdec.search.drafter import Drafter


class DecodingTask(Hooks):
    """Mixed in before any task: its generator is taken over where ``--decoding`` can give what it gives.

    Attributes:
        first_number: index of the first symbol that is a number, for ``--acceptance distance``; None where symbols are
            words.
        decoding_options: the plugin's options of the generator that was built last.
        hidden: names of the plugin's options that mean something else in this task.
        options_from_python: options of the plugin that were given beside the task's configuration.
        always_draft: drafts in every iteration, unless an option says how much; else where that pays.
        quiet: options without effect are not named: a tool decodes with another method than the command line's.
        asked_engines: those that were asked when the last generator was built; none where it asks for each batch.
        verifier: of the last generator, which the next one shares: fairseq's hub builds a generator for every call.
        reusable: the last generators, whose drafters and budgets go on in calls with the same options.
    """

    first_number: int | None = None
    always_draft = False
    quiet = False
    hidden: frozenset[str] = frozenset()
    options_from_python: Mapping[str, Any] = MappingProxyType({})
    verifier: Verifier | None
    reusable: ReusableGenerators
    decoding_options: Any

    def begin(self) -> None:
        super().begin()
        self.verifier = None
        self.asked_engines: Any = []
        self.reusable = ReusableGenerators()
        self._resolve_options(None)
        read_settings(self.decoding_options)  # a wrong option is told before anything is loaded

    def _resolve_options(self, args: Any) -> None:
        """Takes up the plugin's options, those of a call (``args``) among them."""
        self.decoding_options = resolve_options(
            self.settings, args, self.hidden, self.options_from_python
        )

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
        from fairseq_aggdec.methods.building import build

        names = list(inspect.signature(super().build_generator).parameters)[2:]
        call_options = {**dict(zip(names, more, strict=False)), **named}
        return build(self, models, args, call_options)

    def _build_stock(
        self, models: Sequence[torch.nn.Module], args: Namespace, call_options: Mapping[str, Any]
    ) -> Any:
        """The generator of the task itself; what is not given need not be among its arguments."""
        build: Any = super().build_generator
        taken = inspect.signature(build).parameters
        arguments = {
            name: value
            for name, value in call_options.items()
            if value is not None or name in taken
        }
        if arguments.get("extra_gen_cls_kwargs"):
            arguments["extra_gen_cls_kwargs"] = dict(
                arguments["extra_gen_cls_kwargs"]
            )  # fairseq adds to it
        return build(models, args, **arguments)

    def build_drafter(self, request: Request) -> Drafter:
        """The drafter of the method that serves a request."""
        from fairseq_aggdec.methods.table import method_of

        build = method_of(request.cfg.decoding).drafter
        assert build is not None, f"--decoding {request.cfg.decoding} has no drafter"
        return build(request)

    def inference_step(
        self, generator: Any, models: Any, sample: Any, *more: Any, **options: Any
    ) -> Any:
        """fairseq's, but scores that are not finite numbers end it, whatever decodes: NonFiniteError names it."""
        from fairseq_aggdec.methods.building import infer

        step = super().inference_step
        return infer(self, step, generator, models, sample, *more, **options)
