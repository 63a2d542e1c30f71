"""Choices, what stands of a draft and what it scores, in one call of the compiled library.

Where the verifier's own choices stand, or others among its best, and logits are on the host: what
:meth:`~fairseq_aggdec.search.rules.Rules.applied`, :func:`~fairseq_aggdec.search.loop.judge` and
:meth:`~fairseq_aggdec.search.rules.Rules.scores` do in a dozen operators, each of which takes as long there as a
small product.
"""

import ctypes
import itertools
from array import array
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fairseq_aggdec.kernels.library import WORD, JudgementStruct, kernels, reads
from fairseq_aggdec.search.acceptance import Acceptance, TopBeta, exact
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict
from fairseq_aggdec.windows.tree_window import DraftedTree
from fairseq_aggdec.windows.window import Window


def judges(accept: Acceptance, logits: Tensor, window: Window) -> Any:
    """The library where it can judge a window, else None."""
    known = accept is exact or isinstance(accept, TopBeta) or window.width == 1
    return kernels() if known and reads(logits) else None


def judge_compiled(
    library: Any,
    accept: Acceptance,
    rules: Rules,
    logits: Tensor,
    draft: Draft,
    window: Window,
    state: DecodeState,
) -> Verdict:
    """Finds each row's bifurcation, what it emits and the log-probabilities of that; logits (N, V) are as before."""
    # 0: only the verifier's own choices stand, or nothing was drafted
    beta, tolerance = (accept.beta, accept.tolerance) if isinstance(accept, TopBeta) else (0, 0.0)
    rows, (count, types) = window.rows, logits.shape
    forced, banned = rules.hidden(window, state)
    above = window.host_links[0] if isinstance(window, DraftedTree) else ()
    pairs = itertools.chain.from_iterable(forced + banned)
    given = [*window.host_tokens(), *window.widths, *pairs, *above]
    # In: tokens, widths, pairs, above; out: accepted, emitted (R each), places, tokens (N each).
    words = array("q", given + [0] * (2 * rows + 2 * count))
    at, _ = words.buffer_info()
    widths, out = at + WORD * count, at + WORD * len(given)
    first_pair = widths + WORD * rows
    scores = logits.new_empty(count)
    call = JudgementStruct(
        rows,
        types,
        widths,
        at,
        out - WORD * count if above else None,
        logits.data_ptr(),
        rules.pad,
        rules.unk,
        rules.eos,
        rules.unk_penalty,
        first_pair + 2 * WORD * len(forced),
        first_pair,
        len(banned),
        len(forced),
        out,
        out + WORD * rows,
        out + 2 * WORD * rows,
        out + WORD * (2 * rows + count),
        scores.data_ptr(),
        beta,
        tolerance,
    )
    library.aggdec_judge(ctypes.addressof(call))
    told = words[len(given) :].tolist()
    accepted, emitted = told[:rows], told[rows : 2 * rows]
    gained = _split(told, 2 * rows + count, emitted)
    paths = _split(told, 2 * rows, emitted) if above else None
    kept = scores[: sum(emitted)]
    return Verdict(window, None, draft.lengths, accepted, gained, paths, kept)


def _split(words: list[int], first: int, lengths: Sequence[int]) -> list[list[int]]:
    """Numbers that stand one row after the other."""
    ends = itertools.accumulate(lengths, initial=first)
    return [words[begin:end] for begin, end in itertools.pairwise(ends)]
