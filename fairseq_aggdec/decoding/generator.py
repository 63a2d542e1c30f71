"""fairseq's generator contract around the loop.

Subclassing ``SequenceGenerator`` lets stock ``build_generator`` read every stock option; only ``_generate`` is ours.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from fairseq.modules import LearnedPositionalEmbedding
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from torch import Tensor

from fairseq_aggdec.decoding.acceptance import Acceptance
from fairseq_aggdec.decoding.counters import Counters
from fairseq_aggdec.decoding.drafter import Drafter
from fairseq_aggdec.decoding.loop import draft_and_verify
from fairseq_aggdec.decoding.rules import Rules
from fairseq_aggdec.decoding.state import DecodeState, Row
from fairseq_aggdec.decoding.streams import Beside
from fairseq_aggdec.decoding.verifier import Verifier

logger = logging.getLogger(__name__)

Hypothesis = dict[str, Any]

# Room for the first cache beyond the source length, in target positions; it grows when an output is longer.
SPARE_POSITIONS = 16


class DraftAndVerifyGenerator(SequenceGenerator):
    """Greedy generation through :func:`~fairseq_aggdec.decoding.loop.draft_and_verify`.

    Args:
        models, tgt_dict, **options: as ``SequenceGenerator``.
        drafter: proposes tokens.
        accept: which of them stand.
        counters: statistics, added to.
        pack: keep weights packed for CPU.
        retain_history: keep the draft of every iteration in the hypotheses.
        shortlist: sources (B, S) -> the only types (M,) that their batch may be translated into; None: all.
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        tgt_dict: Any,
        *,
        drafter: Drafter,
        accept: Acceptance,
        counters: Counters,
        pack: bool = True,
        retain_history: bool = False,
        shortlist: Callable[[Tensor], Tensor] | None = None,
        no_repeat_ngram_size: int = 0,
        **options: Any,
    ):
        super().__init__(models, tgt_dict, **options)
        self.drafter, self.accept, self.counters = drafter, accept, counters
        self.retain_history, self.shortlist = retain_history, shortlist
        self.verifier = Verifier(list(self.model.models), pack, self.temperature)
        self.rules = Rules(
            self.pad,
            self.unk,
            self.eos,
            unk_penalty=self.unk_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
            free_end=self.match_source_len,
        )

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
        """
        if constraints is not None:
            raise ValueError("--constraints needs --decoding beam")
        net_input = sample["net_input"]
        rows = self._rows(net_input, prefix_tokens, self.eos if bos_token is None else bos_token)
        source_length = net_input["src_tokens"].size(1)
        capacity = min(max(row.end for row in rows) + 1, source_length + SPARE_POSITIONS)
        state = DecodeState(rows, self.eos, net_input["src_tokens"].device)
        with torch.inference_mode():
            self._decode(sample, state, capacity)
        self.counters.sentences += len(state.finished)
        return self._hypotheses(state)

    def _decode(self, sample: dict[str, Any], state: DecodeState, capacity: int) -> None:
        """Decodes every row of ``state`` to its end; ``capacity`` target positions are expected."""
        beside = Beside(state.device)
        with self.counters.clock("encoder"):
            self.verifier.start(sample["net_input"], capacity)
            if self.shortlist is not None:
                self.verifier.restrict(self.shortlist(sample["net_input"]["src_tokens"]))
        start = beside.work if getattr(self.drafter, "starts_beside", False) else nullcontext
        with self.counters.clock("draft"), start():
            self.drafter.start(sample, self.verifier, state)
        draft_and_verify(self.verifier, self.drafter, self.accept, self.rules, state, self.counters)

    def _rows(
        self, net_input: dict[str, Tensor], prefix_tokens: Tensor | None, start: int
    ) -> list[Row]:
        """One row per sentence, with the length limits that stock fairseq would give it."""
        src_tokens = net_input["src_tokens"]
        batch, padded_length = src_tokens.shape
        lengths = net_input["src_lengths"].tolist() if self.match_source_len else [0] * batch
        # Stock counts the padded width of the batch, so outputs can depend on it when max_len_a > 0.
        limit = min(int(self.max_len_a * padded_length + self.max_len_b), self.max_len - 1)
        if self.match_source_len:
            limit = max(lengths)
            self._check_positions(limit)
        if self.min_len > limit:
            raise ValueError(
                f"--min-len {self.min_len} is larger than the maximum length {limit}, "
                "which --max-len-a and --max-len-b set"
            )
        prefixes = [()] * batch if prefix_tokens is None else prefix_tokens.tolist()
        history = self.retain_history
        return [
            Row(
                index,
                [start],
                end=min(limit, lengths[index]) if self.match_source_len else limit,
                floor=self.min_len,
                strict_floor=lengths[index],
                prefix=prefixes[index],
                history=[] if history else None,
            )
            for index in range(batch)
        ]

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

    def _hypotheses(self, state: DecodeState) -> list[list[Hypothesis]]:
        rows = sorted(state.finished, key=lambda row: row.index)
        return [
            [self._hypothesis(row, scores.clone(), state.device)]
            for row, scores in zip(rows, state.token_scores(), strict=True)
        ]

    def _hypothesis(self, row: Row, scores: Tensor, device: torch.device) -> Hypothesis:
        score = scores.sum()
        if self.normalize_scores:
            score = score / len(scores) ** self.len_penalty
        return {
            "tokens": torch.tensor(row.tokens[1:], device=device),
            "score": score.to(device),
            "positional_scores": scores.to(device),
            "attention": torch.empty(0),
            "alignment": torch.empty(0),
            "steps": row.iterations,
            "history": [{"tokens": torch.tensor(tokens)} for tokens in row.history or ()],
        }


class AttentiveGenerator(DraftAndVerifyGenerator):
    """Adds the attention that stock gathers step by step, from one forced pass over the hypotheses."""

    def _generate(
        self, sample: dict[str, Any], *args: Any, **kwargs: Any
    ) -> list[list[Hypothesis]]:
        hypotheses = super()._generate(sample, *args, **kwargs)
        _, _, previous, _ = self._prepare_batch_for_alignment(sample, hypotheses)
        attention = self._attention(sample["net_input"], previous)
        for (hypothesis,), weights in zip(hypotheses, attention, strict=True):
            length = len(hypothesis["tokens"])
            hypothesis["attention"] = weights[:length].transpose(0, 1).clone()
        return hypotheses

    def _attention(self, net_input: dict[str, Tensor], previous: Tensor) -> Tensor:
        """(B, T, S): as each step of stock decoding has it, the last layer's, averaged over heads and models.

        A model with an alignment layer of its own (``transformer_align``) shows that to a pass of the whole model only.
        """
        outputs = [
            model.decoder(previous, encoder_out=encoder_out)[1]["attn"][0]
            for model, encoder_out in zip(
                self.model.models, self.model.forward_encoder(net_input), strict=True
            )
        ]
        return torch.stack(outputs).mean(0)


class AlignedGenerator(SequenceGeneratorWithAlignment, AttentiveGenerator):
    """``--print-alignment``: stock reads the alignment off the attention of our hypotheses."""
