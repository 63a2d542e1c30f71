"""Greedy search, drafted or not, in plain Python and sentence by sentence: what those of the package must find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.search.acceptance import Acceptance, split
from fairseq_aggdec.search.rules import Rules, end_banned
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import Verdict
from fairseq_aggdec.windows.window import Window

# The tokens behind the start symbol -> logits (V,) of the next.
Model = Callable[[Sequence[int]], Tensor]

NOTHING = Window([0], [0], [1], device=torch.device("cpu"))  # a window that nobody looks at


def forced_token(at: int, end: int, prefix: Sequence[int], pad: int, eos: int) -> int | None:
    """The only token that may be written at an output index; None: the model chooses."""
    if at >= end:
        return eos
    return prefix[at] if at < len(prefix) and prefix[at] != pad else None


def repeating(path: Sequence[int], size: int) -> set[int]:
    """The tokens that would repeat an n-gram behind a path, which begins with the start symbol; 0: none would.

    A word of an n-gram is also the start symbol, but for n-grams of one token.
    """
    context, path = size - 1, list(path)
    if not size or len(path) < context:
        return set()
    last = path[len(path) - context :]
    ends = range(max(context, 1), len(path))
    return {path[end] for end in ends if path[end - context : end] == last}


@dataclass
class Iteration:
    """What became of a window: tokens that were drafted, accepted and gained, and what the gained ones score."""

    drafted: int
    accepted: int
    gained: list[int]
    scores: list[float]


@dataclass
class Sentence:
    """A sentence that is decoded.

    Attributes:
        row: its tokens so far and its limits.
        iterations: one for each window.
    """

    row: Row
    model: Model
    rules: Rules
    accept: Acceptance
    iterations: list[Iteration] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return len(self.row.tokens) > 1 and self.row.tokens[-1] == self.rules.eos

    def ruled(self, path: Sequence[int], logits: Tensor) -> Tensor:
        """Logits (V,) of what follows a path, start symbol first, -inf for what must not follow."""
        row, rules, at = self.row, self.rules, len(path) - 1
        token = forced_token(at, row.end, row.prefix, rules.pad, rules.eos)
        if token is not None:
            return torch.full_like(logits, -torch.inf).index_fill_(0, torch.tensor([token]), 0.0)
        ruled = logits.clone()
        ruled[rules.pad] = -torch.inf
        ruled[rules.unk] -= rules.unk_penalty
        if end_banned(at, row.floor, row.strict_floor, len(row.prefix)):
            ruled[rules.eos] = -torch.inf
        for banned in self.repeating(path):
            ruled[banned] = -torch.inf
        return ruled

    def repeating(self, path: Sequence[int]) -> set[int]:
        return repeating(path, self.rules.no_repeat_ngram_size)

    def possible(self, tokens: Sequence[int]) -> list[int]:
        """A chain up to the first token that would repeat an n-gram."""
        path = list(self.row.tokens)
        for token in tokens:
            if token in self.repeating(path):
                break
            path.append(token)
        return path[len(self.row.tokens) :]

    def iterate(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> Iteration:
        """Verifies a draft, a chain unless it has parents (counted from 1; 0: the last token), and commits."""
        if parents is None:
            tokens = self.possible(tokens)
            parents = range(len(tokens))
        row, nodes = self.row, [self.row.tokens[-1], *tokens]
        paths = [list(row.tokens)]
        for token, parent in zip(tokens, parents, strict=True):
            paths.append([*paths[parent], token])
        logits = [self.model(path) for path in paths]
        ruled = [self.ruled(path, own) for path, own in zip(paths, logits, strict=True)]
        choices = [int(own.max(-1).indices) for own in ruled]
        least, rule = split(self.accept)
        accepted = [False]
        for token, parent in zip(tokens, parents, strict=True):
            behind, depth = ruled[parent], len(paths[parent]) - len(row.tokens) + 1
            sure = depth < least and bool(behind[token] > -torch.inf)
            given = torch.tensor([choices[parent]]), torch.tensor([token])
            accepted.append(sure or bool(rule(behind.unsqueeze(0), *given)))
        path = best_path(parents, accepted, nodes, choices)
        places = zip(path, [*(nodes[node] for node in path[1:]), choices[path[-1]]], strict=True)
        gained: list[int] = []
        scores: list[float] = []
        for node, token in places:
            gained.append(token)
            score = float(logits[node].log_softmax(-1)[token])
            if token == self.rules.unk and self.rules.unk_penalty:
                score -= self.rules.unk_penalty
            scores.append(score)
            if token == self.rules.eos:
                break
        if self.rules.free_end and row.position + len(gained) > row.end:
            scores[-1] = 0.0
        row.tokens.extend(gained)
        done = Iteration(len(tokens), min(len(path) - 1, len(gained)), gained, scores)
        self.iterations.append(done)
        return done


def decode(
    state: DecodeState,
    model: Callable[[int], Model],
    rules: Rules,
    accept: Acceptance,
    drafter: Any,
) -> tuple[list[Sentence], int]:
    """Decodes all rows of a batch; ``model``: of each sentence. Returns the sentences and the number of iterations."""
    sentences = [Sentence(row, model(row.index), rules, accept) for row in state.rows]
    calls = 0
    while state.rows:
        calls += 1
        draft = drafter.draft(state)
        parents = draft.parents if draft.branches else None
        parents = parents or [None] * len(state.rows)
        given = zip(state.rows, draft.tokens, parents, strict=True)
        done = [sentences[row.index].iterate(*own) for row, *own in given]
        numbers = [one.drafted for one in done], [one.accepted for one in done]
        drafter.observe(Verdict(NOTHING, *numbers, [one.gained for one in done]), state)
        keep = [place for place, row in enumerate(state.rows) if not sentences[row.index].ended]
        state.rows = [state.rows[place] for place in keep]
        if keep and len(keep) < len(done):
            drafter.keep_rows(keep)
    return sentences, calls


def best_path(
    parents: Sequence[int], accepted: Sequence[bool], tokens: Sequence[int], choices: Sequence[int]
) -> list[int]:
    """The accepted nodes of a tree along one path, the root (0) first.

    Where several accepted nodes follow one, the path takes the verifier's own choice, else the node with the longest
    accepted path behind it.

    Args:
        parents: of nodes 1, 2, ...
        accepted: whether each node, the root first, is accepted behind its parent.
        tokens: of the nodes.
        choices: the verifier's own behind each.
    """
    best: list[tuple[bool, int, int]] = [(False, 0, 0)] * len(tokens)  # own choice, length, node
    for node in range(len(tokens) - 1, 0, -1):
        if accepted[node]:
            parent = parents[node - 1]
            follows = tokens[node] == choices[parent], best[node][1] + 1, node
            if follows[:2] >= best[parent][:2]:
                best[parent] = follows
    path = [0]
    while following := best[path[-1]][2]:
        path.append(following)
    return path
