"""The judge of drafts that the host knows: only the verifier's own choices are accepted."""

from collections.abc import Sequence

from torch import Tensor

from fairseq_aggdec.kernels.largest import first_largest
from fairseq_aggdec.search.acceptance import Acceptance, exact
from fairseq_aggdec.search.judge.verdict import Question, along_paths, scored
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.windows.draft import Verdict


def judges(logits: Tensor, asked: Question, accept: Acceptance) -> bool:
    """Whether this judge can decide; without a draft the tensors are quicker."""
    return accept is exact and asked.window.host is not None and asked.window.width > 1


def judge(logits: Tensor, asked: Question, rules: Rules, accept: Acceptance) -> Verdict:
    """Follows each draft along the verifier's choices; arguments as for the tensors' judge."""
    with rules.applied(logits, asked.window, asked.state) as ruled:
        choices = first_largest(ruled)
    tokens, chosen = asked.window.host, choices.tolist()
    assert tokens is not None

    def path(parents: Sequence[int], own: slice) -> list[int]:
        return own_path(parents, tokens[own], chosen[own])

    return scored(along_paths(path, tokens, chosen, asked, rules.eos), choices, logits, rules)


def own_path(parents: Sequence[int], tokens: Sequence[int], choices: Sequence[int]) -> list[int]:
    """The nodes of a draft that the verifier's own choices lead along, the root (0) first.

    Args:
        parents: of nodes 1, 2, ...
        tokens: of the nodes.
        choices: the verifier's own behind each.
    """
    path = [0]
    for node, parent in enumerate(parents, 1):
        if parent == path[-1] and tokens[node] == choices[parent]:
            path.append(node)
    return path
