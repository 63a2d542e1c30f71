"""What the verifier accepts of a draft: two judges of one signature, ``judge(logits, asked, rules, accept)``.

``tensors`` knows every rule of acceptance; ``compiled`` decides in one call of the compiled library what it can. Both
give the same verdict. On a GPU that goes on without the host ``on_device`` and ``fused`` do the bookkeeping of an
iteration; they are twins.
"""

from dataclasses import dataclass

from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft
from fairseq_aggdec.windows.window import Window


@dataclass
class Question:
    """What the verifier was asked in an iteration: a draft, the window that holds it, the rows as they were then."""

    draft: Draft
    window: Window
    state: DecodeState
