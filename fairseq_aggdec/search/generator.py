"""fairseq's generator contract around the loop.

Subclassing ``SequenceGenerator`` lets stock ``build_generator`` read every stock option; only ``_generate`` is ours.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from fairseq.modules import LearnedPositionalEmbedding
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_aggdec.engine.graphs.streams import Beside
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.acceptance import Acceptance
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.device_loop import DeviceLoop
from fairseq_aggdec.search.drafter import DeviceDrafter, Drafter, EmptyDrafter
from fairseq_aggdec.search.errors import NonFiniteError, check_scores
from fairseq_aggdec.search.guards import exclusive, or_stock
from fairseq_aggdec.search.loop import draft_and_verify
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.transfer import begin, sent

logger = logging.getLogger(__name__)

Hypothesis = dict[str, Any]

# Room for the first cache beyond the source length, in target positions; it grows when an output is longer.
SPARE_POSITIONS = 16
# What a drafter whose times are learned from decodes before its first batch.
WARM_UP_TOKENS = 12


class CachedGenerator(SequenceGenerator):
    """What generators over the cached decoder share: the verifier, its statistics, the length limits of stock.

    Args:
        models, tgt_dict, **options: as ``SequenceGenerator``.
        counters: statistics, added to.
        precision: how the models compute.
        retain_history: keep in the hypotheses what every iteration saw.
        no_repeat_ngram_size: n-grams of this size occur at most once in an output; 0 for no limit.
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        tgt_dict: Any,
        *,
        counters: Counters,
        precision: Precision = EXACT,
        retain_history: bool = False,
        no_repeat_ngram_size: int = 0,
        **options: Any,
    ):
        super().__init__(models, tgt_dict, **options)
        self.counters, self.retain_history = counters, retain_history
        self.no_repeat_ngram_size = no_repeat_ngram_size
        self.verifier = Verifier(list(self.model.models), precision, self.temperature, leaves=True)

    @exclusive
    def prepare(self) -> None:
        """Packs the weights now instead of with the first batch."""
        self.verifier.prepare()

    def forget(self) -> None:
        """Forgets what was learned about drafts: what follows depends on nothing before it (but measured times)."""

    @exclusive
    def refresh(self) -> None:
        """Reads the models anew before the next batch, whatever has changed in them."""
        self.verifier.forget_forms()

    def _length_limit(self, net_input: dict[str, Tensor]) -> tuple[int, list[int] | None]:
        """Output index at which stock forces ``</s>``, and the lengths of the sources where outputs must match them.

        Raises:
            ValueError: the minimum length is larger, or a verifier has not learned so many positions.
        """
        src_tokens = net_input["src_tokens"]
        # Stock counts the padded width of the batch, so outputs can depend on it when max_len_a > 0.
        limit = min(int(self.max_len_a * src_tokens.size(1) + self.max_len_b), self.max_len - 1)
        lengths = None
        if self.match_source_len:
            lengths = self._source_lengths(net_input).tolist()
            limit = max(lengths)
            self._check_positions(limit)
        if self.min_len > limit:
            raise ValueError(
                f"--min-len {self.min_len} is larger than the maximum length {limit}, "
                "which --max-len-a and --max-len-b set"
            )
        return limit, lengths

    def _source_lengths(self, net_input: dict[str, Tensor]) -> Tensor:
        """(B,) as stock has them: where the caller does not give them, ``</s>`` does not count."""
        if "src_lengths" in net_input:
            return net_input["src_lengths"]
        src_tokens = net_input["src_tokens"]
        return (src_tokens.ne(self.eos) & src_tokens.ne(self.pad)).sum(1)

    def _check_positions(self, longest: int) -> None:
        """Raises ``ValueError`` where outputs of ``longest`` tokens need learned positions that a verifier lacks."""
        for model in self.model.models:
            positions = getattr(model.decoder, "embed_positions", None)
            if not isinstance(positions, LearnedPositionalEmbedding):
                continue
            if longest >= positions.max_positions:
                raise ValueError(
                    f"--match-source-len asks for an output of up to {longest} tokens and </s>, but the verifier has "
                    f"learned {positions.max_positions} positions only"
                )


