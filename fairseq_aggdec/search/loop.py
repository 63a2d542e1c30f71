"""The loop: draft, verify, accept, commit. Every lossless method is this loop with another drafter."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.largest import first_largest
from fairseq_aggdec.search.acceptance import Acceptance, drafted_next, exact
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.judging import judge_compiled, judges
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.tree_window import DraftedTree
from fairseq_aggdec.windows.window import Window


@torch.inference_mode()
def draft_and_verify(
    verifier: Verifier,
    drafter: Drafter,
    accept: Acceptance,
    rules: Rules,
    state: DecodeState,
    counters: Counters,
) -> None:
    """Decodes every row of ``state`` to its end (in place).

    Args:
        verifier: has been started on the batch.
        drafter: has been started on the batch.
        accept: which drafted tokens stand, see :mod:`fairseq_aggdec.search.acceptance`.
        rules: generation options.
        counters: are added to.
    """
    while state.rows:
        with counters.clock("draft"):
            proposed = drafter.draft(state)
            draft = verifier.readable(proposed)
        with counters.clock("verify"):
            window = state.window(draft)
            logits = verifier.logits(window)
        with counters.clock("other"):
            if library := judges(accept, logits, window):
                verdict = judge_compiled(library, accept, rules, logits, draft, window, state)
            else:
                with rules.applied(logits, window, state) as ruled:
                    verdict = judge(accept, ruled, draft, window, rules.eos)
            commit(verdict, rules, logits, state)
            verdict.whole = draft is proposed
            drafter.observe(verdict, state)
            verifier.settle(verdict)
            counters.add(verdict)
            keep = state.release_finished()
            if keep:
                verifier.keep_rows(keep)
                drafter.keep_rows(keep)


def judge(accept: Acceptance, logits: Tensor, draft: Draft, window: Window, eos: int) -> Verdict:
    """Finds each row's bifurcation and what it emits. One transfer to the host, the only one of an iteration."""
    choices = first_largest(logits)
    if window.width == 1:  # nothing was drafted
        emitted = [[token] for token in choices.tolist()]
        return Verdict(window, choices, draft.lengths, [0] * window.rows, emitted)
    if accept is exact and window.host is not None:
        return _judge_on_host(window.host, choices, draft, window, eos)
    drafted = drafted_next(window)
    if isinstance(window, DraftedTree):
        accepted = accept(logits, choices, drafted, window)
        return _judge_tree(accepted, choices, draft, window, eos)
    accepted = accept(logits, choices, drafted)
    # Accepted tokens are the draft's, which relaxed acceptance tells from the verifier's own choice.
    tokens = torch.where(accepted, drafted, choices)
    flags, host_tokens = torch.stack([accepted.to(tokens.dtype), tokens]).tolist()
    counts, emitted = [], []
    first = 0
    for width in window.widths:
        # A row's last position drafts nothing and is never accepted: the bifurcation exists ([PAD] in Algorithm 1).
        bifurcation = flags.index(0, first, first + width)
        gained = host_tokens[first : bifurcation + 1]
        if eos in gained:
            del gained[gained.index(eos) + 1 :]
        counts.append(min(bifurcation - first, len(gained)))
        emitted.append(gained)
        first += width
    return Verdict(window, tokens, draft.lengths, counts, emitted)


def _judge_on_host(
    tokens: Sequence[int], choices: Tensor, draft: Draft, window: Window, eos: int
) -> Verdict:
    """The same where only the verifier's own choices stand and the host knows what was drafted, branching or not."""
    host_choices = choices.tolist()

    def path(parents: Sequence[int], own: slice) -> list[int]:
        return own_path(parents, tokens[own], host_choices[own])

    counts, emitted, paths = _along(path, tokens, host_choices, draft, window, eos)
    branched = paths if isinstance(window, DraftedTree) else None
    return Verdict(window, choices, draft.lengths, counts, emitted, branched)


