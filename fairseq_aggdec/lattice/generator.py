"""``--decoding lattice``: fairseq's generator contract around lattice, scorer and Viterbi (Deng and Rush 2021)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.lattice.candidates import CandidateModel, Smoothing
from fairseq_aggdec.lattice.lattice import Lattice
from fairseq_aggdec.lattice.length import LengthWindow
from fairseq_aggdec.lattice.scoring import EdgeScorer, Normalise
from fairseq_aggdec.lattice.viterbi import BestPaths
from fairseq_aggdec.options.hypotheses import Hypothesis, best_first, hypothesis
from fairseq_aggdec.options.options import Options
from fairseq_aggdec.search.engines import LATTICE
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.search.generator import CachedGenerator
from fairseq_aggdec.search.state import Batch
from fairseq_aggdec.windows.transfer import on_host, read

ROWS_AT_ONCE = 4  # sentences on a CPU
MANY = 256  # candidates, above which those that there are get counted

# Options that the search cannot honour, with the reason.
REFUSED = {
    "sampling": "it searches for the best path",
    "diverse_beam_groups": "it has no beam",
    "diversity_rate": "it has no beam",
    "constraints": "its words come from the candidates",
    "prefix_allowed_tokens_fn": "its words come from the candidates",
    "prefix_size": "its words come from the candidates",
    "no_repeat_ngram_size": "a path knows one word before each",
    "lm_path": "a path knows one word before each",
    "retain_dropout": "dropout is off in the cached decoder",
    "retain_iter_history": "there is one iteration",
    "print_alignment": "the scorer's attention belongs to edges, not to a sentence",
}


@dataclass
class Searched:
    """Some sentences of a batch: their lattice, its best paths, and whose scores are not numbers (B,)."""

    lattice: Lattice
    paths: BestPaths
    broken: Tensor


class LatticeGenerator(CachedGenerator):
    """The best paths through the lattice of each sentence; exact, whatever the beam.

    There is no loop: a lattice is scored in one call.

    Args:
        models, tgt_dict, **options: as :class:`~fairseq_aggdec.search.generator.CachedGenerator`.
        candidate_model: proposes words; taken to the device of the sentences.
        candidates: N; with 1 there is nothing to search, and the models do not run.
        least: probability below which a candidate is not scored; 0 scores all, as in the paper.
        length_window: dL.
        smoothing: of the candidates' probabilities.
        normalise: see :class:`~fairseq_aggdec.lattice.scoring.EdgeScorer`.
        count: paths per sentence (``--nbest``).
    """

    decoding = "lattice"
    refused = REFUSED
    asked_search = LATTICE

    def __init__(
        self,
        models: Sequence[nn.Module],
        tgt_dict: Any,
        *,
        candidate_model: CandidateModel,
        candidates: int,
        least: float,
        length_window: int,
        smoothing: Smoothing,
        normalise: Normalise,
        count: int = 1,
        **options: Any,
    ):
        self.normalise = normalise
        super().__init__(models, tgt_dict, **options)
        self.candidate_model = candidate_model
        self.candidates, self.least, self.length_window = candidates, least, length_window
        self.smoothing, self.count = smoothing, count

    def _build_verifier(self, models: list[Any], precision: Precision) -> EdgeScorer:
        return EdgeScorer(models, self.normalise, precision, self.temperature)

    def _needs_whole_batches(self) -> bool:
        return True  # there is no loop that could run without the host

    def _decode(self, batch: Batch) -> list[Searched]:
        done: list[Searched] = self._engine(self._request()).decode(self, batch)
        return done

    def on_board(self, batch: Batch) -> list[Searched]:
        done = []
        for part in _cache_sized(batch.net_input):
            done.append(self._best(part, batch.start))
            self.counters.calls += 1
        return done

    def _best(self, net_input: Mapping[str, Tensor], start: int) -> Searched:
        """The best paths of some sentences."""
        if self.candidates == 1:  # one path, whose scores are the candidates' own: no network runs
            lattice = self._lattice(net_input["src_tokens"])
            unary = lattice.log_probabilities
            first, edges = self._penalised(lattice, unary[:, 0], unary[:, 1:].unsqueeze(2))
        else:
            lattice, first, edges = self.scored(net_input, start)
        with self.counters.clock("other"):
            # One number per sentence says whether any score is NaN, which Viterbi's whole numbers would hide.
            broken = (first.sum(1) + edges.flatten(1).sum(1)).isnan()
            count = None if self.count == 1 else self.count
            return Searched(lattice, lattice.search(first, edges, count), broken)

    def scored(
        self, net_input: Mapping[str, Tensor], start: int | None = None
    ) -> tuple[Lattice, Tensor, Tensor]:
        """The lattice of a batch and its scores behind a start symbol: (B, N) and (B, T - 1, N, N)."""
        with self.counters.clock("encoder"):
            self.verifier.start(net_input)
        lattice = self._lattice(net_input["src_tokens"])
        with self.counters.clock("verify"):
            scores = self.verifier.scores(lattice, self.eos if start is None else start)
            return lattice, *self._penalised(lattice, *scores)

    def _penalised(self, lattice: Lattice, first: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (B, N) and (B, T - 1, N, N) with ``--unkpen``."""
        if not self.unk_penalty:
            return first, edges
        unknown = lattice.tokens == self.unk
        # No product: an infinite penalty, which bans the word, times 0 would be NaN.
        first = torch.where(unknown[:, 0], first - self.unk_penalty, first)
        edges = torch.where(unknown[:, 1:].unsqueeze(2), edges - self.unk_penalty, edges)
        return first, edges

    def _lattice(self, source: Tensor) -> Lattice:
        """The candidates of a batch (B, S)."""
        with self.counters.clock("draft"):
            # Not when it is built: training builds the generator of --eval-bleu before the model has its device.
            self.candidate_model = self.candidate_model.to(source.device)
            lengths = self._lengths(on_host(source))
            lattice = self.candidate_model.lattice(source, self.candidates, self.smoothing, lengths)
            if self.least or self.candidates > MANY:
                lattice = lattice.pruned(self.least)
        return lattice

    def _lengths(self, source: Tensor) -> LengthWindow:
        """The lengths that are searched for sources (B, S) of the host, within stock's limits."""
        words = ((source != self.pad) & (source != self.eos)).sum(1)
        # `</s>` counts in fairseq's source lengths, so stock too writes one word more than the source has.
        net_input = {"src_tokens": source, "src_lengths": words + 1}
        limits = Options.of(self).limits(net_input, self.model.models, self.max_len - 1)
        if limits.exact:
            ends = torch.tensor(limits.ends)
            return LengthWindow(ends, ends)
        longest = limits.longest
        window = self.candidate_model.length.window(words, self.length_window, max(1, longest))
        floor = limits.floor
        return LengthWindow(window.shortest.clamp(min=floor), window.longest.clamp(min=floor))

    def _hypotheses(self, done: list[Searched]) -> list[list[Hypothesis]]:
        nbest: list[list[Hypothesis]] = []
        with self.counters.clock("other"):
            for part in done:
                nbest += self._of_part(part, len(nbest))
        for ranked in nbest:
            self.counters.sentences += 1
            self.counters.iterations += 1
            self.counters.emitted[len(ranked[0]["tokens"])] += 1
        return nbest

    def _of_part(self, part: Searched, before: int) -> list[list[Hypothesis]]:
        """The hypotheses of some sentences, which come after ``before`` others of their batch."""
        lattice, paths, broken = part.lattice, part.paths, part.broken
        rows, positions = lattice.tokens.shape[:2]
        tokens = lattice.read(paths.choices).view(rows, -1, positions)  # (B, P, T)
        scores = paths.position_scores.view(rows, -1, positions)
        totals = paths.scores.view(rows, -1)
        tokens, scores, totals, broken = read([tokens, scores, totals, broken])
        tokens, lost = tokens.long(), broken.bool().unsqueeze(1) | ~totals.isfinite()
        lengths = (tokens != self.pad).sum(2).masked_fill(lost, 0).tolist()
        nbest = []
        for row in range(rows):
            if not any(lengths[row]):
                raise NonFiniteError(before + row)
            paths_of_row = zip(tokens[row], scores[row], lengths[row], strict=True)
            nbest.append(best_first(self._hypothesis(*path) for path in paths_of_row if path[2]))
        return nbest

    def _hypothesis(self, tokens: Tensor, scores: Tensor, length: int) -> Hypothesis:
        scores = scores[:length].float()
        score = self.options.score(scores.sum(), length)
        return hypothesis(tokens[:length].clone(), scores, score, steps=1)


def _cache_sized(net_input: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """A batch in parts whose lattices stay in the caches of a CPU; whole on other devices."""
    rows = net_input["src_tokens"].size(0)
    if rows <= ROWS_AT_ONCE or net_input["src_tokens"].device.type != "cpu":
        yield dict(net_input)
        return
    for start in range(0, rows, ROWS_AT_ONCE):
        yield {name: value[start : start + ROWS_AT_ONCE] for name, value in net_input.items()}