class DraftAndVerifyGenerator(CachedGenerator):
    """Greedy generation through :func:`~fairseq_aggdec.search.loop.draft_and_verify`.

    Args:
        models, tgt_dict, **options: as :class:`CachedGenerator`.
        drafter: proposes tokens.
        accept: which of them stand.
        shortlist: sources (B, S) -> the only types (M,) that their batch may be translated into; None: all.

    Attributes:
        on_device: makes the loop that a GPU goes on with alone.
    """

    on_device: type[DeviceLoop] = DeviceLoop

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        tgt_dict: Any,
        *,
        drafter: Drafter,
        accept: Acceptance,
        shortlist: Callable[[Tensor], Tensor] | None = None,
        **options: Any,
    ):
        super().__init__(models, tgt_dict, **options)
        self.drafter, self.accept, self.shortlist = drafter, accept, shortlist
        self.rules = Rules(
            self.pad,
            self.unk,
            self.eos,
            unk_penalty=self.unk_penalty,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            free_end=self.match_source_len,
        )
        self.device_loop: DeviceLoop | None = None
        self.on_host = False  # the device's loop without graphs, for tests

    @exclusive
    def prepare(self) -> None:
        """Packs the weights of verifier and drafter now: the first sentence does not wait for it."""
        self.verifier.prepare()
        net_input = self.verifier.warm_up()
        if net_input is not None:
            self._warm_up(EmptyDrafter(), end=1)
        self.drafter.prepare(self.verifier)
        if net_input is not None and self.drafter.learns_times:
            # Those of the first drafts are to be like those of the others.
            with self.drafter.always():
                end = min(WARM_UP_TOKENS, net_input["src_tokens"].size(1) - 1)
                self._warm_up(self.drafter, end, {"net_input": net_input})
            self.forget()

    def _warm_up(self, drafter: Drafter, end: int, sample: dict[str, Any] | None = None) -> None:
        """Decodes the sentence that the verifier has taken up, so many tokens of it."""
        device = next(self.model.parameters()).device
        state = DecodeState([Row(0, [self.eos], end=end, floor=end)], self.eos, device)
        with suppress(NonFiniteError):  # said with the first sentence that needs what is broken
            if sample is not None:
                with torch.inference_mode():
                    drafter.start(sample, self.verifier, state)
            draft_and_verify(self.verifier, drafter, self.accept, self.rules, state, Counters())
            self._hypotheses(state)

    def forget(self) -> None:
        self.drafter.forget()

    def refresh(self) -> None:
        super().refresh()
        for watch in self.drafter.watches:
            watch.answer(True)

    @exclusive
    @or_stock
    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Decodes a batch; the contract of ``SequenceGenerator._generate`` with one hypothesis per sentence.

        Returns:
            per sentence ``[{tokens, score, positional_scores, attention, alignment, steps, history}]``: tokens (T,)
            with the final ``</s>``, scores in nats (``score`` length-normalised unless ``--unnormalized``), ``steps``
            the number of iterations, ``history`` the drafts (empty unless asked for).

        Raises:
            NonFiniteError: a sentence whose scores are NaN or infinite.
        """
        if constraints is not None:
            raise ValueError("--constraints needs --decoding stock")
        net_input = sample["net_input"]
        rows = self._rows(net_input, prefix_tokens, self.eos if bos_token is None else bos_token)
        source_length = net_input["src_tokens"].size(1)
        capacity = max(row.end for row in rows) + 1
        if not self.verifier.strict:
            capacity = min(capacity, source_length + SPARE_POSITIONS)
        state = DecodeState(rows, self.eos, net_input["src_tokens"].device)
        with torch.inference_mode():
            self._decode(sample, state, capacity)
        self.counters.sentences += len(state.finished)
        return self._hypotheses(state)

    def _decode(self, sample: dict[str, Any], state: DecodeState, capacity: int) -> None:
        """Decodes every row of ``state`` to its end; ``capacity`` target positions are expected."""
        begin(
            [sample["net_input"]["src_tokens"], *self.drafter.reads(sample)],
            [*self.verifier.watches, *self.drafter.watches],
        )
        beside = Beside(state.device)
        with self.counters.clock("encoder"):
            types = None  # before the encoder: how many there are is asked of the device
            if self.shortlist is not None:
                types = self.shortlist(sample["net_input"]["src_tokens"])
            self.verifier.cached_only = self.drafter.needs_cached_decoder
            self.verifier.start(sample["net_input"], capacity)
            if types is not None:
                self.verifier.restrict(types)
        start = beside.work if self.drafter.starts_beside else nullcontext
        with self.counters.clock("draft"), start():
            self.drafter.start(sample, self.verifier, state)
        drafted, sentences = self.counters.drafted, len(state.rows)
        self._run_loop(state, types is not None)
        if self.counters.drafted == drafted and not isinstance(self.drafter, EmptyDrafter):
            self.counters.undrafted += sentences

    def _run_loop(self, state: DecodeState, restricted: bool = False) -> None:
        """The loop on the device, where the host need not see every iteration; else the one on the host."""
        seen = (
            restricted
            or state.rows[0].history is not None
            # A clock that waits for the device tells the parts of an iteration apart, which are one there.
            or self.counters.wait is not None
        )
        drafter = self.drafter
        if not seen and isinstance(drafter, DeviceDrafter):
            loop = self._loop_of(drafter)
            if self.on_host or loop.captures():
                size = drafter.start_on_device(state)
                if size is not None:
                    with self.counters.clock("verify"):
                        loop.decode(state, size, self.counters)
                    return
        self._loop_on_host(state)

    def _loop_on_host(self, state: DecodeState) -> None:
        draft_and_verify(self.verifier, self.drafter, self.accept, self.rules, state, self.counters)

    def _loop_of(self, drafter: DeviceDrafter) -> DeviceLoop:
        """The one of before, unless another drafter or another acceptance has been put in since."""
        loop = self.device_loop
        if loop is None or loop.drafter is not drafter or loop.accept is not self.accept:
            loop = self.on_device(self.verifier, drafter, self.accept, self.rules)
            self.device_loop = loop
        return loop

    def _rows(
        self, net_input: dict[str, Tensor], prefix_tokens: Tensor | None, start: int
    ) -> list[Row]:
        """One row per sentence, with the length limits that stock fairseq would give it."""
        limit, lengths = self._length_limit(net_input)
        batch = len(net_input["src_tokens"])
        prefixes = [()] * batch if prefix_tokens is None else prefix_tokens.tolist()
        history = self.retain_history
        return [
            Row(
                index,
                [start],
                end=limit if lengths is None else lengths[index],
                floor=self.min_len,
                strict_floor=0 if lengths is None else lengths[index],
                prefix=prefixes[index],
                history=[] if history else None,
            )
            for index in range(batch)
        ]

    def _hypotheses(self, state: DecodeState) -> list[list[Hypothesis]]:
        rows = sorted(state.finished, key=lambda row: row.index)
        token_scores = state.token_scores()
        totals = [scores.sum() for scores in token_scores]
        check_scores(totals)
        found = [
            [self._hypothesis(*of_row)] for of_row in zip(rows, token_scores, totals, strict=True)
        ]
        send_hypotheses(found, state.device)
        return found

    def _hypothesis(self, row: Row, scores: Tensor, score: Tensor) -> Hypothesis:
        nothing = torch.empty(0)
        if self.normalize_scores:
            score /= len(scores) ** self.len_penalty
        return {
            "tokens": torch.tensor(row.tokens[1:]),
            "score": score,
            "positional_scores": scores,
            "attention": nothing,
            "alignment": nothing,
            "steps": row.iterations,
            "history": [{"tokens": torch.tensor(tokens)} for tokens in row.history or ()],
        }


def send_hypotheses(found: list[list[Hypothesis]], device: torch.device) -> None:
    """Puts tokens and scores of a batch's hypotheses, made on the host, on the device: one copy for each, not three."""
    if device.type == "cpu":
        return
    hypotheses = [hypothesis for ranked in found for hypothesis in ranked]
    for name in ("tokens", "positional_scores", "score"):
        values = [hypothesis[name] for hypothesis in hypotheses]
        flat = sent(torch.cat([value.view(-1) for value in values]), device)
        parts = flat.split([value.numel() for value in values])
        for hypothesis, value, part in zip(hypotheses, values, parts, strict=True):
            hypothesis[name] = part.view(value.shape).clone()


def drafter_of(generator: Any) -> Drafter:
    """The drafter of a generator; one that drafts nothing where the generator has none."""
    return generator.drafter if isinstance(generator, DraftAndVerifyGenerator) else EmptyDrafter()
