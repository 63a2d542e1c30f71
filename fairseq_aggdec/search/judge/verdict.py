"""What the judges share: what was asked, and the log-probabilities of what a row emits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.tree_window import DraftedTree
from fairseq_aggdec.windows.window import Window


@dataclass
class Question:
    """What the verifier was asked in an iteration: a draft, the window that holds it, the rows as they were then."""

    draft: Draft
    window: Window
    state: DecodeState


def scored(verdict: Verdict, choices: Tensor, logits: Tensor, rules: Rules) -> Verdict:
    """The verdict with the log-probabilities of all that is emitted.

    Args:
        choices: (N,) int64, what each position would emit.
        logits: (N, V) of the verifier, without the rules.
    """
    window, emitted = verdict.window, verdict.emitted
    if window.rows == 1 and verdict.paths is None:
        count = len(emitted[0])
        verdict.scores = rules.scores(logits[:count], choices[:count])
    elif window.width == 1:
        verdict.scores = rules.scores(logits, choices)
    else:
        tokens = [token for row in emitted for token in row]
        places, chosen = to_device([verdict.places(), tokens], logits.device).unbind(0)
        verdict.scores = rules.scores(logits, chosen, places)
    return verdict


def along_paths(
    path_of: Callable[[Sequence[int], slice], list[int]],
    tokens: Sequence[int],
    choices: Sequence[int],
    asked: Question,
    eos: int,
) -> Verdict:
    """The verdict on drafts of which one path each is accepted.

    Args:
        path_of: the parents of a row's draft, and its positions in the window -> the nodes that are accepted.
        tokens: of the window, N of them.
        choices: the verifier's own behind each.
    """
    counts, emitted, paths, first = [], [], [], 0
    draft, window = asked.draft, asked.window
    for parents, width in zip(draft.ways(), window.widths, strict=True):
        path = path_of(parents, slice(first, first + width))
        gained = [tokens[first + node] for node in path[1:]] + [choices[first + path[-1]]]
        if eos in gained:
            del gained[gained.index(eos) + 1 :]
        counts.append(min(len(path) - 1, len(gained)))
        emitted.append(gained)
        paths.append([first + node for node in path[: len(gained)]])
        first += width
    branched = paths if isinstance(window, DraftedTree) else None
    return Verdict(window, draft.lengths, counts, emitted, branched)
