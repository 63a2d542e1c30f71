"""The tree of a beam search as lines of text: what was evaluated in which call, what was needed, what was not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from fairseq.data import Dictionary

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.options.hypotheses import Hypothesis
from fairseq_aggdec.report.trace import (
    AWAITED,
    BEHIND,
    CALL,
    ENDED,
    NEEDED,
    OTHERS,
    SCORE,
    VAIN,
    WINNER,
    Piece,
    Trace,
    spell,
)
from fairseq_aggdec.search.beam.generator import BeamGenerator
from fairseq_aggdec.search.beam.tree import ROOT, SearchedTree


def searches(
    session: Session, batches: list[dict[str, Any]]
) -> Iterator[tuple[int, list[int], SearchedTree, list[Hypothesis]]]:
    """Decodes sentences one by one: their numbers, sources, searches and hypotheses, best first.

    Raises:
        ValueError: another generator decodes with these options.
    """
    generator, _ = session.generator("beam", session.cfg.generation.beam)
    if not isinstance(generator, BeamGenerator):
        raise ValueError(
            "there is no tree to show: with --beam 1, and with options that are left to stock fairseq, such as "
            "--sampling, no tree of prefixes is searched"
        )
    generator.keeps_trees = True
    for sample in batches:
        session.decode(generator, sample)
        source = sample["net_input"]["src_tokens"][0].tolist()
        search = generator.searches[0]
        yield sample["id"].item(), source, search, search.ranked


def trace(
    source: list[int],
    search: SearchedTree,
    ranked: Sequence[Hypothesis],
    words: tuple[Dictionary, Dictionary],
) -> Trace:
    """Puts a search into words: a line for each branch of its tree, indented as deep as it branches off.

    Args:
        ranked: the hypotheses that the search found, best first.
    """
    return Trace(
        spell(source[:-1], words[0]).strip(),
        spell(ranked[0]["tokens"].tolist()[:-1], words[1]).strip(),
        list(branches(search, words[1], ranked)),
        search.depth,
        calls=search.calls,
    )


def trace_calls(
    source: list[int],
    search: SearchedTree,
    ranked: Sequence[Hypothesis],
    words: tuple[Dictionary, Dictionary],
) -> Trace:
    """Puts a search into words: a line for each call, of the tokens of the output that it evaluated.

    Arguments are those of :func:`trace`. The end symbol is no prefix: it belongs to the last call.
    """
    of_output = set(path_of(search, ranked[0])[1:])
    lines, written, so_far = [], [], list[int]()
    for nodes in search.asked:
        own = [one for one in nodes if one in of_output]
        line = [
            Piece(spell([search.tree.tokens[one] for one in run], words[1]), kind)
            for kind, run in _runs(search, own)
        ]
        others = len(nodes) - len(own)
        lines.append([*line, Piece(f"  and {others} others", OTHERS)] if others else line)
        so_far += [search.tree.tokens[one] for one in own]
        written.append(spell(so_far, words[1]).strip())
    shown = trace(source, search, ranked, words)
    return Trace(shown.source, shown.output, lines, shown.tokens, written=written)


def _runs(search: SearchedTree, nodes: list[int]) -> Iterator[tuple[str, list[int]]]:
    """Prefixes, those of one kind that follow each other together."""
    for kind, run in groupby(nodes, key=lambda node: kind_of(search, node)):
        yield kind, list(run)


def branches(
    search: SearchedTree, words: Dictionary, ranked: Sequence[Hypothesis]
) -> Iterator[list[Piece]]:
    """A line for each branch of the tree, the winner's first: runs of tokens, each behind the number of its call.

    A branch ends with the score of its hypothesis, or with the log-probability that its prefix had in the beam.
    """
    tree = search.tree
    call_of = {node: call for call, nodes in enumerate(search.asked, start=1) for node in nodes}
    endings = {path_of(search, one)[-1]: one for one in reversed(ranked)}
    best = set(path_of(search, ranked[0]))
    waiting = [(ROOT, 0)]
    while waiting:
        node, level = waiting.pop()
        chain = [node]
        while True:
            below = [child for child in tree.children(chain[-1]) if child in call_of]
            if not below:
                break
            below.sort(key=lambda one: (one not in best, one not in tree.used, call_of[one]))
            waiting += [(child, level + 1) for child in reversed(below[1:])]
            chain.append(below[0])
        line = _beginning(search, words, node, level)
        for call, nodes in groupby(chain, key=call_of.__getitem__):
            line.append(Piece(f" {call}:", CALL, call))
            line += _run(search, words, list(nodes), call, endings, ranked[0])
        last = chain[-1]
        if last in tree.totals and last not in endings:
            line.append(Piece(f" {tree.totals[last]:.2f}", SCORE, call_of[last]))
        yield line


def _beginning(search: SearchedTree, words: Dictionary, node: int, level: int) -> list[Piece]:
    """Text that shows from where a branch goes on: it is indented, and names the token before."""
    parent = search.tree.parents[node]
    line = [Piece(f"{'  ' * (level - 1)}\u2514" if level else "", CALL)]
    if parent != ROOT:
        line.append(Piece(spell([search.tree.tokens[parent]], words), BEHIND))
    return line


def _run(
    search: SearchedTree,
    words: Dictionary,
    nodes: list[int],
    call: int,
    endings: Mapping[int, Hypothesis],
    best: Hypothesis,
) -> Iterator[Piece]:
    """The tokens of a branch that one call evaluated; a hypothesis that ends among them ends with its score."""
    ends = itertools.accumulate((node in endings for node in nodes), initial=0)
    kinds = [(kind_of(search, node), end) for node, end in zip(nodes, ends, strict=False)]
    for (kind, _), run in groupby(zip(nodes, kinds, strict=True), key=lambda item: item[1]):
        own = [node for node, _ in run]
        yield Piece(spell([search.tree.tokens[node] for node in own], words), kind, call)
        if (one := endings.get(own[-1])) is not None:
            end = f"{words.eos_word} {float(one['score']):.2f}"
            yield Piece(" ", CALL, call)
            yield Piece(f"{end} winner", WINNER, call) if one is best else Piece(end, ENDED, call)


def path_of(search: SearchedTree, hypothesis: Hypothesis) -> list[int]:
    """The prefixes of a hypothesis, from the root on."""
    path = [ROOT]
    for token in hypothesis["tokens"].tolist()[:-1]:
        path.append(search.tree.child(path[-1], token))
    return path


def kind_of(search: SearchedTree, node: int) -> str:
    """Why a prefix was evaluated, and whether that was worth it."""
    if node not in search.ahead:
        return AWAITED
    return NEEDED if node in search.tree.used else VAIN
