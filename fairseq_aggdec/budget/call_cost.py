"""Costs of calls, as they usually are. No clock has a say, so that what is decoded does not depend on how fast the
machine is."""

from fairseq_aggdec.kernels.library import constants, kernels
from fairseq_aggdec.kernels.switches import INSTRUCTIONS

# Of drafts of models, which the compiled library weighs with the same numbers.
OF_DRAFTS = constants("search/draft_budget.h")

# What a call of the verifier costs beside its positions (reading the weights, host work), in positions.
# kernels: with which IAD was fastest in the compiled library, in fp32 and in 8 bits (docs/performance.md).
# cpu: `scripts/recipes/gpu/step_cost.py` on the shipped model (docs/results/iad.md#iad-step_cost-cpu2).
# cuda: an iteration takes as long beside its products as the products of this number of positions, for a base model:
# 0.6 ms on an H200 in fp32. "cuda half" is four times that, a guess: products in half precision were not timed.
# kernels avx2: without instructions for products of bytes one row alone keeps the processor busy, so a further one
# costs nearly as much as a call (AMD Zen 3): with 5, `gad` took longer than `greedy` in `aggdec bench`.
USUAL = {"kernels": 5.0, "kernels avx2": 2.0, "cpu": 26.0, "cuda": 256.0, "cuda half": 1024.0}
# What the call of a model that drafts adds, in positions: three layers of width 256 in the compiled library took as
# long as two. In 8 bits, where a position costs less, a draft of five tokens has to gain 2.6 with 3+3 layers of
# width 256.
DRAFTER, DRAFTER_INT8 = 2.0, 3.5
# A call of beam search, beside its prefixes, in prefixes.
# cpu: 4 to 7 in the compiled library with a decoder of width 256, twice that at base size.
# cuda: 0.9 ms on an H200, where a prefix costs the device nothing but the host some 20 us.
# 8 bits avx2: with 6, beam 5 with the shipped corrector took 1.1 times as long at batch 1 and 8 as with nothing run
# ahead. In fp32 one row alone waits for the weights there, too: an ensemble of two gained 1.1 times by 6.
USUAL_OF_SEARCH = {"cpu": 6.0, "8 bits avx2": 2.0, "cuda": 40.0}


def with_kernels(by: str) -> str:
    """The key of :data:`USUAL` for the compiled library of this processor: ``by`` or a key of its own."""
    library = kernels()
    avx2 = library is not None and INSTRUCTIONS[library.aggdec_instructions()] == "avx2"
    return f"{by} avx2" if avx2 else by


def key_of_search(device: str, int8: bool) -> str:
    """The key of :data:`USUAL_OF_SEARCH` for a device and a precision."""
    own = with_kernels("8 bits") if device == "cpu" and int8 else device
    return own if own in USUAL_OF_SEARCH else device


def key_of(compiled: bool, device: str, exact: bool) -> str:
    """The key of :data:`USUAL` for drafts of one batch.

    Args:
        compiled: the compiled library decodes.
        device: kind of the device, where it does not.
        exact: drafts of any length give the same output. If not, their lengths decide what the workers of a job write,
            so that all processors weigh them alike.
    """
    if not compiled:
        return device
    return with_kernels("kernels") if exact else "kernels"


def usual_cost(by: str) -> float:
    """Cost of an iteration beside its positions, in positions; ``by``: what decodes: a key of :data:`USUAL`, or another
    device."""
    return USUAL.get(by, USUAL["cuda"])
