"""``--decoding interleaved``: fairseq's generator contract around Algorithm 1 of Zhang et al. (2020)."""

from collections.abc import Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.models.transformer import TransformerDecoder, TransformerDecoderBase
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_aggdec.data.interleaving import Geometry, reading_order
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.models.interleaved_transformer import InterleavedDecoder
from fairseq_aggdec.search.aligned import attention_of
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError, refusal
from fairseq_aggdec.search.generator import send_hypotheses
from fairseq_aggdec.search.guards import exclusive
from fairseq_aggdec.search.interleaved.search import Found, InterleavedSearch, StepRules, Written
from fairseq_aggdec.windows.transfer import begin, on_host, sent, to_device

Hypothesis = dict[str, Any]

# Room for the first cache beyond the source length, in target positions; it grows when an output is longer.
SPARE_POSITIONS = 16

FIRST, ALL = "first", "all"

# Options that the search cannot honour, with the reason.
REFUSED = {
    "sampling": "it searches for the best hypotheses",
    "diverse_beam_groups": "its beams are not grouped",
    "diversity_rate": "its beams are not told apart by siblings",
    "constraints": "words are not written in reading order",
    "prefix_allowed_tokens_fn": "words are not written in reading order",
    "prefix_size": "words are not written in reading order",
    "no_repeat_ngram_size": "words are not written in reading order; --dedup removes repetitions afterwards",
    "lm_path": "words are not written in reading order",
    "retain_dropout": "dropout is off in the cached decoder",
}


