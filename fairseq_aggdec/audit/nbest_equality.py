"""The equality audit of beam search: every hypothesis of stock's n-best list, their order and their scores.

Where two lists differ, stock decodes the batch again, recorded, and the first step at which the two searches part
decides: continuations that stock itself scores closer than rounding are a *tie*, everything else is a *BUG*. What comes
of a tie later may differ by any margin.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.api.session import Hypothesis, Session
from fairseq_aggdec.audit.equality import BUG, TIE, Audit, Difference, compare_scores, samples
from fairseq_aggdec.search.beam.tree import SearchedTree

Prefix = tuple[int, ...]
# (sum of log-probabilities in nats, output tokens)
Scored = tuple[float, Prefix]
Ranked = list[Hypothesis]


class StockSteps(torch.nn.Module):
    """Stock's search strategy, which writes down what it decides from and what comes of it.

    Args:
        search: stock's.
        margin: nats by which a continuation may be worse than the last one that stock looked at, and is written down
            with stock's own score all the same: which of several equals is the last is a tie.

    Attributes:
        beams: sentence -> the unfinished hypotheses of each step, best first.
        candidates: sentence -> the continuations of each step that stock looked at, best first, and their equals.
    """

    def __init__(self, search: Any, margin: float = 0.0):
        super().__init__()
        self.search, self.margin = search, margin
        self.beams: dict[int, list[list[Scored]]] = {}
        self.candidates: dict[int, list[list[Scored]]] = {}

    def __getattr__(self, name: str) -> Any:
        search = self._modules["search"]
        return search if name == "search" else getattr(search, name)

    def step(
        self, step: int, lprobs: Tensor, scores: Tensor, tokens: Tensor, sentences: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        # (sentences, beam, V): of the first step one hypothesis counts, as in stock
        sums = lprobs + scores[:, :, -1:] if step else lprobs[:, :1].clone()
        chosen = self.search.step(step, lprobs, scores, tokens, sentences)
        outputs = tokens.view(len(sentences), -1, tokens.size(1))[:, :, 1:].tolist()
        totals = scores[:, :, -1].tolist() if step else [[0.0]] * len(sentences)
        values, words, rows = (table.tolist() for table in chosen)
        for at, sentence in enumerate(sentences.tolist()):
            beam = zip(totals[at], map(tuple, outputs[at]), strict=False)
            self.beams.setdefault(sentence, []).append(_finite(beam))
            grown = [
                (value, (*outputs[at][row], word))
                for value, word, row in zip(values[at], words[at], rows[at], strict=True)
            ]
            grown += [
                (float(sums[at, row, word]), (*outputs[at][row], word))
                for row, word in self._equals_of_last(sums[at], values[at], words[at], rows[at])
            ]
            self.candidates.setdefault(sentence, []).append(_finite(grown))
        return chosen

    def _equals_of_last(
        self, sums: Tensor, values: list[float], words: list[int], rows: list[int]
    ) -> list[tuple[int, int]]:
        """(row, word) of continuations, (beam, V) ``sums``, that are as good as the last that stock looked at."""
        near = sums.ge(values[-1] - self.margin) & sums.isfinite()
        looked_at = set(zip(rows, words, strict=True))
        return [
            (row, word) for row, word in near.nonzero().tolist() if (row, word) not in looked_at
        ]


def _finite(scored: Iterable[Scored]) -> list[Scored]:
    """A hypothesis of no probability stands for an empty place."""
    return [item for item in scored if item[0] > -math.inf]


def decode(session: Session, generator: Any, sample: dict[str, Any]) -> list[Ranked]:
    """The n-best lists of a sample."""
    size = session.cfg.generation.prefix_size
    prefix = sample["target"][:, :size] if size > 0 else None
    return session.task.inference_step(generator, session.models, sample, prefix_tokens=prefix)


def audit(
    session: Session,
    batch_size: int,
    beam: int,
    limit: int | None,
    tie_margin: float,
    score_tolerance: float,
    expected: Mapping[int, Sequence[Ranked]] | None = None,
) -> Audit:
    """Compares the n-best lists of ``--decoding beam`` with stock's, batch by batch.

    Args:
        session: whose data set is decoded; ``limit`` of its sentences, all through the task's own batching for None.
        tie_margin: nats below which stock's own preference is rounding; 0: every difference is a BUG, unexplained.
        score_tolerance: nats by which a positional score may differ.
        expected: lists of stock by sentence (:func:`decode_all`); None: stock decodes every batch beside ours.
    """
    stock = None if expected is not None else session.generator("stock", beam)[0]
    ours, _ = session.generator("beam", beam)
    sentences = session.sentences(limit)
    result, times = Audit(len(sentences)), dict.fromkeys(sentences, 0)
    for sample in samples(session, batch_size, limit, f"beam {beam}, batch {batch_size}"):
        lists = decode(session, ours, sample)
        ids = sample["id"].tolist()
        theirs = (
            decode(session, stock, sample) if expected is None else [expected[i][0] for i in ids]
        )
        differing = {}
        for row, (sentence, mine) in enumerate(zip(ids, lists, strict=True)):
            times[sentence] = times.get(sentence, 0) + 1
            if tokens_of(theirs[row]) == tokens_of(mine):
                result.equal += 1
                compare_scores(result, theirs[row], mine, score_tolerance)
            else:
                differing[sentence] = row, mine
        if differing:
            if tie_margin:
                differences = explain(session, beam, sample, ours, differing, tie_margin)
            else:
                differences = [
                    Difference(sentence, 0, "", "", math.inf, BUG) for sentence in differing
                ]
            result.differences += differences
            result.equal += len(differing) - len(differences)
    result.missing = sorted(sentence for sentence, count in times.items() if count != 1)
    return result


def decode_all(
    session: Session, batch_size: int, beam: int, limit: int | None, decoding: str = "stock"
) -> dict[int, list[Ranked]]:
    """Stock's n-best lists of every sentence, one unless a sentence came twice; with ``beam`` ours, nothing drafted."""
    stock, _ = session.generator(decoding, beam)
    if decoding == "beam":
        stock.ahead, stock.texts = False, None
    lists: dict[int, list[Ranked]] = {}
    for sample in samples(
        session, batch_size, limit, f"{decoding}, beam {beam}, batch {batch_size}"
    ):
        for sentence, ranked in zip(
            sample["id"].tolist(), decode(session, stock, sample), strict=True
        ):
            lists.setdefault(sentence, []).append(ranked)
    return lists


