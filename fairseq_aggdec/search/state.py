"""The state of a batch while it is decoded: the rows (unfinished sentences) with their committed tokens and scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.options.ngrams import Ngrams
from fairseq_aggdec.windows.draft import Draft
from fairseq_aggdec.windows.transfer import in_fp32
from fairseq_aggdec.windows.window import Window


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
    _ngrams: Ngrams | None = field(default=None, repr=False, compare=False)

    def ngrams(self, size: int) -> Ngrams:
        """The n-grams of the committed prefix; ``size`` is the same in every call."""
        if self._ngrams is None:
            self._ngrams = Ngrams(size)
        self._ngrams.take_up(self.tokens)
        return self._ngrams

    def __post_init__(self) -> None:
        # From this output index on neither a forced prefix nor the minimum length matters.
        self.free = max(len(self.prefix), self.floor, self.strict_floor)

    @property
    def position(self) -> int:
        """Position of the last committed token, which is the output index of the next token."""
        return len(self.tokens) - 1


@dataclass
class DecodeState:
    """The unfinished rows of a batch and the scores of all that was emitted.

    ``rows`` shrinks as sentences finish; ``finished`` collects them in order of finishing.

    Attributes:
        sample: the batch as fairseq's datasets make it.
        whole: the scores of each sentence in the order of the batch, if all outputs came at once (:meth:`finish`).
    """

    rows: list[Row]
    eos: int
    device: torch.device
    sample: Mapping[str, Any] = field(default_factory=dict)
    finished: list[Row] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    whole: Sequence[list[float]] = ()

    def window(self, draft: Draft) -> Window:
        """The last committed token of each row followed by its draft."""
        last = [row.tokens[-1] for row in self.rows]
        starts = [len(row.tokens) - 1 for row in self.rows]
        return draft.window(last, starts, self.device)

    def commit(self, emitted: Sequence[Sequence[int]], scores: Tensor) -> None:
        """Appends the emitted tokens of every row and their log-probabilities (sum of lengths,), row after row."""
        self.scores.append(scores)
        for row, tokens in zip(self.rows, emitted, strict=True):
            row.tokens.extend(tokens)
            row.iterations += 1
            self.owners.extend([row.index] * len(tokens))

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
            if self.scores:
                self.owners.extend([row.index] * len(tokens))
        if self.scores:
            self.scores.extend(map(in_fp32, scores))
        else:
            self.whole = scores
        self.finished, self.rows = [*self.finished, *self.rows], []

    def release_finished(self) -> list[int] | None:
        """Moves rows that ended with ``</s>`` out; returns the rows that stay, see :func:`remaining`."""
        alive = [row.tokens[-1] != self.eos for row in self.rows]
        keep = remaining(alive)
        if keep is None:
            return None
        self.finished.extend(row for row, lives in zip(self.rows, alive, strict=True) if not lives)
        self.rows = [self.rows[i] for i in keep]
        return keep

    def token_scores(self) -> Sequence[list[float]]:
        """Log-probabilities of the emitted tokens, of each sentence in the order of the batch."""
        if self.whole:
            return self.whole
        found: list[list[float]] = [[] for _ in self.finished]
        for owner, score in zip(self.owners, torch.cat(self.scores).tolist(), strict=True):
            found[owner].append(score)
        return found


def remaining(alive: Sequence[bool]) -> list[int] | None:
    """The rows that stay, in their new order; None if all do.

    Holes are filled from the tail, so that few caches move: of rows 0..4 with 1 and 2 finished, 0 4 3 stay.
    """
    if all(alive):
        return None
    staying = sum(alive)
    tail = [i for i in range(len(alive) - 1, staying - 1, -1) if alive[i]]
    return [i if alive[i] else tail.pop(0) for i in range(staying)]
