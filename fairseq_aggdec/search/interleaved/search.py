"""Algorithm 1 of Zhang et al. (2020): beam search with several words per step, over a batch of sentences.

Every iteration writes one step of z = h * c slots for each of B hypotheses per sentence, in one window of the
cached decoder. Sentences leave as soon as they have B finished hypotheses or no unfinished one.

The algorithm takes up every ending among the B best continuations of a hypothesis (``stop-rule=any``). Most of
these are far behind the best continuations of the sentence, so B endings are soon found and outputs get short. Stock
fairseq looks at 2B continuations and takes up an ending that is among the B best of the sentence: so does this search
unless told otherwise, and with one word per step it is stock's. There a hypothesis ends in one way, so that B others
remain; with more words per step it ends in many, and fewer may remain.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_aggdec.data.interleaving import Geometry, hidden_slots
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.options.stopping import check
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.interleaved.step import Steps, best_steps, best_words
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.windows.draft import Kept
from fairseq_aggdec.windows.masks import additive_mask
from fairseq_aggdec.windows.transfer import read, to_device
from fairseq_aggdec.windows.window import DecoderOutput, Window


class SlotWindow(Window):
    """The z slots of one step, for R rows in lockstep.

    Every slot sees all of them and all before (Eq. 4) unless an ablation hides some.

    Args:
        tokens: (R * z,) int64, what the slots read.
        first: the first of the slots.
        rows: R.
        geometry: of the model.
    """

    def __init__(self, tokens: Tensor, first: int, rows: int, geometry: Geometry):
        blocks = None if geometry.vanilla_mask else [0] * rows
        super().__init__(tokens, [first] * rows, [geometry.step] * rows, blocks)
        self.geometry, self.gridded = geometry, not geometry.independent

    def mask(self, dtype: torch.dtype, span: int | None = None) -> Tensor | None:
        if not self.geometry.independent:
            return super().mask(dtype, span)
        hidden = hidden_slots(self.starts[0], self.end, self.geometry, self.tokens.device)
        return additive_mask(hidden.unsqueeze(0), dtype)


# A finished hypothesis: its tokens in writing order, ``</s>`` last; their log-probabilities in nats, that of ``</s>``
# with what later slots of its step agreed to.
Written = tuple[list[int], list[float]]


@dataclass
class SentenceResult:
    """Hypotheses that were found for one sentence.

    Attributes:
        hypotheses: the finished ones in order of finishing; B of them, ``any_ending`` B or more, fewer at the length
            limit.
        steps: that it took.
        broken: the model gave a score that is not a number.
    """

    hypotheses: list[Written] = field(default_factory=list)
    steps: int = 0
    broken: bool = False


@dataclass
class Beams:
    """The unfinished hypotheses of the sentences that are left.

    Attributes:
        sentences: which they are, in order of rows.
        width: rows per sentence: 1 at first, then B.
        totals: (R,) scores; -inf for a row that holds nothing.
        tokens, scores: (R, t) what was written, in writing order.
    """

    sentences: list[int]
    width: int
    totals: Tensor
    tokens: Tensor
    scores: Tensor

    def written(self, steps: Steps, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and scores (K, t + z) of the continuations ``chosen`` (K,), numbered row by row."""
        rows = chosen // steps.totals.size(1)
        words = steps.words.flatten(0, 1).index_select(0, chosen)
        scores = steps.scores.flatten(0, 1).index_select(0, chosen)
        return (
            torch.cat([self.tokens.index_select(0, rows), words], 1),
            torch.cat([self.scores.index_select(0, rows), scores], 1),
        )

    @property
    def row_sentences(self) -> list[int]:
        return [sentence for sentence in self.sentences for _ in range(self.width)]


