"""Generation rules of a batch, as the compiled library is given them."""

import itertools
from collections.abc import Sequence
from typing import Any

from fairseq_aggdec.kernels.library import WORD
from fairseq_aggdec.search.compiled.searches import RuleOptionsStruct, address
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.windows.transfer import int64_array


def rule_options(
    rules: Rules,
    ends: Sequence[int],
    floors: Sequence[int],
    strict_floors: Sequence[int],
    prefixes: Sequence[Sequence[int]],
) -> Any:
    """The structure that every search reads, of B sentences.

    Args:
        ends, floors, strict_floors: of each sentence, see :class:`~fairseq_aggdec.search.state.Row`.
        prefixes: forced tokens of each sentence, equally many, padding where there is none.
    """
    held = int64_array([*ends, *floors, *strict_floors, *itertools.chain.from_iterable(prefixes)])
    first, step = address(held), WORD * len(ends)
    options = RuleOptionsStruct(
        *(rules.pad, rules.unk, rules.eos),
        *(rules.unk_penalty, max(0, rules.no_repeat_ngram_size), rules.free_end),
        *(first, first + step, first + 2 * step, len(prefixes[0]), first + 3 * step),
    )
    options.held = held  # alive
    return options
