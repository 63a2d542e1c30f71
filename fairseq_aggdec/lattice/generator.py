"""``--decoding lattice``: fairseq's generator contract around lattice, scorer and Viterbi (Deng and Rush 2023)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.lattice.candidates import CandidateModel, Smoothing
from fairseq_aggdec.lattice.lattice import Lattice
from fairseq_aggdec.lattice.length import LengthWindow
from fairseq_aggdec.lattice.scoring import EdgeScorer, Normalise
from fairseq_aggdec.lattice.viterbi import BestPaths, Form
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError, refusal
from fairseq_aggdec.search.generator import send_hypotheses
from fairseq_aggdec.search.guards import exclusive
from fairseq_aggdec.windows.transfer import begin, on_host, read

Hypothesis = dict[str, Any]
ROWS_AT_ONCE = 4  # sentences on a CPU
MANY = 256  # candidates, above which those that there are get counted
EDGE_BYTES = 48  # scores, their fixed-point form and masks while an edge is searched
PATH_BYTES = 24  # of every way into a candidate, with --nbest
LARGE = 2**28  # bytes, above which free memory is asked for

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


class LatticeGenerator(SequenceGenerator):
    """The best paths through the lattice of each sentence; exact, whatever the beam.

    Subclassing ``SequenceGenerator`` lets stock ``build_generator`` read every stock option; only ``_generate``
    is ours.

    Args:
        models, tgt_dict, **options: as ``SequenceGenerator``.
        candidate_model: proposes words; taken to the device of the sentences.
        counters: statistics, added to.
        candidates: N; with 1 there is nothing to search, and the models do not run.
        least: probability below which a candidate is not scored; 0 scores all, as in the paper.
        length_window: dL.
        smoothing: of the candidates' probabilities.
        normalise: see :class:`~fairseq_aggdec.lattice.scoring.EdgeScorer`.
        form: of the Viterbi search.
        count: paths per sentence (``--nbest``).
        precision: how the models compute.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        tgt_dict: Any,
        *,
        candidate_model: CandidateModel,
        counters: Counters,
        candidates: int,
        least: float,
        length_window: int,
        smoothing: Smoothing,
        normalise: Normalise,
        form: Form,
        count: int = 1,
        precision: Precision = EXACT,
        **options: Any,
    ):
        super().__init__(models, tgt_dict, **options)
        self.candidate_model, self.counters = candidate_model, counters
        self.candidates, self.least, self.length_window = candidates, least, length_window
        self.smoothing, self.form, self.count = smoothing, form, count
        self.scorer = EdgeScorer(models, normalise, precision, self.temperature)

    @exclusive
    def prepare(self) -> None:
        """Packs the weights now: the first sentence does not wait for it."""
        self.scorer.prepare()

    @exclusive
    def refresh(self) -> None:
        """Reads the models anew before the next batch, whatever has changed in them."""
        for member in self.scorer.members:
            member.forget()

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
            per sentence up to ``count`` hypotheses, best first: ``tokens`` (T,) with the final ``</s>``,
            ``positional_scores`` (T,), those of the path's edges in nats, ``score``, their sum (length-normalised
            unless ``--unnormalized``), ``attention``, ``alignment``, and ``steps``, which is 1.

        Raises:
            ValueError: forced words, or a minimum length above the maximum.
            NonFiniteError: a sentence whose scores are NaN or infinite.
        """
        if prefix_tokens is not None or constraints is not None:
            option = "--constraints" if prefix_tokens is None else "--prefix-size"
            raise ValueError(refusal(option, "lattice", REFUSED["prefix_size"]))
        net_input = sample["net_input"]
        found = []
        for part in _cache_sized(net_input):
            try:
                found += self._best(part, bos_token)
            except NonFiniteError as error:
                raise NonFiniteError(len(found) + (error.row or 0)) from None
            self.counters.calls += 1
        for hypotheses in found:
            self.counters.sentences += 1
            self.counters.iterations += 1
            self.counters.emitted[len(hypotheses[0]["tokens"])] += 1
        return found

    def _best(
        self, net_input: Mapping[str, Tensor], bos_token: int | None
    ) -> list[list[Hypothesis]]:
        """Hypotheses of the sentences of a batch."""
        watches = [member.watch for member in self.scorer.members if member.watch is not None]
        begin([net_input["src_tokens"]], watches)
        with torch.inference_mode():
            if (
                self.candidates == 1
            ):  # one path: no network is asked, and its scores are the candidates' own
                lattice = self._lattice(net_input["src_tokens"])
                own = lattice.log_probabilities
                first, edges = self._penalised(lattice, own[:, 0], own[:, 1:].unsqueeze(2))
            else:
                with self.counters.clock("encoder"):
                    self.scorer.start(net_input)
                lattice, first, edges = self.scored(net_input, bos_token)
            with self.counters.clock("other"):
                # One number per sentence says whether any score is NaN, which Viterbi's whole numbers would hide.
                broken = (first.sum(1) + edges.flatten(1).sum(1)).isnan()
                count = None if self.count == 1 else self.count
                paths = lattice.search(first, edges, count, self.form)
        with self.counters.clock("other"):  # outside: what fairseq gets it changes in place
            return self._hypotheses(lattice, paths, broken)

    def scored(
        self, net_input: Mapping[str, Tensor], bos_token: int | None = None
    ) -> tuple[Lattice, Tensor, Tensor]:
        """The lattice of a batch that the scorer has encoded, and its scores: (B, N) and (B, T - 1, N, N)."""
        lattice = self._lattice(net_input["src_tokens"])
        with self.counters.clock("verify"):
            start = self.eos if bos_token is None else bos_token
            first, edges = self.scorer.scores(lattice, start)
            first, edges = self._penalised(lattice, first, edges)
        return lattice, first, edges

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
            positions = int(lengths.longest.max()) + 1
            lattice = self.candidate_model.lattice(
                source,
                self.candidates,
                self.smoothing,
                lengths.to(source.device),
                positions=positions,
            )
            if self.least or self.candidates > MANY:
                lattice = lattice.pruned(self.least)
            self._check_room(lattice)
        return lattice

    def _check_room(self, lattice: Lattice) -> None:
        """Raises ``ValueError`` for a lattice whose edges, N x N for each position, do not fit into memory."""
        rows, positions, count = lattice.tokens.shape
        pairs = rows * count * count
        needed = pairs * max(positions * EDGE_BYTES, self.count * PATH_BYTES * (self.count > 1))
        if needed > LARGE and needed > (free := free_bytes(lattice.tokens.device)):
            option = (
                "--lattice-candidates" if positions * EDGE_BYTES * pairs == needed else "--nbest"
            )
            raise ValueError(
                f"{option}: the lattices of {rows} sentences with {count} candidates at {positions} positions take "
                f"{needed / 2**30:.0f} GiB, {free / 2**30:.0f} GiB are free; ask for fewer"
            )

    def _lengths(self, source: Tensor) -> LengthWindow:
        """The lengths that are searched, within the limits that stock fairseq would give each sentence."""
        words = ((source != self.pad) & (source != self.eos)).sum(1)
        if self.match_source_len:
            # `</s>` counts in fairseq's source lengths, so stock too writes one word more than the source has.
            return LengthWindow.exactly((words + 1).clamp(max=self.max_len - 1))
        # Stock counts the padded width of the batch, so outputs can depend on it when max_len_a > 0.
        limit = min(int(self.max_len_a * source.size(1) + self.max_len_b), self.max_len - 1)
        if self.min_len > limit:
            raise ValueError(
                f"--min-len {self.min_len} is larger than the maximum length {limit}, "
                "which --max-len-a and --max-len-b set"
            )
        window = self.candidate_model.length.window(words, self.length_window, max(1, limit))
        floor = min(self.min_len, limit)
        return LengthWindow(
            window.shortest.clamp(min=floor), window.longest.clamp(min=floor), window.single
        )

    def _hypotheses(
        self, lattice: Lattice, paths: BestPaths, broken: Tensor
    ) -> list[list[Hypothesis]]:
        """Of every sentence; ``broken`` (B,): its scores are not numbers."""
        rows, positions = lattice.tokens.shape[:2]
        tokens = lattice.read(paths.choices).view(rows, -1, positions)  # (B, P, T)
        scores = paths.position_scores.view(rows, -1, positions)
        totals = paths.scores.view(rows, -1)
        device = tokens.device
        tokens, scores, totals, broken = read([tokens, scores, totals, broken])
        tokens, lost = tokens.long(), broken.bool().unsqueeze(1) | ~totals.isfinite()
        lengths = (tokens != self.pad).sum(2).masked_fill(lost, 0).tolist()
        found = []
        for row in range(rows):
            if not any(lengths[row]):
                raise NonFiniteError(row)
            ranked = [
                self._hypothesis(tokens[row, path, :length], scores[row, path, :length])
                for path, length in enumerate(lengths[row])
                if length
            ]
            ranked.sort(key=lambda hypothesis: float(hypothesis["score"]), reverse=True)
            found.append(ranked)
        send_hypotheses(found, device)
        return found

    def _hypothesis(self, tokens: Tensor, scores: Tensor) -> Hypothesis:
        scores = scores.float()
        score = scores.sum()
        if self.normalize_scores:
            score = score / len(scores) ** self.len_penalty
        return {
            "tokens": tokens.clone(),
            "score": score,
            "positional_scores": scores,
            "attention": torch.empty(0),
            "alignment": torch.empty(0),
            "steps": 1,
        }


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device; what Linux and its control group say, a lot where they say nothing."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [2**62]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        found.append(int(available.split()[1]) * 2**10)
    with suppress(OSError, ValueError):  # "max" is no number
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(limit - used)
    return max(0, min(found))


def _cache_sized(net_input: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """A batch in parts whose lattices stay in the caches of a CPU; whole on other devices."""
    rows = net_input["src_tokens"].size(0)
    at_once = ROWS_AT_ONCE if net_input["src_tokens"].device.type == "cpu" else rows
    for start in range(0, rows, at_once):
        yield {name: value[start : start + at_once] for name, value in net_input.items()}