class InterleavedSearch:
    """Algorithm 1 for models of one geometry.

    Args:
        rules: generation options.
        beam: B.
        device: of the models.
        geometry: of the models.
        limits: lengths of the outputs, as slots.
        start: what the slots of the first step read.
        all_agree: behind ``</s>`` every slot of the step must say ``</s>`` too.
        any_ending: take up every ending among the B best continuations of a hypothesis.
    """

    def __init__(
        self,
        rules: Rules,
        beam: int,
        device: torch.device,
        geometry: Geometry,
        limits: Limits,
        start: int,
        all_agree: bool = False,
        any_ending: bool = False,
    ):
        self.geometry, self.rules, self.limits, self.beam = geometry, rules, limits, beam
        self.all_agree, self.any_ending = all_agree, any_ending
        self.width = beam if any_ending else 2 * beam  # continuations of a hypothesis, W
        count = len(limits.ends)
        self.results = [SentenceResult() for _ in range(count)]
        # Tokens and scores of the finished hypotheses of each, on the device until all have been found.
        self.written: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(count)]
        totals = torch.zeros(count, dtype=torch.float32, device=device)
        nothing = totals.new_empty(count, 0)
        self.beams = Beams(list(range(count)), 1, totals, nothing.long(), nothing)
        self.read = torch.full((count * geometry.step,), start, device=device)
        self.first = 0  # slot of the next step

    @torch.inference_mode()
    def decode(self, verifier: Verifier, counters: Counters) -> list[SentenceResult]:
        """Decodes to the end; ``counters`` gets the number of calls and the seconds of each part."""
        now = counters.read()
        while self.beams.sentences:
            check()
            window = self.next_window()
            now = counters.ended("draft", now)
            output = verifier.read(window)
            now = counters.ended("verify", now)
            kept = self.update(output)
            if kept is not None:
                verifier.keep(kept)
            now = counters.ended("other", now)
            counters.calls += 1
        self._to_host()
        return self.results

    def _to_host(self) -> None:
        flat = [tensor for collected in self.written for written in collected for tensor in written]
        parts = iter(read(flat) if flat else ())
        for sentence, collected in zip(self.results, self.written, strict=True):
            for _ in collected:
                sentence.hypotheses.append((next(parts).tolist(), next(parts).tolist()))

    def next_window(self) -> SlotWindow:
        return SlotWindow(self.read, self.first, len(self.beams.totals), self.geometry)

    def update(self, output: DecoderOutput) -> Kept | None:
        steps = self._continuations(output.logits)
        kept = self._advance(steps)
        self.read = self.beams.tokens[:, self.first :].flatten()
        self.first += self.geometry.step
        return kept

    def _continuations(self, logits: Tensor) -> Steps:
        grid = logits.view(-1, self.geometry.step, logits.size(1))
        width = min(self.width, grid.size(2))
        rows = self.beams.row_sentences
        rules = self.rules
        best, words, ends = best_words(grid, self.first, rows, width, rules, self.limits)
        return best_steps(best, words, ends if self.all_agree else None, rules.eos, rules.pad)

    def _advance(self, steps: Steps) -> Kept | None:
        """Lines 9 to 17: collects what is finished, keeps the B best of the rest, lets sentences leave."""
        beams, beam, results = self.beams, self.beam, self.results
        count = len(beams.sentences)
        totals = beams.totals.unsqueeze(1) + steps.totals  # (R, W)
        ended = steps.ends < self.geometry.step
        going_on = totals.masked_fill(ended, -torch.inf).view(count, -1)  # (N, rows * W)
        live, best = going_on.topk(beam)
        done = ended & (totals > -torch.inf)
        if not self.any_ending:
            leading = totals.view(count, -1).topk(beam).values[:, -1:]  # (N, 1)
            done &= (totals.view(count, -1) >= leading).view_as(done)
        # One transfer to the host: which continuations are finished, with what score and where, which sentences go on
        # and which are broken (NaN is the largest number there is).
        leader = live[:, 0]
        host = read([done, totals, steps.ends, leader > -torch.inf, leader.isnan()])
        flags, scores, ends, alive, broken = (part.flatten().tolist() for part in host)
        finished = [i for i, flag in enumerate(flags) if flag]
        if finished:
            finished.sort(key=scores.__getitem__, reverse=True)
            lengths = [self.first + int(ends[i]) + 1 for i in finished]
            self._collect(finished, lengths, steps)
        for sentence, lost in zip(beams.sentences, broken, strict=True):
            results[sentence].steps += 1
            results[sentence].broken |= bool(lost)
        stays = [
            i
            for i, sentence in enumerate(beams.sentences)
            if alive[i] and len(self.written[sentence]) < beam
        ]
        return self._select(steps, live, best, stays)

    def _select(self, steps: Steps, live: Tensor, best: Tensor, stays: list[int]) -> Kept | None:
        """Goes on with the sentences that stay: ``live``, ``best`` (N, B) scores and continuations."""
        beams = self.beams
        leaving = len(stays) < len(beams.sentences)
        per_sentence = beams.width * steps.totals.size(1)
        first = torch.arange(0, steps.totals.numel(), per_sentence, device=best.device)
        chosen = best + first.unsqueeze(1)
        if leaving:
            index = to_device(stays, best.device, torch.long)
            live, chosen = live[index], chosen[index]
        chosen = chosen.flatten()  # (R',) of the R * W continuations
        rows = chosen // steps.totals.size(1)
        kept = None
        if stays and (leaving or beams.width < self.beam):
            kept = Kept(gathered=rows)
        elif stays and self.beam > 1:
            kept = Kept(gathered=rows, within=self.first + self.geometry.step)
        sentences = [beams.sentences[i] for i in stays]
        self.beams = Beams(sentences, self.beam, live.flatten(), *beams.written(steps, chosen))
        return kept

    def _collect(self, finished: list[int], lengths: list[int], steps: Steps) -> None:
        """Takes up finished hypotheses, given as indices into (R, W), best first, and the tokens of each."""
        beams, width = self.beams, steps.totals.size(1)
        index = to_device(finished, steps.words.device)
        tokens, scores = beams.written(steps, index)
        for i, (flat, length) in enumerate(zip(finished, lengths, strict=True)):
            collected = self.written[beams.sentences[flat // width // beams.width]]
            if self.any_ending or len(collected) < self.beam:
                collected.append((tokens[i, :length], scores[i, :length]))
