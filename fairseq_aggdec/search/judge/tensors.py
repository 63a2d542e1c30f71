"""The judge that knows every rule of acceptance, in PyTorch's operators."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu.largest import first_largest
from fairseq_aggdec.search.acceptance import Acceptance, drafted_next
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Verdict
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.tree_window import DraftedTree
from fairseq_aggdec.windows.window import Window


def judge(
    logits: Tensor, window: Window, state: DecodeState, rules: Rules, accept: Acceptance
) -> Verdict:
    """Finds the accepted path of each row, the tokens that the row emits, and their log-probabilities.

    This is the only transfer to the host in an iteration.

    Args:
        logits: (N, V) of the verifier.
        window: the last committed token of each row and its draft.
        state: the rows of the window.
        rules: generation options.
        accept: which drafted tokens are accepted.
    """
    tree = window if isinstance(window, DraftedTree) else None
    ruled = rules.applied(logits, window, state)
    own = first_largest(ruled)
    branching = () if tree is None else (tree,)  # a rule need not know trees
    accepted = accept(ruled, own, drafted_next(window), *branching)
    flags, choices, tokens = torch.stack([accepted.to(own.dtype), own, window.tokens]).tolist()
    drafted = [width - 1 for width in window.widths]
    if (
        tree is None
    ):  # a flag belongs to the position before a drafted token; in a tree to the token
        flags = [0, *flags[:-1]]
    all_parents = map(range, drafted) if tree is None else tree.parents
    counts, emitted, paths, first = [], [], [], 0
    for parents, width in zip(all_parents, window.widths, strict=True):
        row = slice(first, first + width)
        path = best_path(parents, flags[row], tokens[row], choices[row])
        # Relaxed acceptance takes other tokens than the verifier's own choice.
        gained = [tokens[first + node] for node in path[1:]] + [choices[first + path[-1]]]
        if rules.eos in gained:
            del gained[gained.index(rules.eos) + 1 :]
        counts.append(min(len(path) - 1, len(gained)))
        emitted.append(gained)
        paths.append([first + node for node in path[: len(gained)]])
        first += width
    places = [place for path in paths for place in path]
    gained = [token for row in emitted for token in row]
    at, chosen = to_device([places, gained], logits.device).unbind(0)
    scores = rules.scores(logits[at], chosen)
    return Verdict(window, drafted, counts, emitted, paths if tree else None, scores)


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
