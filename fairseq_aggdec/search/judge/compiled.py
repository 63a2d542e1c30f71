"""The judge that decides in one call of the compiled library: choices, acceptance and log-probabilities.

For exact and top-beta acceptance of logits on the host. The dozen operators that it replaces take as long there as a
small product each.
"""

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fairseq_aggdec.kernels.library import WORD, JudgementStruct, kernels, reads
from fairseq_aggdec.search.acceptance import Acceptance, TopBeta, exact
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Verdict
from fairseq_aggdec.windows.transfer import int64_array
from fairseq_aggdec.windows.tree_window import DraftedTree
from fairseq_aggdec.windows.window import Window


def judges(logits: Tensor, window: Window, accept: Acceptance) -> bool:
    """Whether this judge can decide."""
    known = accept is exact or type(accept) is TopBeta or window.width == 1
    return known and reads(logits) and kernels() is not None


def judge(
    logits: Tensor, window: Window, state: DecodeState, rules: Rules, accept: Acceptance
) -> Verdict:
    """Judges in one call; arguments as for :func:`fairseq_aggdec.search.judge.tensors.judge`."""
    library: Any = kernels()
    # 0: only the verifier's own choices are accepted, or nothing was drafted
    beta, tolerance = (accept.beta, accept.tolerance) if isinstance(accept, TopBeta) else (0, 0.0)
    rows, (count, types) = window.rows, logits.shape
    forced, banned = rules.hidden(window, state)
    above = window.host_links[0] if isinstance(window, DraftedTree) else ()
    pairs = itertools.chain.from_iterable(forced + banned)
    given = [*window.host_tokens(), *window.widths, *pairs, *above]
    # In: tokens, widths, pairs, above; out: accepted, emitted (R each), places, tokens (N each).
    numbers = int64_array(given + [0] * (2 * rows + 2 * count))
    at, _ = numbers.buffer_info()
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
    library.aggdec_judge(ctypes.byref(call))
    told = numbers[len(given) :].tolist()
    accepted, emitted = told[:rows], told[rows : 2 * rows]
    gained = _split(told, 2 * rows + count, emitted)
    paths = _split(told, 2 * rows, emitted) if above else None
    kept = scores[: sum(emitted)]
    drafted = [width - 1 for width in window.widths]
    return Verdict(window, drafted, accepted, gained, paths, kept)


def _split(words: list[int], first: int, lengths: Sequence[int]) -> list[list[int]]:
    """Numbers of each row, which follow each other from ``first`` on."""
    ends = itertools.accumulate(lengths, initial=first)
    return [words[begin:end] for begin, end in itertools.pairwise(ends)]
