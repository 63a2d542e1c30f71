"""fairseq's generator contract around our searches.

Subclassing ``SequenceGenerator`` lets stock ``build_generator`` read every stock option; only ``_generate`` is ours.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_aggdec.engine.graphs.conditions import decoding_on, streams_of
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.options.hypotheses import Hypothesis, send_hypotheses
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.engines import (
    BEAM,
    NOT_IN_STOCK,
    Answers,
    EngineRequest,
    SearchEngine,
    choose,
    level_of,
    line_of,
)
from fairseq_aggdec.search.errors import NonFiniteError, check_tokens, refusal
from fairseq_aggdec.search.guards import OneThread, exclusive, one_thread, or_stock
from fairseq_aggdec.search.parts import parts, rows_that_fit
from fairseq_aggdec.search.rules import OwnRule
from fairseq_aggdec.search.state import Batch
from fairseq_aggdec.windows.transfer import Watch, begin

logger = logging.getLogger(__name__)


@dataclass
class Memory:
    """State that a generator keeps from batch to batch. It is shared by its views, each with the options of a call.

    Attributes:
        device_loop: the search on a device, with the state of its last batch.
        budgets: what beam search has learned about prefixes ahead, by the texts that it drafts from.
    """

    device_loop: Any = None
    budgets: dict[Any, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """State that a copy takes over: not the state of batches on a device, which belongs to this verifier."""
        return vars(self) | {"device_loop": None}


class CachedGenerator(SequenceGenerator):
    """The base class of our generators: it prepares a batch for the verifier and returns what fairseq expects.

    A subclass decodes the batch with its search (:meth:`_decode`) and makes hypotheses of the result
    (:meth:`_hypotheses`).

    Args:
        models, tgt_dict, **options: as ``SequenceGenerator``.
        counters: statistics, added to.
        precision: how the models compute.
        retain_history: keep in the hypotheses what every iteration saw.
        no_repeat_ngram_size: n-grams of this size occur at most once in an output; 0 for no limit.
        verifier: of the same models and precision, shared with other generators; None: one is made.

    Attributes:
        decoding: the method, for messages.
        own_rules: generation rules from outside the package; put another tuple there to change them.
        refused: options of a call that the search cannot honour, with the reason.
        asked_search: what the engines are asked for (:mod:`~fairseq_aggdec.search.engines`).
        options: of the batch that is decoded. memory: what is kept from batch to batch.
        engines: those that were asked for the last batch, each with its gap; the last one has none and has decoded it.
        anew: builds another generator like this one, which was copied and shares what it has learned; None: a
            generator of its own.
    """

    anew: Callable[[], Any] | None = None
    own_rules: Sequence[OwnRule] = ()
    decoding = "beam"
    refused: Mapping[str, str] = {"constraints": "it needs --decoding stock"}
    asked_search = BEAM

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        tgt_dict: Any,
        *,
        counters: Counters,
        precision: Precision = EXACT,
        retain_history: bool = False,
        no_repeat_ngram_size: int = 0,
        verifier: Any = None,
        **options: Any,
    ):
        super().__init__(models, tgt_dict, **options)
        self.counters, self.retain_history = counters, retain_history
        self.no_repeat_ngram_size = no_repeat_ngram_size
        self.options = Options.of(self)
        self.verifier = verifier or self._build_verifier(list(self.model.models), precision)
        self.precision = precision
        self.memory = Memory()
        self.engines: Answers = []

    def _build_verifier(self, models: list[Any], precision: Precision) -> Any:
        return Verifier(models, precision, self.temperature, self.asked_search not in NOT_IN_STOCK)

    @exclusive
    def prepare(self) -> None:
        """Packs the weights now, so that the first batch does not wait for it."""
        with self._conditions(next(self.model.parameters()).device):
            self._prepare()

    def _prepare(self) -> None:
        self.verifier.prepare()

    def forget(self) -> None:
        """Forgets what was learned about drafts: what follows depends on nothing before it."""

    @exclusive
    def release(self) -> None:
        """Frees what is kept between batches (packed weights, KV caches, captured graphs); draft statistics stay."""
        self._release()

    def _release(self) -> None:
        self.memory.device_loop = None
        for member in self.verifier.members:
            member.release()

    @exclusive
    def refresh(self) -> None:
        """Reads the models anew before the next batch, whatever has changed in them."""
        self.verifier.repack()

    def generate(self, models: Any, sample: dict[str, Any], **call: Any) -> list[list[Hypothesis]]:
        """Generates as stock does, without its ``torch.no_grad``: :meth:`_generate` switches gradients off itself."""
        return self._generate(sample, **call)

    @exclusive
    @or_stock
    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Decodes a batch; the contract of ``SequenceGenerator._generate``.

        Returns:
            per sentence its hypotheses, best first, as :func:`~fairseq_aggdec.options.hypotheses.hypothesis` has them.

        Raises:
            ValueError: an option or a token of the call that does not go, or a minimum length above the maximum.
            NonFiniteError: a sentence whose scores are NaN or infinite.
        """
        for option, value in (("prefix_size", prefix_tokens), ("constraints", constraints)):
            if value is not None and option in self.refused:
                name = "--" + option.replace("_", "-")
                raise ValueError(refusal(name, self.decoding, self.refused[option]))
        source = sample["net_input"]["src_tokens"]
        lock = self._lock_verifier()
        try:
            with self._conditions(source.device):
                batch = self._batch(sample, source, prefix_tokens, bos_token)
                nbest = list[list[Hypothesis]]()
                for first, part in parts(batch, self._most_rows(batch)):
                    nbest += self._decode_part(part, first)
        finally:
            lock.give_back()
        if source.device.type != "cpu":
            send_hypotheses(nbest, source.device)
        return nbest

    def _decode_part(self, part: Batch, first: int) -> list[list[Hypothesis]]:
        """The hypotheses of some sentences of a batch; ``first``: the place of their first."""
        if part.source.device.type == "cuda":
            begin([part.source, *self._reads(part.sample)], list(self._watches()))
        try:
            with torch._C._InferenceMode(True):  # what torch.inference_mode() enters
                done = self._decode(part)
            return self._hypotheses(done)  # outside: what fairseq gets it changes in place
        except NonFiniteError as error:
            if first and error.row is not None:
                raise NonFiniteError(error.row + first) from error
            raise

    def _most_rows(self, batch: Batch) -> int:
        """Number of sentences that are decoded at a time: on a GPU those that its loop takes without the host."""
        rows, device = len(batch.source), batch.source.device
        if device.type != "cuda" or self.precision.strict or self._needs_whole_batches():
            return rows
        keys = self._keys_of(self._limits(batch).longest + 1)
        return rows_that_fit(rows, device, self._cached_decoders(), keys, batch.source.size(1))

    def _needs_whole_batches(self) -> bool:
        """Tells whether the output of a sentence depends on its batch, or somebody looks on.

        With ``--match-source-len`` the longest source of a batch ends all outputs, as in stock.
        """
        return bool(self.match_source_len)

    def _cached_decoders(self) -> list[Any]:
        """The decoders that keep keys and values of every sentence."""
        for member in self.verifier.members:
            if "decoder" not in vars(member):  # the first batch
                member.refresh()
        return [vars(member).get("decoder") for member in self.verifier.members]

    def _keys_of(self, positions: int) -> int:
        """Keys of a sentence whose outputs have that many positions."""
        return positions

    def _batch(
        self, sample: dict[str, Any], source: Tensor, prefix: Tensor | None, start: int | None
    ) -> Batch:
        """A batch as the host knows it; arguments as of :meth:`_generate`."""
        rows = source.size(0)
        prefixes = [()] * rows if prefix is None else prefix.tolist()
        if len(prefixes) != rows:
            raise ValueError(f"prefix_tokens: {len(prefixes)} rows for {rows} sentences")
        first = self.eos if start is None else int(start)
        if prefix is not None or not 0 <= first < self.vocab_size:
            check_tokens(self.vocab_size, prefix_tokens=prefixes, bos_token=[[first]])
        if (options := Options.of(self)) is not self.options:
            self.options = options
        return Batch(sample, first, prefixes)

    def _conditions(self, device: torch.device) -> AbstractContextManager[None]:
        return decoding_on(device, streams_of(self.verifier), self.precision.tf32)

    def _lock_verifier(self) -> OneThread:
        """Locks the verifier for this batch and returns the lock.

        The generator builds a new verifier if its models have changed, or if another thread uses the shared one.
        """
        models = list(self.model.models)
        if not self.verifier.is_for(models, self.precision):
            self.verifier = self._build_verifier(models, self.precision)
        lock = one_thread(self.verifier)
        if not lock.take():
            self.verifier = self._build_verifier(models, self.precision)
            self._unshare()
            lock = one_thread(self.verifier)
            lock.take()
        self.verifier.temperature = self.temperature
        return lock

    def _unshare(self) -> None:
        """Replaces what this generator shares with an earlier one by its own."""
        if self.anew is not None:
            other = vars(self.anew())
            shared = {name: other[name] for name in ("memory", "drafter", "texts") if name in other}
            self.__dict__.update(shared, anew=None)

    def _reads(self, sample: dict[str, Any]) -> Sequence[Tensor]:
        """Tensors of a batch that the host reads, beside its source."""
        return ()

    def _watches(self) -> Iterator[Watch]:
        """Objects that have to know before a batch whether weights have changed."""
        yield from self.verifier.watches

    def _engine(self, request: EngineRequest) -> SearchEngine:
        """The engine that decodes a request; the log says once who that is, and why.

        Raises:
            ValueError: nobody decodes it.
        """
        self.engines = choose(request)
        self.counters.say(logger, line_of(self.engines, request), level_of(self.engines))
        return self.engines[-1][0]

    def _request(self, *batch: Any, only_stock: str | None = None) -> EngineRequest:
        """Request to the engines about a batch."""
        return EngineRequest(
            *(self.asked_search, self.verifier, only_stock),
            precision=self.precision,
            rules=tuple(self.own_rules),
        )

    def leave(self, reason: str) -> None:
        """Leaves a batch to stock fairseq.

        Raises:
            ValueError: its output is not that of the method.
        """
        self._engine(self._request(only_stock=reason))

    def _limits(self, batch: Batch) -> Limits:
        return self.options.limits(batch.net_input, self.model.models)

    def _decode(self, batch: Batch) -> Any:
        """Decodes a batch and counts it; the result is for :meth:`_hypotheses`."""
        raise NotImplementedError

    def _hypotheses(self, done: Any) -> list[list[Hypothesis]]:
        """The hypotheses of every sentence, on the host."""
        raise NotImplementedError