def tokens_of(ranked: Ranked) -> list[list[int]]:
    return [hypothesis["tokens"].tolist() for hypothesis in ranked]


def explain(
    session: Session,
    beam: int,
    sample: dict[str, Any],
    ours: Any,
    differing: Mapping[int, tuple[int, Ranked]],
    tie_margin: float,
) -> list[Difference]:
    """Decodes a batch again, recorded, by stock and by ``ours``, and classes the sentences of which these say other
    things: ``differing`` has their rows and our lists.

    Where stock says the same in this very batch there is no difference: it differs from itself in another one.
    """
    ours.keeps_trees = True
    try:
        decode(session, ours, sample)
    finally:
        ours.keeps_trees = False
    stock, _ = session.generator("stock", beam)
    steps = StockSteps(stock.search, tie_margin)
    stock.search = steps
    expected = dict(zip(sample["id"].tolist(), decode(session, stock, sample), strict=True))
    symbols, differences = session.task.target_dictionary, []
    for sentence, (row, mine) in differing.items():
        if tokens_of(expected[sentence]) == tokens_of(mine):
            continue
        search = ours.searches[row]
        rank, margin = difference(expected[sentence], mine, steps, search, sentence)
        verdict = TIE if margin < tie_margin else BUG
        left, right = (
            symbols.string(ranked[rank]["tokens"]) if rank < len(ranked) else ""
            for ranked in (expected[sentence], mine)
        )
        differences.append(Difference(sentence, rank, left, right, margin, verdict))
    return differences


def difference(
    theirs: Ranked, mine: Ranked, steps: StockSteps, search: SearchedTree, sentence: int
) -> tuple[int, float]:
    """The first rank at which two n-best lists of a sentence differ, and by how many nats stock prefers its own."""
    order, our_order = (
        [tuple(tokens) for tokens in tokens_of(ranked)] for ranked in (theirs, mine)
    )
    rank = next(
        (i for i, (a, b) in enumerate(zip(order, our_order, strict=False)) if a != b),
        min(len(order), len(our_order)),
    )
    beams = [[prefix for _, prefix in beam] for beam in steps.beams[sentence]]
    for depth, looked_at in enumerate(steps.candidates[sentence], start=1):
        scores = {prefix: score for score, prefix in looked_at}
        ended, we_ended = (
            [tokens for tokens in outputs if len(tokens) == depth] for outputs in (order, our_order)
        )
        margins = _margins_of_endings(ended, we_ended, scores)
        goes_on, we_go_on = depth < len(beams), depth < search.depth
        if goes_on and we_go_on:
            here = [tuple(search.tree.words(node)) for _, node in search.beams[depth]]
            margins += _margins_of_beams(beams[depth], here, scores)
        elif goes_on != we_go_on and not margins:
            margins = [math.inf]
        if margins:
            return rank, max(margins)
    return rank, _margin_of_order(theirs, mine)


def _margins_of_endings(
    theirs: Sequence[Prefix], mine: Sequence[Prefix], scores: Mapping[Prefix, float]
) -> list[float]:
    """Margins, nats, between each hypothesis that ended in one search only and another continuation, as stock saw
    them."""
    return [
        min(
            (
                abs(scores.get(output, math.inf) - scores[other])
                for other in scores
                if other != output
            ),
            default=math.inf,
        )
        for output in set(theirs) ^ set(mine)
    ]


def _margins_of_beams(
    theirs: Sequence[Prefix], mine: Sequence[Prefix], scores: Mapping[Prefix, float]
) -> list[float]:
    """Margins, nats, between each hypothesis that went on in one search only and those of the other, as stock saw
    them."""
    only_theirs, only_mine = set(theirs) - set(mine), set(mine) - set(theirs)
    return [
        max(
            (abs(scores.get(output, math.inf) - scores.get(other, -math.inf)) for other in others),
            default=math.inf,
        )
        for group, others in ((only_theirs, only_mine), (only_mine, only_theirs))
        for output in group
    ]


def _margin_of_order(theirs: Ranked, mine: Ranked) -> float:
    """Tells how far stock scored hypotheses from those that stand at their ranks in ours; infinity for other ones."""
    scores = {tuple(h["tokens"].tolist()): float(h["score"]) for h in theirs}
    if sorted(tokens_of(theirs)) != sorted(tokens_of(mine)):
        return math.inf
    return max(
        abs(float(stocks["score"]) - scores[tuple(ours["tokens"].tolist())])
        for stocks, ours in zip(theirs, mine, strict=True)
    )
