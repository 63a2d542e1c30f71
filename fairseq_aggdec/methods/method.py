"""Method of ``--decoding``, and what its generator is built from."""

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from fairseq.tasks import FairseqTask

from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.methods.refusing import precision
from fairseq_aggdec.options.options import Options
from fairseq_aggdec.options.stock_generator import generator_gap
from fairseq_aggdec.search.beam.generator import BeamGenerator
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.engines import BEAM, EngineRequest, choose, line_of
from fairseq_aggdec.search.errors import refusal

logger = logging.getLogger(__name__)


@dataclass
class Request:
    """Request that a generator is built from.

    Attributes:
        cfg: decoding options, with ``decoding`` the method that serves the request.
        task: has the dictionaries, the loaded sets and ``counters``; ``first_number`` where symbols are numbers. Its
            ``build_drafter`` builds the drafter of a request.
        decoding: the method that ``--decoding`` names.
        models: those of ``--path``, in evaluation mode.
        args: fairseq's generation options; any of them may be missing, as with ``--eval-bleu-args``.
        stock: the generator that the task itself builds, once.
        extra: what else the caller of ``build_generator`` hands over, by name.
        known: the models decoded for the task before, as they are now or were then.
        quiet: options without effect are not named.
    """

    cfg: Settings
    task: Any
    models: Sequence[Any]
    args: Any
    stock: Callable[[], Any]
    extra: dict[str, Any] = field(default_factory=dict)
    known: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        self.decoding = self.cfg.decoding

    def leave(self, reason: str) -> None:
        """Leaves the request to stock fairseq, which the log says once.

        Raises:
            ValueError: its output is not what the options ask for.
        """
        engine_request = EngineRequest(BEAM, only_stock=reason, precision=precision(self.cfg))
        self.task.asked_engines = choose(engine_request)
        self.say_left(line_of(self.task.asked_engines, engine_request))

    def say_left(self, line: str) -> None:
        """Logs once that stock fairseq serves the request."""
        line = f"--decoding {self.decoding} is {line}"
        self.task.counters.say(logger, line, logging.WARNING)

    def option(self, name: str, default: Any = None) -> Any:
        """One of fairseq's generation options; ``default`` where it is missing."""
        return getattr(self.args, name, default)

    def computing(self, how: Precision | None = None) -> dict[str, Any]:
        """Arguments of a generator of ours: how models compute, by the options or as ``how`` says; what is counted."""
        return {
            "counters": self.task.counters,
            "precision": how or precision(self.cfg),
            "retain_history": bool(self.option("retain_iter_history", False)),
        }

    @property
    def aligned(self) -> bool:
        """Tells whether the generator that the task itself builds aligns, with ``--print-alignment`` or without."""
        return isinstance(self.stock(), SequenceGeneratorWithAlignment)

    def make(self, kind: Any, options: dict[str, Any]) -> Any:
        """A generator of class ``kind``, with options of its own and those of the one that the task has built.

        Raises:
            ValueError: what the task has built is more than stock beam search.
        """
        stock, task = self.stock(), self.task
        if gap := generator_gap(stock):
            raise ValueError(refusal(gap, self.cfg.decoding, "use --decoding stock"))
        values = Options.of(stock).arguments() | {"search_strategy": stock.search} | options
        if not issubclass(kind, BeamGenerator):
            values["beam_size"] = 1
        models = list(stock.model.models)
        if task.verifier is not None and not task.verifier.is_for(models, values["precision"]):
            task.verifier = None
        generator = kind(models, stock.tgt_dict, verifier=task.verifier, **values)
        task.verifier = generator.verifier
        return generator

    def make_alone(self, kind: Any, options: dict[str, Any]) -> Any:
        """A generator of ours with fairseq's options, whatever the task would build."""
        return FairseqTask.build_generator(
            self.task, self.models, self.args, kind, self.extra | options
        )


def nothing(request: Request) -> None:
    """The method refuses nothing, and serves every request itself."""


@dataclass(frozen=True)
class Method:
    """A method of ``--decoding``: one file, and one line of ``options/kinds.py``, which has its help.

    Attributes:
        name: as ``--decoding`` takes it.
        reads: the names of the options that have an effect with these settings; those that the method refuses too.
        build: makes the generator.
        refuses: raises ``ValueError`` with one sentence for one of fairseq's options, or a model, that the method
            cannot honour.
        becomes: the name of the method that serves a request instead; None: this one.
        drafter: builds the drafter; None: the method has none.
    """

    name: str
    reads: Callable[[Settings], Set[str]]
    build: Callable[[Request], Any]
    refuses: Callable[[Request], None] = nothing
    becomes: Callable[[Request], str | None] = nothing
    drafter: Callable[[Request], Drafter] | None = None
