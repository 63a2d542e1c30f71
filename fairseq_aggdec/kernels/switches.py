"""Switches of kernels: the words of ``FAIRSEQ_AGGDEC_KERNELS``, with commas between them."""

import functools
import os
from typing import NamedTuple

VARIABLE = "FAIRSEQ_AGGDEC_KERNELS"
# What a CPU's library may be compiled for, by the number that its function aggdec_instructions() gives.
INSTRUCTIONS = ("plain", "avx2", "avxvnni", "avx512", "amx", "neon")
NONE, ALL, CPU, GPU = "none", "all", "cpu", "gpu"
DEPENDENT = "dependent"  # launches of a GPU's kernels that begin before the kernel before has ended
# The kernels of a GPU.
GPU_KERNELS = (
    *(
        "begin",
        "slots",
        "embedding",
        "sources",
        "hear",
        "follow",
        "copy_block",
        "ban",
        "look",
        "verify",
    ),
    *("largest", "leaders", "best", "beam_step", "best_step"),
    *("attend", "attend_slots"),
    *("cross_attend", "logits", "product", "layer_norm"),
)


class Switches(NamedTuple):
    """Kernels that may run.

    Attributes:
        best: no library for a CPU that is better than the one for these instructions.
        off: ``cpu`` (its library), ``gpu`` (all kernels of a GPU), ``dependent``, and names of a GPU's kernels.
        forced: ``dependent`` and names of a GPU's kernels, which run without a proof.
    """

    best: str
    off: frozenset[str]
    forced: frozenset[str]


def switches() -> Switches:
    """Reads the switches from the environment.

    Raises:
        ValueError: it has a word that nothing is known by.
    """
    return _switches(os.environ.get(VARIABLE, ""))


@functools.cache  # asked before every launch
def _switches(words: str) -> Switches:
    best, off, forced = INSTRUCTIONS[-1], set(), set()
    of_gpu = DEPENDENT, *GPU_KERNELS
    for word in words.replace(" ", "").split(","):
        if word in INSTRUCTIONS:
            best = word
        elif word == NONE:
            off |= {CPU, GPU}
        elif word == ALL:
            forced |= {*of_gpu}
        elif word in of_gpu:
            forced.add(word)
        elif word.startswith("no-") and word.removeprefix("no-") in {CPU, GPU, *of_gpu}:
            off.add(word.removeprefix("no-"))
        elif word:
            names = ", ".join([*of_gpu, *(f"no-{name}" for name in (CPU, GPU, *of_gpu))])
            raise ValueError(
                f"{VARIABLE}: '{word}' is none of {', '.join(INSTRUCTIONS)}, {NONE}, {ALL}, {names}"
            )
    return Switches(best, frozenset(off), frozenset(forced))