class InterleavedGenerator(SequenceGenerator):
    """Beam search with several words per step.

    Subclassing ``SequenceGenerator`` lets stock ``build_generator`` read every stock option; only ``_generate``
    is ours.

    Args:
        models, tgt_dict, **options: as ``SequenceGenerator``; models of one geometry.
        counters: statistics, added to.
        end_condition: ``first``: a hypothesis ends with the first ``</s>`` of a step, as in the paper; ``all``:
            all slots of the step behind it must say ``</s>`` too, and this counts in its score.
        any_ending: every ending among the best continuations of a hypothesis counts, not only those among the best of
            the sentence.
        gnmt: scores are divided by ((5 + length) / 6) ** lenpen (Wu et al. 2016), not by length ** lenpen.
        dedup: n-grams up to this length that directly repeat themselves are written once; 0 for never.
        print_alignment: ``hard`` or ``soft``, None for no alignment.
        precision: how the models compute.
        retain_history: keep what each hypothesis was after every step.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        tgt_dict: Any,
        *,
        counters: Counters,
        end_condition: str = FIRST,
        any_ending: bool = False,
        gnmt: bool = False,
        dedup: int = 0,
        print_alignment: str | None = None,
        precision: Precision = EXACT,
        retain_history: bool = False,
        **options: Any,
    ):
        super().__init__(models, tgt_dict, **options)
        self.counters, self.end_condition, self.dedup = counters, end_condition, dedup
        self.retain_history = retain_history
        self.any_ending, self.gnmt = any_ending, gnmt
        self.print_alignment = print_alignment
        self.geometry = common_geometry(models)
        self.verifier = Verifier(list(models), precision, self.temperature)

    @exclusive
    def prepare(self) -> None:
        """Packs the weights now: the first sentence does not wait for it."""
        self.verifier.prepare()

    @exclusive
    def refresh(self) -> None:
        """Reads the models anew before the next batch, whatever has changed in them."""
        self.verifier.forget_forms()

    @exclusive
    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Decodes a batch; the contract of ``SequenceGenerator._generate``.

        Returns:
            per sentence up to B hypotheses, best first: ``tokens`` (T,) in reading order with the final ``</s>``,
            ``positional_scores`` (T,) of these tokens in nats, ``score`` (their sum, length-normalised unless
            ``--unnormalized``), ``attention``, ``alignment``, ``steps``, the iterations that the sentence took, and
            ``history``, see :func:`step_history` (empty unless asked for).

        Raises:
            ValueError: forced words, or a minimum length above the maximum.
            NonFiniteError: a sentence whose scores are NaN or infinite.
        """
        if prefix_tokens is not None or constraints is not None:
            option = "--constraints" if prefix_tokens is None else "--prefix-size"
            raise ValueError(refusal(option, "interleaved", REFUSED["prefix_size"]))
        net_input = sample["net_input"]
        device = net_input["src_tokens"].device
        rules = self._rules(net_input)
        capacity = self.geometry.width(
            min(max(rules.limits) + 1, net_input["src_tokens"].size(1) + SPARE_POSITIONS)
        )
        begin([net_input["src_tokens"]], self.verifier.watches)
        with torch.inference_mode(), self.counters.clock("encoder"):
            self.verifier.start(net_input, capacity)
        self.verifier.refuse_probabilities("interleaved")
        search = InterleavedSearch(
            self.verifier, self.geometry, rules, self.beam_size, self.counters, self.any_ending
        )
        found = search.run(self.eos if bos_token is None else bos_token, device)
        for row, sentence in enumerate(found):
            if sentence.broken or not sentence.hypotheses:
                raise NonFiniteError(row)
        hypotheses = [self._ranked(sentence) for sentence in found]
        for sentence, ranked in zip(found, hypotheses, strict=True):
            count_sentence(self.counters, sentence, len(ranked[0]["tokens"]), self.geometry.step)
        for hypothesis in (hypothesis for ranked in hypotheses for hypothesis in ranked):
            if self.dedup:
                remove_repeats(hypothesis, self.dedup)
        if self.print_alignment:
            self._align(net_input, hypotheses)
        send_hypotheses(hypotheses, device)
        return hypotheses

    def _rules(self, net_input: dict[str, Tensor]) -> StepRules:
        """Length limits and penalties, with the lengths that stock fairseq would give each sentence."""
        batch, padded_length = net_input["src_tokens"].shape
        longest = self.max_len // self.geometry.step * self.geometry.step - 1
        # Stock counts the padded width of the batch, so outputs can depend on it when max_len_a > 0.
        limit = min(int(self.max_len_a * padded_length + self.max_len_b), longest)
        floors, limits = [self.min_len] * batch, [limit] * batch
        if self.match_source_len:
            floors = limits = [min(n, longest) for n in net_input["src_lengths"].tolist()]
        elif self.min_len > limit:
            raise ValueError(
                f"--min-len {self.min_len} is larger than the maximum length {limit}, "
                "which --max-len-a and --max-len-b set"
            )
        return StepRules(
            self.pad,
            self.unk,
            self.eos,
            floors,
            limits,
            unk_penalty=self.unk_penalty,
            free_end=self.match_source_len,
            all_agree=self.end_condition == ALL,
        )

    def _ranked(self, found: Found) -> list[Hypothesis]:
        """Line 20: the B best by score, in reading order."""
        ranked = [self._hypothesis(written, found.steps) for written in found.hypotheses]
        ranked.sort(key=lambda hypothesis: float(hypothesis["score"]), reverse=True)
        return ranked[: self.beam_size]

    def _hypothesis(self, written: Written, steps: int) -> Hypothesis:
        length = len(written.tokens)
        reading = reading_order(length - 1, self.geometry)  # (T,)
        tokens, scores = written.tokens[reading], written.scores[reading]
        score = scores.sum()
        if self.normalize_scores:
            score = score / ((5 + length) / 6 if self.gnmt else length) ** self.len_penalty
        history: list[dict[str, Tensor]] = []
        if self.retain_history:
            history = step_history(tokens, reading, self.geometry.step, self.pad)
        return {
            "tokens": tokens,
            "score": score,
            "positional_scores": scores,
            "attention": torch.empty(0),
            "alignment": torch.empty(0),
            "steps": steps,
            "history": history,
        }

    def _align(self, net_input: dict[str, Tensor], hypotheses: list[list[Hypothesis]]) -> None:
        """Adds attention and alignment from a pass over the finished hypotheses."""
        owners = [i for i, ranked in enumerate(hypotheses) for _ in ranked]
        flat = [hypothesis for ranked in hypotheses for hypothesis in ranked]
        tokens = [hypothesis["tokens"] for hypothesis in flat]
        previous = data_utils.collate_tokens(tokens, self.pad, self.eos, move_eos_to_beginning=True)
        device = net_input["src_tokens"].device
        rows, previous = to_device(owners, device), sent(previous, device)
        src_tokens, src_lengths = net_input["src_tokens"][rows], net_input["src_lengths"][rows]
        with torch.no_grad():
            outputs = [
                model(src_tokens, src_lengths, previous, features_only=True)
                for model in self.model.models
            ]
        attention = (
            torch.stack(
                [attention_of(*pair) for pair in zip(self.model.models, outputs, strict=True)]
            )
            .mean(0)
            .cpu()
        )  # (R, T, S)
        extract = getattr(utils, f"extract_{self.print_alignment}_alignment")
        sources = on_host(net_input["src_tokens"])[owners]
        for hypothesis, weights, source, target in zip(
            flat, attention, sources, tokens, strict=True
        ):
            weights = weights[: len(target)].clone()  # (T, S)
            hypothesis["attention"] = weights.transpose(0, 1).clone()
            hypothesis["alignment"] = extract(weights, source, target, self.pad, self.eos)