def _judge_tree(
    accepted: Tensor, choices: Tensor, draft: Draft, window: DraftedTree, eos: int
) -> Verdict:
    """The same where drafts branch: the tokens of the best path of accepted ones, and the choice at its end."""
    flags, host_choices = torch.stack([accepted.to(choices.dtype), choices]).tolist()
    tokens = window.host_tokens()

    def path(parents: Sequence[int], own: slice) -> list[int]:
        return best_path(parents, flags[own], tokens[own], host_choices[own])

    found = _along(path, tokens, host_choices, draft, window, eos)
    return Verdict(window, choices, draft.lengths, *found)


def _along(
    path_of: Callable[[Sequence[int], slice], list[int]],
    tokens: Sequence[int],
    choices: Sequence[int],
    draft: Draft,
    window: Window,
    eos: int,
) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Of each row how many drafted tokens stand, what it emits and at which of the N places, from the path that stands.

    Args:
        path_of: parents of a row's drafted tokens and the places of the row -> nodes that stand, the root (0) first.
        tokens, choices: (N) what was read, and the verifier's own behind each.
    """
    counts, emitted, paths = [], [], []
    first = 0
    for parents, width in zip(draft.ways(), window.widths, strict=True):
        path = path_of(parents, slice(first, first + width))
        gained = [tokens[first + node] for node in path[1:]] + [choices[first + path[-1]]]
        if eos in gained:
            del gained[gained.index(eos) + 1 :]
        counts.append(min(len(path) - 1, len(gained)))
        emitted.append(gained)
        paths.append([first + node for node in path[: len(gained)]])
        first += width
    return counts, emitted, paths


def own_path(parents: Sequence[int], tokens: Sequence[int], choices: Sequence[int]) -> list[int]:
    """The nodes of a tree that the verifier's own choices lead along; arguments as for :func:`best_path`."""
    path = [0]
    for node, parent in enumerate(parents, 1):
        if parent == path[-1] and tokens[node] == choices[parent]:
            path.append(node)
    return path


def best_path(
    parents: Sequence[int], stands: Sequence[int], tokens: Sequence[int], choices: Sequence[int]
) -> list[int]:
    """The nodes of a tree that stand, the root (0) first: where several follow one, the verifier's own choice is taken,
    else the one from which most others are reached.

    Args:
        parents: of nodes 1, 2, ...
        stands: whether each node, the root first, is accepted behind its parent.
        tokens: of the nodes.
        choices: the verifier's own behind each.
    """
    best: list[tuple[bool, int, int]] = [(False, 0, 0)] * len(tokens)  # own choice, length, node
    for node in range(len(tokens) - 1, 0, -1):
        if stands[node]:
            parent = parents[node - 1]
            follows = tokens[node] == choices[parent], best[node][1] + 1, node
            if follows[:2] >= best[parent][:2]:
                best[parent] = follows
    path = [0]
    while following := best[path[-1]][2]:
        path.append(following)
    return path


def commit(verdict: Verdict, rules: Rules, logits: Tensor, state: DecodeState) -> None:
    """Commits the emitted tokens with their scores."""
    emitted = verdict.emitted
    if state.rows[0].history is not None:
        _remember(verdict.window, state)
    scores = verdict.scores
    if scores is None:
        scores = _scores(verdict, rules, logits)
    state.commit(emitted, rules.free_forced_ends(scores, emitted, state))


def _scores(verdict: Verdict, rules: Rules, logits: Tensor) -> Tensor:
    """Log-probabilities of all that was emitted, row after row."""
    window, emitted, choices = verdict.window, verdict.emitted, verdict.tokens
    assert choices is not None
    if window.rows == 1 and verdict.paths is None:
        count = len(emitted[0])
        return rules.scores(logits[:count], choices[:count])
    if window.width == 1:
        return rules.scores(logits, choices)
    places = verdict.places()
    tokens = [token for row in emitted for token in row]
    gained, chosen = to_device([places, tokens], logits.device).unbind(0)
    return rules.scores(logits, chosen, gained)


def _remember(window: Window, state: DecodeState) -> None:
    """Keeps what the verifier was shown (``--retain-iter-history``): the committed prefix and the draft."""
    for row, drafted in zip(state.rows, window.drafted_paths(), strict=True):
        assert row.history is not None
        row.history.append(row.tokens[1:] + drafted)
