"""The judge that knows every rule of acceptance, in PyTorch's operators."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_aggdec.kernels.largest import first_largest
from fairseq_aggdec.search.acceptance import Acceptance, drafted_next
from fairseq_aggdec.search.judge.verdict import Question, along_paths, scored
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.windows.draft import Verdict
from fairseq_aggdec.windows.tree_window import DraftedTree


def judge(logits: Tensor, asked: Question, rules: Rules, accept: Acceptance) -> Verdict:
    """Finds each row's bifurcation, what the row emits, and the log-probabilities of that.

    The only transfer to the host in an iteration is here.

    Args:
        logits: (N, V) of the verifier; unchanged afterwards.
        asked: the draft and its window.
        rules: generation options.
        accept: which drafted tokens are accepted.
    """
    window = asked.window
    with rules.applied(logits, window, asked.state) as ruled:
        choices = first_largest(ruled)
        if window.width == 1:  # nothing was drafted
            emitted = [[token] for token in choices.tolist()]
            verdict = Verdict(window, asked.draft.lengths, [0] * window.rows, emitted)
        elif isinstance(window, DraftedTree):
            accepted = accept(ruled, choices, drafted_next(window), window)
            verdict = _of_trees(accepted, choices, asked, window, rules.eos)
        else:
            drafted = drafted_next(window)
            accepted = accept(ruled, choices, drafted)
            # Accepted tokens are the draft's: relaxed acceptance takes others than the verifier's own choice.
            choices = torch.where(accepted, drafted, choices)
            verdict = _of_chains(accepted, choices, asked, rules.eos)
    return scored(verdict, choices, logits, rules)


def _of_chains(accepted: Tensor, tokens: Tensor, asked: Question, eos: int) -> Verdict:
    """The verdict on drafts that do not branch, from what each position accepts (N,) and emits (N,)."""
    window, counts, emitted, first = asked.window, [], [], 0
    flags, host_tokens = torch.stack([accepted.to(tokens.dtype), tokens]).tolist()
    for width in window.widths:
        # A row's last position drafts nothing and is never accepted: the bifurcation exists ([PAD] in Algorithm 1).
        bifurcation = flags.index(0, first, first + width)
        gained = host_tokens[first : bifurcation + 1]
        if eos in gained:
            del gained[gained.index(eos) + 1 :]
        counts.append(min(bifurcation - first, len(gained)))
        emitted.append(gained)
        first += width
    return Verdict(window, asked.draft.lengths, counts, emitted)


def _of_trees(
    accepted: Tensor, choices: Tensor, asked: Question, window: DraftedTree, eos: int
) -> Verdict:
    """The verdict on drafts that branch, from what is accepted (N,) and the verifier's choices (N,)."""
    flags, chosen = torch.stack([accepted.to(choices.dtype), choices]).tolist()
    tokens = window.host_tokens()

    def path(parents: Sequence[int], own: slice) -> list[int]:
        return best_path(parents, flags[own], tokens[own], chosen[own])

    return along_paths(path, tokens, chosen, asked, eos)


def best_path(
    parents: Sequence[int], accepted: Sequence[int], tokens: Sequence[int], choices: Sequence[int]
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
