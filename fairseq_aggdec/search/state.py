"""The state of a batch while it is decoded: the rows (unfinished sentences) with their committed tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class Batch:
    """A batch that a generator is to decode.

    Args:
        sample: as fairseq's datasets make it.
        start: the start symbol of every output.
        prefixes: output tokens forced by the caller, per sentence, ``pad`` where a position is free.

    Attributes:
        source: (B, S) source tokens.
    """

    def __init__(self, sample: dict[str, Any], start: int, prefixes: Sequence[Sequence[int]]):
        self.sample, self.start, self.prefixes = sample, start, prefixes
        self.net_input: dict[str, Tensor] = sample["net_input"]
        self.source = self.net_input["src_tokens"]


@dataclass
class Row:
    """One unfinished sentence.

    Attributes:
        index: its place in the batch that ``generate`` was given.
        tokens: the committed prefix, start symbol first.
        end: output index at which ``</s>`` is forced (the maximum length).
        floor: output index before which ``</s>`` is banned (the minimum length).
        strict_floor: output index before which ``</s>`` is banned within forced prefix tokens too
            (``--match-source-len``).
        prefix: output tokens forced by the caller, ``pad`` where a position is free.
        iterations: number of iterations so far.
        history: committed prefix plus draft of every iteration (``--retain-iter-history``); None: not kept.
    """

    index: int
    tokens: list[int]
    end: int
    floor: int
    strict_floor: int = 0
    prefix: Sequence[int] = ()
    iterations: int = 0
    history: list[list[int]] | None = None

    @property
    def position(self) -> int:
        """Position of the last committed token, which is the output index of the next token."""
        return len(self.tokens) - 1


@dataclass
class DecodeState:
    """The unfinished rows of a batch.

    ``rows`` shrinks as sentences finish; ``finished`` collects them in order of finishing.

    Attributes:
        sample: the batch as fairseq's datasets make it.
        exact: drafts of any length give the same output.
        scores: log-probabilities of the tokens of each sentence in the order of the batch, when all have ended.
    """

    rows: list[Row]
    eos: int
    device: torch.device
    sample: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True
    finished: list[Row] = field(default_factory=list)
    scores: Sequence[list[float]] = ()

    def finish(
        self, outputs: Sequence[list[int]], scores: Sequence[list[float]], rounds: Sequence[int]
    ) -> None:
        """Ends all rows with tokens that the compiled library or a device has decoded.

        Args:
            outputs, scores: of each row the tokens and their log-probabilities.
            rounds: iterations of each row.
        """
        for row, tokens, iterations in zip(self.rows, outputs, rounds, strict=True):
            row.tokens.extend(tokens)
            row.iterations += iterations
        self.scores = scores
        self.finished, self.rows = [*self.finished, *self.rows], []


def remaining(alive: Sequence[bool]) -> list[int] | None:
    """The rows that stay, in their new order; None if all do.

    Holes are filled from the tail, so that few caches move: of rows 0..4 with 1 and 2 finished, 0 4 3 stay.
    """
    if all(alive):
        return None
    staying = sum(alive)
    tail = [i for i in range(len(alive) - 1, staying - 1, -1) if alive[i]]
    return [i if alive[i] else tail.pop(0) for i in range(staying)]
