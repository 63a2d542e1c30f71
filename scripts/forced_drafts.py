"""Drafts made to break exactness, verified instead of a drafter's, and an audit of them.

    python -m scripts.forced_drafts DATA --path model.pt --gen-subset test --decoding greedy --drafts wrong random end

takes the options of ``aggdec audit``. --drafts: right, wrong or random tokens, </s> at once, a tree with the right
tokens last, or a random one; each in every length of --draft-lengths.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Mapping, Sequence

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.audit import equality
from fairseq_aggdec.cli import audit
from fairseq_aggdec.cli.parsers import whole_parser
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.methods.table import VERIFIED
from fairseq_aggdec.records import results
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import Draft

RIGHT, WRONG, RANDOM, END = "right", "wrong", "random", "end"
TREE, RANDOM_TREE = "tree", "random-tree"
KINDS = (RIGHT, WRONG, RANDOM, END, TREE, RANDOM_TREE)
TREES = (TREE, RANDOM_TREE)
# Tokens of a tree for each of its depth.
BUSHINESS = 5


class ForcedDrafter(Drafter):
    """Drafts of one kind, as long as there is room for.

    Args:
        kind: ``right``: what the verifier will write, so that everything is accepted; ``wrong``: another token at every
            position; ``random``: any types of the dictionary, special symbols too; ``end``: ``</s>`` and random types;
            ``tree``: at every place a wrong token, ``</s>``, the right token with nothing behind it and the right token
            again with the tree going on behind it, the last; ``random-tree``: any types behind any others, of the right
            tokens as many as chance makes stand in their place.
        length: tokens of a draft, and of the longest path of a tree.
        types: size of the target dictionary.
        outputs: sentence -> what the verifier will write, ``</s>`` included.
    """

    def __init__(self, kind: str, length: int, types: int, outputs: Mapping[int, Sequence[int]]):
        self.kind, self.length, self.types, self.outputs = kind, length, types, outputs
        self.random = random.Random(1)

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.sentences = sample["id"].tolist()

    def draft(self, state: DecodeState) -> Draft:
        if self.kind in TREES:
            trees = [self._tree(row, state.eos) for row in state.rows]
            return Draft([tokens for tokens, _ in trees], [parents for _, parents in trees])
        return Draft([self._draft(row, state.eos) for row in state.rows])

    def _draft(self, row: Row, eos: int) -> list[int]:
        length = min(self.length, row.end - row.position)
        anything = [self.random.randrange(self.types) for _ in range(length)]
        if self.kind == END:
            anything[:1] = [eos][:length]
        if self.kind in (RANDOM, END):
            return anything
        right = self._right(row, length)
        if self.kind == RIGHT:
            return right
        return [(token + 1) % self.types for token in right]

    def _right(self, row: Row, length: int) -> list[int]:
        output = self.outputs.get(self.sentences[row.index], ())
        return list(output[row.position : row.position + length])

    def _tree(self, row: Row, eos: int) -> tuple[list[int], list[int]]:
        """Tokens and parents; no path is longer than there is room for."""
        length = min(self.length, row.end - row.position)
        right = self._right(row, length)
        tokens: list[int] = []
        parents: list[int] = []
        if self.kind == TREE:
            for token in right:
                behind = len(tokens)
                tokens += [(token + 1) % self.types, eos, token, token]
                parents += [behind] * 4
            return tokens, parents
        depths, open_nodes = [0], [0] * bool(length)
        for node in range(1, BUSHINESS * length + 1):
            parent = self.random.choice(open_nodes)
            likely = right[depths[parent]] if depths[parent] < len(right) else eos
            anything = self.random.randrange(self.types)
            tokens.append(self.random.choice([likely, likely, eos, anything]))
            parents.append(parent)
            depths.append(depths[parent] + 1)
            if depths[node] < length:
                open_nodes.append(node)
        return tokens, parents


def build_parser() -> argparse.ArgumentParser:
    parser = whole_parser("audit")
    group = parser.add_argument_group("forced drafts")
    group.add_argument("--drafts", nargs="+", choices=KINDS, required=True)
    group.add_argument("--draft-lengths", type=int, nargs="+", default=[10], metavar="K")
    return parser


def main() -> int:
    with results.refusals():
        return compare(Session(build_parser(), reads=["beam", "batch_size"]))


def compare(session: Session) -> int:
    """Audits drafts of every kind and length; the exit status."""
    args, decoding = session.args, str(session.cfg.task.decoding)
    audit.check(args, decoding)
    if decoding not in VERIFIED:
        raise SystemExit(f"error: --decoding {decoding} verifies no drafts: {', '.join(VERIFIED)}")
    oracle = audit.oracle_of(session)
    margins = oracle.margin, oracle.tolerance
    types = len(session.task.target_dictionary)
    findings, sentences = audit.Findings(session, oracle), session.sentences(args.limit)
    for size in args.batch_sizes:
        expected = equality.decode_all(session, "stock", size, args.limit)
        outputs = {sentence: one[0]["tokens"].tolist() for sentence, one in expected.items()}
        for kind, length in itertools.product(args.drafts, args.draft_lengths):
            drafter = ForcedDrafter(kind, length, types, outputs)
            found = equality.decode_all(session, decoding, size, args.limit, drafter)
            result = equality.audit(session, sentences, expected, found, *margins)
            name = f"{decoding}, {kind} drafts of {length}, batch {size}, {session.precision}"
            findings.add(name, result)
    return findings.conclude()


if __name__ == "__main__":
    sys.exit(main())
