"""fairseq's generator contract around our searches.

Subclassing ``SequenceGenerator`` lets stock ``build_generator`` read every stock option; only ``_generate`` is ours.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_aggdec.engine.graphs.conditions import decoding_on, streams_of
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.gpu.operators import try_again
from fairseq_aggdec.options.hypotheses import Hypothesis, send_hypotheses
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.options.stock_generator import search_gap
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.engines import EngineRequest, SearchEngine, gaps_of
from fairseq_aggdec.search.errors import check_tokens, refusal
from fairseq_aggdec.search.guards import OneThread, exclusive, one_thread, or_stock
from fairseq_aggdec.search.state import Batch
from fairseq_aggdec.windows.transfer import Watch, begin

logger = logging.getLogger(__name__)

# Then <unk> may outgrow the source in stock, whose forced </s> scores 0.
UNK_BEHIND_END = "--unkpen below 0 with --match-source-len"


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
        refused: options of a call that the search cannot honour, with the reason.
        may_leave_to_stock: stock fairseq decodes what the verifier cannot.
        options: of the batch that is decoded.
        engines: those that were asked for the last batch, each with its gap; the last one has none and has decoded it.
        anew: builds another generator like this one, which was copied and shares what it has learned; None: a
            generator of its own.
    """

    anew: Callable[[], Any] | None = None
    decoding = "beam"
    refused: Mapping[str, str] = {"constraints": "it needs --decoding stock"}
    may_leave_to_stock = True

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
        self.engines: list[tuple[SearchEngine, str | None]] = []
        self.announced: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """State that a copy takes over: not the state of batches on a device, which belongs to this verifier."""
        return {name: None if name == "device_loop" else own for name, own in vars(self).items()}

    def _build_verifier(self, models: list[Any], precision: Precision) -> Any:
        return Verifier(models, precision, self.temperature, self.may_leave_to_stock)

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
        for member in self.verifier.members:
            member.release()

    @exclusive
    def refresh(self) -> None:
        """Reads the models anew before the next batch, whatever has changed in them."""
        self.verifier.repack()

    def gap(self) -> str | None:
        """Why stock fairseq has to decode: what was changed on this generator since it was built; else None."""
        return search_gap(self)

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
        for option, given in (("prefix_size", prefix_tokens), ("constraints", constraints)):
            if given is not None and option in self.refused:
                name = "--" + option.replace("_", "-")
                raise ValueError(refusal(name, self.decoding, self.refused[option]))
        source = sample["net_input"]["src_tokens"]
        lock = self._lock_verifier()
        try:
            with self._conditions(source.device):
                batch = self._batch(sample, source, prefix_tokens, bos_token)
                with torch._C._InferenceMode(True):  # what torch.inference_mode() enters
                    done = self._decode(batch)
                found = self._hypotheses(done)  # outside: what fairseq gets it changes in place
        finally:
            lock.give_back()
        if source.device.type != "cpu":
            send_hypotheses(found, source.device)
        return found

    def _batch(
        self, sample: dict[str, Any], source: Tensor, prefix: Tensor | None, start: int | None
    ) -> Batch:
        """A batch as the host knows it; arguments as of :meth:`_generate`."""
        if source.device.type == "cuda":
            try_again()
            begin([source, *self._reads(sample)], list(self._watches()))
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
        """Replaces what this copy shares with the original generator (drafter, draft statistics) by its own."""
        if self.anew is not None:
            learned = ("budget", "device_loop", "drafter", "texts")
            other = vars(self.anew())
            self.__dict__.update({name: other[name] for name in learned if name in other})
            self.anew = None

    def _reads(self, sample: dict[str, Any]) -> Sequence[Tensor]:
        """Tensors of a batch that the host reads, beside its source."""
        return ()

    def _watches(self) -> Iterator[Watch]:
        """Objects that have to know before a batch whether weights have changed."""
        yield from self.verifier.watches

    def _engine(self, request: EngineRequest) -> str:
        """The name of the engine that decodes a request; each is logged once."""
        self.engines = gaps_of(request)
        engine, _ = self.engines[-1]
        if engine.name not in self.announced:
            self.announced.add(engine.name)
            others = "; ".join(f"not {other.name}: {gap}" for other, gap in self.engines[:-1])
            logger.info(
                "decoding by %s (%s)%s", engine.name, engine.where, others and f"; {others}"
            )
        return engine.name

    def _limits(self, batch: Batch) -> Limits:
        return self.options.limits(batch.net_input, self.model.models)

    def _decode(self, batch: Batch) -> Any:
        """Decodes a batch and counts it; the result is for :meth:`_hypotheses`."""
        raise NotImplementedError

    def _hypotheses(self, done: Any) -> list[list[Hypothesis]]:
        """The hypotheses of every sentence, on the host."""
        raise NotImplementedError
