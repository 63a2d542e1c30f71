"""Costs of calls, as they usually are. No clock has a say, so that what is decoded does not depend on how fast the
machine is."""

from fairseq_aggdec.kernels.library import constants

# Of drafts of models, which the compiled library weighs with the same numbers.
OF_DRAFTS = constants("search/draft_budget.h")

# What a call of the verifier costs beside its positions (reading the weights, host work), in positions.
# kernels: with which IAD was fastest in the compiled library, in fp32 and in 8 bits (docs/performance.md).
# cpu: `scripts/recipes/gpu/step_cost.py` on the shipped model (docs/results/iad.md#iad-step_cost-cpu2).
# cuda: an iteration takes as long beside its products as the products of this number of positions, for a base model:
# 0.6 ms on an H200 in fp32. "cuda half" is four times that, a guess: products in half precision were not timed.
USUAL = {"kernels": 5.0, "cpu": 26.0, "cuda": 256.0, "cuda half": 1024.0}
# What the call of a model that drafts adds, in positions: three layers of width 256 in the compiled library took as
# long as two. In 8 bits, where a position costs less, a draft of five tokens has to gain 2.6 with 3+3 layers of
# width 256.
DRAFTER, DRAFTER_INT8 = 2.0, 3.5
# A call of beam search, beside its prefixes, in prefixes.
# cpu: 4 to 7 in the compiled library with a decoder of width 256, twice that at base size.
# cuda: 0.9 ms on an H200, where a prefix costs the device nothing but the host some 20 us.
USUAL_OF_SEARCH = {"cpu": 6.0, "cuda": 40.0}


def usual_cost(by: str) -> float:
    """Cost of an iteration beside its positions, in positions; ``by``: what decodes: a key of :data:`USUAL`, or another
    device."""
    return USUAL.get(by, USUAL["cuda"])
