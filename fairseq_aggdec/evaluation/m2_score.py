"""MaxMatch (M2): precision, recall and F0.5 of corrected sentences against M2 gold annotation.

Dahlmeier & Ng (2012), "Better Evaluation for Grammatical Error Correction", with the rules of
version 3.2 of the CoNLL-2014 scorer (not its code): a corrected sentence has no unique set of
edits, so the scorer takes the set that agrees best with the gold.

1. *Lattice.* Vertices are pairs (source position, hypothesis position); the edges are all steps
   (keep, replace, delete or insert one word) of all shortest edit paths, those for replacement cost
   1 and those for cost 2 together. Neighbouring steps merge into phrase edits with at most
   ``max_unchanged`` kept words inside.
2. *Best path.* Most gold edits first, then fewest steps outside of them, then fewest edits.
3. *Annotators.* For each sentence the annotator who gives the best F of the corpus so far. So the
   result depends on the order of the sentences; that is the official definition.

As a command: ``python -m fairseq_aggdec.evaluation.m2_score HYPOTHESES GOLD.m2``
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from fairseq_aggdec.data.m2 import AnnotatedSentence, Edit, M2Error, read_m2

Vertex = tuple[int, int]


class Arc(NamedTuple):
    """A step or a merged phrase edit of the lattice, from one vertex to another."""

    begin: Vertex
    end: Vertex
    n_steps: int  # single-word steps merged in it
    kept: bool  # one unchanged word


class Counts(NamedTuple):
    """Numbers of edits; ``correct`` are both proposed and in the gold."""

    correct: int
    proposed: int
    gold: int


@dataclass(frozen=True)
class M2Score:
    """Precision, recall and F as fractions (0 to 1), with the counts they come from."""

    precision: float
    recall: float
    f: float
    correct: int
    proposed: int
    gold: int


def corpus_m2(
    hypotheses: Iterable[Sequence[str]],
    gold: Iterable[AnnotatedSentence],
    beta: float = 0.5,
    max_unchanged: int = 2,
) -> M2Score:
    """Score tokenised hypotheses against gold sentences in the same order and tokenisation."""
    total = Counts(0, 0, 0)
    for hypothesis, sentence in zip(hypotheses, gold, strict=True):
        arcs = edit_lattice(sentence.tokens, hypothesis, max_unchanged)
        options = [
            _sum(total, best_counts(arcs, sentence.tokens, hypothesis, edits))
            for edits in sentence.annotations.values()
        ]
        total = max(options, key=lambda counts: _annotator_rank(counts, beta))
    precision = total.correct / total.proposed if total.proposed else 1.0
    recall = total.correct / total.gold if total.gold else 1.0
    return M2Score(precision, recall, _f_measure(total, beta), *total)


def _sum(a: Counts, b: Counts) -> Counts:
    return Counts(a.correct + b.correct, a.proposed + b.proposed, a.gold + b.gold)


def _f_measure(counts: Counts, beta: float) -> float:
    """F-beta from counts; an empty gold with nothing proposed is perfect."""
    denominator = beta * beta * counts.gold + counts.proposed
    return (1 + beta * beta) * counts.correct / denominator if denominator else 1.0


def _annotator_rank(counts: Counts, beta: float) -> tuple[float, float, float]:
    """Best F of the corpus so far, then most correct edits, then the smaller denominator of F."""
    return (
        _f_measure(counts, beta),
        counts.correct,
        -(counts.proposed + beta * beta * counts.gold),
    )


def edit_lattice(
    source: Sequence[str], hypothesis: Sequence[str], max_unchanged: int = 2
) -> list[Arc]:
    """All arcs of the edit lattice, each after those that lead to its first vertex."""
    source, hypothesis = tuple(source), tuple(hypothesis)
    steps: dict[Vertex, set[Vertex]] = {}
    for replace_cost in (1, 2):
        for begin, end in _shortest_path_steps(source, hypothesis, replace_cost):
            steps.setdefault(begin, set()).add(end)

    def kept(begin: Vertex, end: Vertex) -> bool:
        diagonal = end == (begin[0] + 1, begin[1] + 1)
        return diagonal and source[begin[0]] == hypothesis[begin[1]]

    arcs = [
        arc
        for vertex in steps
        for arc in _arcs_from(vertex, steps, kept, max_unchanged)
        if arc.kept or source[arc.begin[0] : arc.end[0]] != hypothesis[arc.begin[1] : arc.end[1]]
    ]
    return sorted(arcs, key=lambda arc: (sum(arc.begin), arc))


def _shortest_path_steps(
    source: Sequence[str], hypothesis: Sequence[str], replace_cost: int
) -> list[tuple[Vertex, Vertex]]:
    """The single-word steps that lie on some shortest edit path (insertion and deletion cost 1)."""
    n, m = len(source), len(hypothesis)
    cost = [[i + j for j in range(m + 1)] for i in range(n + 1)]  # final where i or j is 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            diagonal = 0 if source[i - 1] == hypothesis[j - 1] else replace_cost
            cost[i][j] = min(cost[i - 1][j - 1] + diagonal, cost[i - 1][j] + 1, cost[i][j - 1] + 1)
    steps = []
    pending, seen = [(n, m)], {(n, m)}
    while pending:
        i, j = pending.pop()
        before = []
        if i and j:
            diagonal = 0 if source[i - 1] == hypothesis[j - 1] else replace_cost
            before.append((i - 1, j - 1, diagonal))
        if i:
            before.append((i - 1, j, 1))
        if j:
            before.append((i, j - 1, 1))
        for p, q, step_cost in before:
            if cost[p][q] + step_cost == cost[i][j]:
                steps.append(((p, q), (i, j)))
                if (p, q) not in seen:
                    seen.add((p, q))
                    pending.append((p, q))
    return steps


def _arcs_from(
    begin: Vertex,
    steps: dict[Vertex, set[Vertex]],
    kept: Callable[[Vertex, Vertex], bool],
    max_unchanged: int,
) -> list[Arc]:
    """Find the arcs from a vertex: steps, and merges with up to ``max_unchanged`` kept words."""
    # fewest[vertex, kept words] = fewest steps to get there, found breadth first
    fewest: dict[tuple[Vertex, int], int] = {(begin, 0): 0}
    frontier = [(begin, 0)]
    while frontier:
        following = []
        for vertex, n_kept in frontier:
            for end in steps.get(vertex, ()):
                state = (end, n_kept + kept(vertex, end))
                if state[1] <= max_unchanged and state not in fewest:
                    fewest[state] = fewest[vertex, n_kept] + 1
                    following.append(state)
        frontier = following
    ends: dict[Vertex, int] = {}
    for (end, _), n_steps in fewest.items():
        ends[end] = min(n_steps, ends.get(end, n_steps))
    for end in steps.get(begin, ()):
        ends[end] = 1  # also a kept word where max_unchanged is 0
    return [
        Arc(begin, end, n_steps, n_steps == 1 and kept(begin, end))
        for end, n_steps in ends.items()
        if end != begin
    ]


def best_counts(
    arcs: Sequence[Arc], source: Sequence[str], hypothesis: Sequence[str], gold: Sequence[Edit]
) -> Counts:
    """Count the edits of the path through the lattice that agrees best with one annotator.

    A path's state is its vertex and the first gold edit still free: none is found twice.
    """
    spans: dict[tuple[int, int], list[int]] = {}
    for index, edit in enumerate(gold):
        spans.setdefault((edit.start, edit.end), []).append(index)
    # cost = (-gold edits found, steps outside of them, edits outside of them), in this order
    best: dict[Vertex, dict[int, tuple[int, int, int]]] = {(0, 0): {0: (0, 0, 0)}}
    for arc in arcs:
        matching = [
            index
            for index in spans.get((arc.begin[0], arc.end[0]), ())
            if not arc.kept
            and tuple(hypothesis[arc.begin[1] : arc.end[1]]) in gold[index].corrections
        ]
        arrivals = best.setdefault(arc.end, {})
        for free, (found, n_steps, n_edits) in best[arc.begin].items():
            match = next((index for index in matching if index >= free), None)
            if match is None:
                state, cost = free, (found, n_steps + arc.n_steps, n_edits + (not arc.kept))
            else:
                state, cost = match + 1, (found - 1, n_steps, n_edits)
            arrivals[state] = min(cost, arrivals.get(state, cost))
    found, _, n_others = min(best[len(source), len(hypothesis)].values())
    return Counts(-found, -found + n_others, len(gold))


def main(argv: Sequence[str] | None = None) -> None:
    """Print precision, recall and F of tokenised HYPOTHESES, one a line, against GOLD (M2)."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_aggdec.evaluation.m2_score", description=main.__doc__
    )
    parser.add_argument("hypotheses", metavar="HYPOTHESES")
    parser.add_argument("gold", metavar="GOLD")
    parser.add_argument(
        "--beta", type=float, default=0.5, help="weight of recall in F (default: 0.5)"
    )
    parser.add_argument(
        "--max-unchanged", type=int, default=2, help="kept words inside one edit (default: 2)"
    )
    parser.add_argument(
        "--characters",
        action="store_true",
        help="score over characters; spaces are ignored (Chinese)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    with open(args.hypotheses, encoding="utf-8", newline="\n") as lines:
        hypotheses = [line.split() for line in lines]
    try:
        gold = list(read_m2(args.gold))
    except M2Error as error:
        parser.exit(2, f"error: {error}\n")
    if len(gold) != len(hypotheses):
        parser.exit(2, f"error: {len(hypotheses)} hypotheses but {len(gold)} gold sentences\n")
    if args.characters:
        gold = [sentence.characters() for sentence in gold]
        hypotheses = [list("".join(tokens)) for tokens in hypotheses]
    score = corpus_m2(hypotheses, gold, args.beta, args.max_unchanged)
    if args.json:
        print(json.dumps(asdict(score)))
    else:
        print(f"Precision   : {score.precision:.4f}")
        print(f"Recall      : {score.recall:.4f}")
        print(f"F_{args.beta:g}       : {score.f:.4f}")


if __name__ == "__main__":
    main()
