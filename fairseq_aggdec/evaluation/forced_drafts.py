"""Drafts made to break exactness: the audit has them verified instead of a drafter's."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from fairseq_aggdec.decoding.draft import Draft, Verification
from fairseq_aggdec.decoding.state import DecodeState, Row
from fairseq_aggdec.decoding.verifier import Verifier

RIGHT, WRONG, RANDOM, END = "right", "wrong", "random", "end"
KINDS = (RIGHT, WRONG, RANDOM, END)


class ForcedDrafter:
    """Drafts of one kind, as long as there is room for.

    Args:
        kind: ``right``: what the verifier will write, so that everything is accepted; ``wrong``: another token at every
            position; ``random``: any types of the dictionary, special symbols too; ``end``: ``</s>`` and random types.
        length: tokens of a draft.
        types: size of the target dictionary.
        outputs: sentence -> what the verifier will write, ``</s>`` included.
    """

    def __init__(self, kind: str, length: int, types: int, outputs: Mapping[int, Sequence[int]]):
        self.kind, self.length, self.types, self.outputs = kind, length, types, outputs
        self.random = random.Random(1)

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.sentences = sample["id"].tolist()

    def draft(self, state: DecodeState) -> Draft:
        return Draft([self._draft(row, state.eos) for row in state.rows])

    def _draft(self, row: Row, eos: int) -> list[int]:
        length = min(self.length, row.end - row.position)
        anything = [self.random.randrange(self.types) for _ in range(length)]
        if self.kind == END:
            anything[:1] = [eos][:length]
        if self.kind in (RANDOM, END):
            return anything
        output = self.outputs.get(self.sentences[row.index], ())
        right = output[row.position : row.position + length]
        if self.kind == RIGHT:
            return list(right)
        return [(token + 1) % self.types for token in right]

    def observe(self, verification: Verification, state: DecodeState) -> None:
        pass

    def keep_rows(self, rows: Sequence[int]) -> None:
        pass
