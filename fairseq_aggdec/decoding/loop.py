"""The loop: draft, verify, accept, commit. Every lossless method is this loop with another drafter."""

import torch
from torch import Tensor

from fairseq_aggdec.decoding.acceptance import Acceptance, drafted_next
from fairseq_aggdec.decoding.counters import Counters
from fairseq_aggdec.decoding.draft import Draft, Verification
from fairseq_aggdec.decoding.drafter import Drafter
from fairseq_aggdec.decoding.largest import first_largest
from fairseq_aggdec.decoding.rules import Rules
from fairseq_aggdec.decoding.state import DecodeState
from fairseq_aggdec.decoding.verifier import Verifier
from fairseq_aggdec.decoding.window import Window


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
        accept: which drafted tokens stand, see :mod:`fairseq_aggdec.decoding.acceptance`.
        rules: generation options.
        counters: are added to.
    """
    while state.rows:
        with counters.clock("draft"):
            draft = drafter.draft(state)
        with counters.clock("verify"):
            window = state.window(draft)
            logits = verifier.logits(window)
        with counters.clock("other"):
            with rules.applied(logits, window, state):
                verification = judge(accept, logits, draft, window, rules.eos)
            commit(verification, rules, logits, state)
            drafter.observe(verification, state)
            counters.add(verification)
            keep = state.release_finished()
            if keep:
                verifier.keep_rows(keep)
                drafter.keep_rows(keep)


def judge(
    accept: Acceptance, logits: Tensor, draft: Draft, window: Window, eos: int
) -> Verification:
    """Finds each row's bifurcation and what it emits. One transfer to the host, the only one of an iteration."""
    choices = first_largest(logits)
    if window.width == 1:  # nothing was drafted
        emitted = [[token] for token in choices.tolist()]
        return Verification(window, choices, draft.lengths, [0] * window.rows, emitted)
    drafted = drafted_next(window)
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
    return Verification(window, tokens, draft.lengths, counts, emitted)


def commit(verification: Verification, rules: Rules, logits: Tensor, state: DecodeState) -> None:
    """Commits the emitted tokens with their scores."""
    window, emitted = verification.window, verification.emitted
    if state.rows[0].history is not None:
        _remember(window, state)
    gained: slice | Tensor
    if window.rows == 1:
        gained = slice(0, len(emitted[0]))
    else:
        flat: list[int] = []
        first = 0
        for tokens, width in zip(emitted, window.widths, strict=True):
            flat += range(first, first + len(tokens))
            first += width
        gained = torch.tensor(flat, device=logits.device)
    scores = rules.scores(logits[gained], verification.tokens[gained])
    state.commit(emitted, rules.free_forced_ends(scores, emitted, state))


def _remember(window: Window, state: DecodeState) -> None:
    """Keeps what the verifier was shown (``--retain-iter-history``): the committed prefix and the draft."""
    parts = window.tokens.split(window.widths)
    for row, part in zip(state.rows, parts, strict=True):
        assert row.history is not None
        row.history.append(row.tokens[1:] + part[1:].tolist())
