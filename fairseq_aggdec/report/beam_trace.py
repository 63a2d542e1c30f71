"""The tree of a beam search as lines of text: what was evaluated in which call, what was needed, what was not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from fairseq.data import Dictionary

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.report.trace import AWAITED, CALL, NEEDED, OTHERS, VAIN, Piece, Trace, spell
from fairseq_aggdec.search.beam.search import SentenceSearch
from fairseq_aggdec.search.beam.tree import ROOT


def searches(
    session: Session, batches: list[dict[str, Any]]
) -> Iterator[tuple[int, list[int], SentenceSearch, list[int]]]:
    """Decodes sentences one by one: their numbers, sources, searches and best outputs."""
    generator, _ = session.generator("beam", session.cfg.generation.beam)
    for sample in batches:
        output = session.decode(generator, sample)[0]["tokens"].tolist()
        source = sample["net_input"]["src_tokens"][0].tolist()
        yield sample["id"].item(), source, generator.searches[0], output


def trace(
    source: list[int],
    search: SentenceSearch,
    output: list[int],
    words: tuple[Dictionary, Dictionary],
) -> Trace:
    """Puts a search into words: a line for each branch of its tree, indented as deep as it branches off."""
    return Trace(
        spell(source[:-1], words[0]).strip(),
        spell(output[:-1], words[1]).strip(),
        list(branches(search, words[1])),
        search.depth,
        calls=search.calls,
    )


def trace_calls(
    source: list[int],
    search: SentenceSearch,
    output: list[int],
    words: tuple[Dictionary, Dictionary],
) -> Trace:
    """Puts a search into words: a line for each call, of the tokens of the output that it evaluated.

    Arguments are those of :func:`trace`. The end symbol is no prefix: it belongs to the last call.
    """
    node, path = ROOT, [ROOT]
    for token in output[:-1]:
        node = search.tree.child(node, token)
        path.append(node)
    of_output, lines, written, so_far = set(path[1:]), [], [], list[int]()
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
    shown = trace(source, search, output, words)
    return Trace(shown.source, shown.output, lines, shown.tokens, written=written)


def _runs(search: SentenceSearch, nodes: list[int]) -> Iterator[tuple[str, list[int]]]:
    """Prefixes, those of one kind that follow each other together."""
    for kind, run in groupby(nodes, key=lambda node: kind_of(search, node)):
        yield kind, list(run)


def branches(search: SentenceSearch, words: Dictionary) -> Iterator[list[Piece]]:
    """A line for each branch: tokens, each run of one call behind its number; what was needed comes first."""
    tree = search.tree
    call_of = {node: call for call, nodes in enumerate(search.asked, start=1) for node in nodes}
    waiting = [(ROOT, 0)]
    while waiting:
        node, level = waiting.pop()
        chain = [node]
        while True:
            below = [child for child in tree.children(chain[-1]) if child in call_of]
            if not below:
                break
            below.sort(key=lambda child: (child not in tree.used, call_of[child]))
            waiting += [(child, level + 1) for child in reversed(below[1:])]
            chain.append(below[0])
        line = [Piece("  " * level, CALL)]
        for (call, kind), run in groupby(
            chain, key=lambda item: (call_of[item], kind_of(search, item))
        ):
            tokens = [tree.tokens[item] for item in run]
            line.append(Piece(f" {call}:", CALL, call))
            line.append(Piece(spell(tokens, words), kind, call))
        yield line


def kind_of(search: SentenceSearch, node: int) -> str:
    """Why a prefix was evaluated, and whether that was worth it."""
    if node not in search.ahead:
        return AWAITED
    return NEEDED if node in search.tree.used else VAIN
