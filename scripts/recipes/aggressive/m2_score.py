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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scripts.recipes.aggressive.m2 import AnnotatedSentence, Edit

Vertex = tuple[int, int]
State = tuple[int, int]  # (first gold edit still free, kept words in the present edit or OUTSIDE)
Cost = tuple[int, int, int]  # (-gold edits found, steps outside of them, edits outside of them)
OUTSIDE = -1


class Lattice(NamedTuple):
    """All shortest edit paths; ``steps`` has the ends of the steps from each vertex, in order."""

    source: tuple[str, ...]
    hypothesis: tuple[str, ...]
    steps: dict[Vertex, list[Vertex]]

    def keeps(self, begin: Vertex, end: Vertex) -> bool:
        """Whether a step leaves its word unchanged."""
        diagonal = end == (begin[0] + 1, begin[1] + 1)
        return diagonal and self.source[begin[0]] == self.hypothesis[begin[1]]


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
        lattice = edit_lattice(sentence.tokens, hypothesis)
        options = [
            _sum(total, best_counts(lattice, edits, max_unchanged))
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


def edit_lattice(source: Sequence[str], hypothesis: Sequence[str]) -> Lattice:
    """The steps of all shortest paths for replacement cost 1 and for replacement cost 2."""
    source, hypothesis = tuple(source), tuple(hypothesis)
    steps: dict[Vertex, set[Vertex]] = {(0, 0): set(), (len(source), len(hypothesis)): set()}
    for replace_cost in (1, 2):
        for begin, end in _shortest_path_steps(source, hypothesis, replace_cost):
            steps.setdefault(begin, set()).add(end)
    return Lattice(source, hypothesis, {begin: sorted(steps[begin]) for begin in sorted(steps)})


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


def best_counts(lattice: Lattice, gold: Sequence[Edit], max_unchanged: int = 2) -> Counts:
    """Count the edits of the path that agrees best with the gold edits of one annotator.

    Merged edits are not spelt out, as there can be millions: a path's state says whether it is
    inside one, and which gold edits are still free (none is found twice).
    """
    arcs = _gold_arcs(lattice, gold, max_unchanged)
    best: dict[Vertex, dict[State, Cost]] = {vertex: {} for vertex in lattice.steps}
    best[0, 0][0, OUTSIDE] = (0, 0, 0)
    for vertex in lattice.steps:
        _close_and_open(best[vertex])
        _take_steps(lattice, vertex, best, max_unchanged)
        for index, end in arcs.get(vertex, ()):
            for (free, inside), (found, n_steps, n_edits) in best[vertex].items():
                if inside == OUTSIDE and free <= index:
                    _reach(best[end], (index + 1, OUTSIDE), (found - 1, n_steps, n_edits))
    final = best[len(lattice.source), len(lattice.hypothesis)]
    found, _, n_others = min(cost for (_, inside), cost in final.items() if inside == OUTSIDE)
    return Counts(-found, -found + n_others, len(gold))


def _reach(states: dict[State, Cost], state: State, cost: Cost) -> None:
    states[state] = min(cost, states.get(state, cost))


def _close_and_open(states: dict[State, Cost]) -> None:
    """At any vertex an edit may end, and another begin."""
    for (free, inside), cost in list(states.items()):
        if inside != OUTSIDE:
            _reach(states, (free, OUTSIDE), cost)
    for (free, inside), (found, n_steps, n_edits) in list(states.items()):
        if inside == OUTSIDE:
            _reach(states, (free, 0), (found, n_steps, n_edits + 1))


def _take_steps(
    lattice: Lattice, vertex: Vertex, best: dict[Vertex, dict[State, Cost]], max_unchanged: int
) -> None:
    """Outside of an edit only kept words; inside all steps, but no more than so many kept words."""
    for end in lattice.steps[vertex]:
        kept = lattice.keeps(vertex, end)
        for (free, inside), (found, n_steps, n_edits) in best[vertex].items():
            after = inside if inside == OUTSIDE else inside + kept
            if after <= max_unchanged and (kept or inside != OUTSIDE):
                _reach(best[end], (free, after), (found, n_steps + 1, n_edits))


def _gold_arcs(
    lattice: Lattice, gold: Sequence[Edit], max_unchanged: int
) -> dict[Vertex, list[tuple[int, Vertex]]]:
    """Where the hypothesis makes gold edits: from each vertex, (number of the edit, end)."""
    arcs: dict[Vertex, list[tuple[int, Vertex]]] = {}
    for index, edit in enumerate(gold):
        original = lattice.source[edit.start : edit.end]
        for correction in set(edit.corrections) - {original}:
            for j in range(len(lattice.hypothesis) - len(correction) + 1):
                begin, end = (edit.start, j), (edit.end, j + len(correction))
                if (
                    lattice.hypothesis[j : end[1]] == correction
                    and begin in lattice.steps
                    and _is_edit(lattice, begin, end, max_unchanged)
                ):
                    arcs.setdefault(begin, []).append((index, end))
    return arcs


def _is_edit(lattice: Lattice, begin: Vertex, end: Vertex, max_unchanged: int) -> bool:
    """Whether steps lead from begin to end with no more than ``max_unchanged`` kept words."""
    pending, seen = [(begin, 0)], {(begin, 0)}
    while pending:
        vertex, n_kept = pending.pop()
        if vertex == end:
            return True
        for following in lattice.steps[vertex]:
            state = (following, n_kept + lattice.keeps(vertex, following))
            inside = following[0] <= end[0] and following[1] <= end[1]
            if inside and state[1] <= max_unchanged and state not in seen:
                seen.add(state)
                pending.append(state)
    return False