def step_history(tokens: Tensor, reading: Tensor, step: int, pad: int) -> list[dict[str, Tensor]]:
    """What a finished hypothesis was after every step that wrote it, in reading order.

    ``fairseq-generate --retain-iter-history`` prints a line for each. ``--dedup`` comes after the last one.

    Args:
        tokens: (T,) int64, in reading order.
        reading: (T,) slot of each token.
        step: z.
        pad: stands where nothing is written yet.

    Returns:
        ``{tokens: (T,)}`` per step.
    """
    return [
        {"tokens": tokens.masked_fill(reading >= written, pad)}
        for written in range(step, len(tokens) + step, step)
    ]


def count_sentence(counters: Counters, found: Found, tokens: int, step: int) -> None:
    """Counts a sentence whose best hypothesis has ``tokens`` tokens, written ``step`` per iteration.

    Iterations after the best hypothesis was finished gained nothing.
    """
    whole, rest = divmod(tokens, step)
    counters.sentences += 1
    counters.iterations += found.steps
    counters.emitted[step] += whole
    counters.emitted[rest] += bool(rest)
    counters.emitted[0] += found.steps - whole - bool(rest)


def remove_repeats(hypothesis: Hypothesis, longest: int) -> None:
    """Writes every n-gram that directly follows itself once (section 5.1), in place; its score stays.

    Args:
        hypothesis: with ``tokens`` and ``positional_scores``, (T,) each.
        longest: the largest n.
    """
    kept = distinct(hypothesis["tokens"].tolist()[:-1], longest)
    index = torch.tensor([*kept, len(hypothesis["tokens"]) - 1], device=hypothesis["tokens"].device)
    for name in ("tokens", "positional_scores"):
        hypothesis[name] = hypothesis[name][index]


def distinct(words: Sequence[int], longest: int) -> list[int]:
    """Indices of the words that stay when n-grams that directly follow themselves are written once.

    Short n-grams come first: ``a a b a a b`` is ``a b a b`` after n = 1 and ``a b`` after n = 2.
    """
    kept = list(range(len(words)))
    for n in range(1, min(longest, len(words) // 2) + 1):
        result: list[int] = []
        for index in kept:
            result.append(index)
            last = [words[i] for i in result[-2 * n :]]
            if len(last) == 2 * n and last[:n] == last[n:]:
                del result[-n:]
        kept = result
    return kept


def common_geometry(models: Sequence[Any], option: str = "--path") -> Geometry:
    """The geometry of the models, which ``option`` named; a stock Transformer is (1, 1).

    Raises:
        ValueError: a model that does not write slots, or models of different geometries.
    """
    geometries = set()
    for model in models:
        decoder = model.decoder
        if isinstance(decoder, InterleavedDecoder):
            geometries.add(decoder.geometry)
        elif type(decoder) in (TransformerDecoder, TransformerDecoderBase):
            geometries.add(Geometry())
        else:
            raise ValueError(
                "interleaved decoding needs a model of --arch interleaved_transformer or a stock Transformer; that of "
                f"{option} has a {type(decoder).__name__}"
            )
    if len(geometries) > 1:
        raise ValueError(
            f"only models that write in the same order can be averaged; those of {option} differ in "
            "--directions, --words-per-direction or their ablations"
        )
    return geometries.pop()
