"""Suffix matching: where an output stands in the text that is copied (Algorithm 1 of Ge et al., section 3.1).

Take the longest suffix of the output that occurs in the text. If it occurs once, the draft is what follows it there.
Shorter suffixes need no look: they occur wherever the longest one does. This is ``--variant iad-match=unique``. The
other kinds of match find a place more often; they change the speed, not the output:

``longest`` takes the first occurrence of several, ``recent`` the next one after the last copied token. ``aligned`` is
``recent``; if no suffix occurs, it takes the rejected token as replaced by one other token. The compiled library
(``kernels/source/search/copying.h``) and the board (:mod:`~fairseq_aggdec.drafters.copy.copy_on_device`) follow texts.
"""

from collections.abc import Sequence

NEVER_DRAFTED = -1  # a token of a text that no output can have


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the longest common prefix of two sequences."""
    alike = 0
    while alike < min(len(first), len(second)) and first[alike] == second[alike]:
        alike += 1
    return alike
