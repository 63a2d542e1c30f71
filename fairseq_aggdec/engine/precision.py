"""How a model computes: one object for all that run it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """How a model computes; passed whole from the options to every layer.

    Attributes:
        pack: lay weights out once for the few rows of a window (fp32 and bf16 on a CPU). Takes a second copy of them.
        int8: compute products in 8 bits (fp32 and bf16 on a CPU). The result of a row does not depend on other rows.
        graphs: on a GPU, replay the calls of a decoder as captured graphs.
        strict: slots per row in every window of a batch (:mod:`fairseq_aggdec.windows.grid`); 0: as many as it needs.
    """

    pack: bool = True
    int8: bool = False
    graphs: bool = False
    strict: int = 0


EXACT = Precision()
