"""``--decoding interleaved``: fairseq's generator contract around Algorithm 1 of Zhang et al. (2020)."""

from collections.abc import Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.models.transformer import TransformerDecoder, TransformerDecoderBase
from torch import Tensor, nn

from fairseq_aggdec.data.interleaving import Geometry, reading_order
from fairseq_aggdec.models.interleaved_transformer import InterleavedDecoder
from fairseq_aggdec.options.hypotheses import Hypothesis, best_first, of_numbers
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.aligned import attention_of
from fairseq_aggdec.search.compiled.reader import CompiledReaders
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.engines import INTERLEAVED
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.search.generator import CachedGenerator
from fairseq_aggdec.search.interleaved.library import results_of, search_of
from fairseq_aggdec.search.interleaved.search import InterleavedSearch, SentenceResult, Written
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import Batch
from fairseq_aggdec.windows.transfer import on_host, sent, to_device

FIRST, ALL = "first", "all"

# Options that the search cannot honour, with the reason.
REFUSED = {
    "sampling": "it searches for the best hypotheses",
    "diverse_beam_groups": "its beams are not grouped",
    "diversity_rate": "its beams are not told apart by siblings",
    "constraints": "words are not written in reading order",
    "prefix_allowed_tokens_fn": "words are not written in reading order",
    "prefix_size": "words are not written in reading order",
    "no_repeat_ngram_size": "words are not written in reading order; --variant dedup removes repetitions afterwards",
    "lm_path": "words are not written in reading order",
    "retain_dropout": "dropout is off in the cached decoder",
}


class InterleavedGenerator(CachedGenerator):
    """Beam search with several words per step: per sentence the B best hypotheses, in reading order.

    Args:
        models, tgt_dict, **options: as :class:`~fairseq_aggdec.search.generator.CachedGenerator`; models
            of one geometry.
        end_condition: ``first``: a hypothesis ends with the first ``</s>`` of a step, as in the paper; ``all``:
            all slots of the step behind it must say ``</s>`` too, and this counts in its score.
        any_ending: every ending among the best continuations of a hypothesis counts, not only those among the best of
            the sentence.
        gnmt: scores are divided by ((5 + length) / 6) ** lenpen (Wu et al. 2016), not by length ** lenpen.
        dedup: n-grams up to this length that directly repeat themselves are written once; 0 for never.
        print_alignment: ``hard`` or ``soft``, None for no alignment.
    """

    decoding = "interleaved"
    refused = REFUSED
    asked_search = INTERLEAVED

    def __init__(
        self,
        models: Sequence[nn.Module],
        tgt_dict: Any,
        *,
        end_condition: str = FIRST,
        any_ending: bool = False,
        gnmt: bool = False,
        dedup: int = 0,
        print_alignment: str | None = None,
        **options: Any,
    ):
        super().__init__(models, tgt_dict, **options)
        self.end_condition, self.dedup = end_condition, dedup
        self.any_ending, self.gnmt = any_ending, gnmt
        self.print_alignment = print_alignment
        self.geometry = common_geometry(models)

    def _limits(self, batch: Batch) -> Limits:
        """A step is written whole, so an output ends at the last slot of one."""
        longest = self.max_len // self.geometry.step * self.geometry.step - 1
        return self.options.limits(batch.net_input, self.model.models, longest)

    def _needs_whole_batches(self) -> bool:
        return True  # its board takes any number of sentences

    def _decode(self, batch: Batch) -> tuple[Batch, list[SentenceResult]]:
        limits = self._limits(batch)
        with self.counters.clock("encoder"):
            self.verifier.start(batch.net_input, self.geometry.width(limits.capacity))
        return batch, self._engine(self._request()).decode(self, batch, limits)

    def _how(self, batch: Batch, limits: Limits) -> tuple[Geometry, Limits, int, bool, bool]:
        return self.geometry, limits, batch.start, self.end_condition == ALL, self.any_ending

    def in_library(self, batch: Batch, limits: Limits) -> list[SentenceResult]:
        search = search_of(self.options, *self._how(batch, limits))
        with self.counters.clock("verify"):
            CompiledReaders.of(self.verifier).run(search)
        calls, results = results_of(search, len(limits.ends))
        self.counters.calls += calls
        return results

    def on_board(self, batch: Batch, limits: Limits) -> list[SentenceResult]:
        rules, device, how = Rules.of(self.options), batch.source.device, self._how(batch, limits)
        board = InterleavedSearch(rules, self.beam_size, device, *how)
        return board.decode(self.verifier, self.counters)

    def _hypotheses(self, done: tuple[Batch, list[SentenceResult]]) -> list[list[Hypothesis]]:
        """Line 20: the B best by score, in reading order."""
        batch, sentences = done
        for row, sentence in enumerate(sentences):
            if sentence.broken or not sentence.hypotheses:
                raise NonFiniteError(row)
        nbest = []
        for sentence in sentences:
            ranked = best_first(
                self._hypothesis(written, sentence.steps) for written in sentence.hypotheses
            )[: self.beam_size]
            count_sentence(self.counters, sentence, len(ranked[0]["tokens"]), self.geometry.step)
            nbest.append(ranked)
        for one in (one for ranked in nbest for one in ranked):
            if self.dedup:
                remove_repeats(one, self.dedup)
        if self.print_alignment:
            self._align(batch.net_input, nbest)
        return nbest

    def _hypothesis(self, written: Written, steps: int) -> Hypothesis:
        length = len(written[0])
        reading = reading_order(length - 1, self.geometry)
        tokens = [written[0][slot] for slot in reading]
        scores = [written[1][slot] for slot in reading]
        score = self.options.score(sum(scores), (5 + length) / 6 if self.gnmt else length)
        history: list[list[int]] = []
        if self.retain_history:
            history = step_history(tokens, reading, self.geometry.step, self.pad)
        return of_numbers(tokens, scores, score, steps, history)

    def _align(self, net_input: dict[str, Tensor], hypotheses: list[list[Hypothesis]]) -> None:
        """Adds attention and alignment from a pass over the finished hypotheses."""
        owners = [i for i, ranked in enumerate(hypotheses) for _ in ranked]
        flat = [hypothesis for ranked in hypotheses for hypothesis in ranked]
        tokens = [hypothesis["tokens"] for hypothesis in flat]
        previous = data_utils.collate_tokens(tokens, self.pad, self.eos, move_eos_to_beginning=True)
        device = net_input["src_tokens"].device
        rows, previous = to_device(owners, device), sent(previous, device)
        src_tokens, src_lengths = net_input["src_tokens"][rows], net_input["src_lengths"][rows]
        attention = []
        with torch.no_grad():
            for model in self.model.models:
                outputs = model(src_tokens, src_lengths, previous, features_only=True)
                attention.append(attention_of(model, outputs))
        mean = torch.stack(attention).mean(0).cpu()  # (R, T, S)
        extract = getattr(utils, f"extract_{self.print_alignment}_alignment")
        sources = on_host(net_input["src_tokens"])[owners]
        for one, weights, source, target in zip(flat, mean, sources, tokens, strict=True):
            weights = weights[: len(target)].clone()  # (T, S)
            one["attention"] = weights.transpose(0, 1).clone()
            one["alignment"] = extract(weights, source, target, self.pad, self.eos)


def step_history(
    tokens: Sequence[int], reading: Sequence[int], step: int, pad: int
) -> list[list[int]]:
    """States of a finished hypothesis after every step that wrote it, in reading order: T tokens per step.

    ``fairseq-generate --retain-iter-history`` prints a line for each. ``--variant dedup`` comes after the last one.

    Args:
        tokens: T of them, in reading order.
        reading: slot of each token.
        step: z.
        pad: takes the place of what is not written yet.
    """
    return [
        [token if slot < written else pad for token, slot in zip(tokens, reading, strict=True)]
        for written in range(step, len(tokens) + step, step)
    ]


def count_sentence(counters: Counters, result: SentenceResult, tokens: int, step: int) -> None:
    """Counts a sentence whose best hypothesis has ``tokens`` tokens, written ``step`` per iteration.

    Iterations after the best hypothesis was finished gained nothing.
    """
    whole, rest = divmod(tokens, step)
    counters.sentences += 1
    counters.iterations += result.steps
    counters.emitted[step] += whole
    counters.emitted[rest] += bool(rest)
    counters.emitted[0] += result.steps - whole - bool(rest)


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
