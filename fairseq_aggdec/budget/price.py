"""Prices of calls: as usual, as an option says, or as they were timed. Only what a draft gains for its cost depends on
it: exact outputs do not."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_aggdec.kernels.library import structure

CallPriceStruct = structure("search/price.h", "CallPrice")
MOST_POINTS = len(CallPriceStruct().places)

# What a call of the verifier costs beside its positions (reading the weights, host work), in positions, where no clock
# may have a say: tests, drafts whose length decides what is written, and devices that are not timed.
# kernels: with which IAD was fastest in the compiled library, in fp32 and in 8 bits (docs/performance.md).
# cpu: `scripts/recipes/step_cost.py` on the shipped model (docs/results/iad.md#iad-step_cost-cpu2).
# cuda: an iteration takes as long beside its products as the products of this number of positions, for a base model:
# 0.6 ms on an H200 in fp32. "cuda half" is four times that, a guess: products in half precision were not timed.
USUAL = {"kernels": 5.0, "cpu": 26.0, "cuda": 256.0, "cuda half": 1024.0}
# What the call of a model that drafts adds, in positions: three layers of width 256 in the compiled library took as
# long as two. In 8 bits, where a position costs less, a draft of five tokens has to gain 2.6 with 3+3 layers of
# width 256.
DRAFTER, DRAFTER_INT8 = 2.0, 3.5

USUAL_PRICE, MEASURED = "usual", "measured"


@dataclass(frozen=True)
class CallPrice:
    """Costs of calls, in any one unit. ``kernels/source/search/price.h`` is the same.

    Attributes:
        points: places of a window, rising, and what a call of the verifier costs; between two points, and beyond them,
            costs are on the line through them.
        draft, slot: of a call of the drafter, and of each slot of each row in it.
    """

    points: tuple[tuple[float, float], ...]
    draft: float = 0.0
    slot: float = 0.0

    def call(self, places: float) -> float:
        """Cost of a call of the verifier over so many places."""
        points, i = self.points, 0
        while i + 2 < len(points) and points[i + 1][0] < places:
            i += 1
        (first, low), (last, high) = points[i : i + 2]
        return low + (high - low) / (last - first) * (places - first)

    def beside(self, places: float) -> float:
        """Cost of a call of so many places beside these, in places as they cost there."""
        slope = (self.call(1.5 * places) - self.call(0.5 * places)) / places
        return max(0.0, self.call(places) / slope - places) if slope > 0 else math.inf

    def drafting(self, rows: float, nodes: float, slots: float) -> float:
        """Cost of an iteration that drafts ``nodes`` tokens for each row from ``slots`` slots."""
        return self.call(rows * (1.0 + nodes)) + self.draft + self.slot * rows * slots

    @property
    def struct(self) -> Any:
        """The price for the compiled library."""
        struct = CallPriceStruct(count=len(self.points), draft=self.draft, slot=self.slot)
        for i, (places, cost) in enumerate(self.points):
            struct.places[i], struct.costs[i] = places, cost
        return struct

    def __str__(self) -> str:
        """The price as :func:`parse_price` reads it."""
        costs = [(f"{places:g}", cost) for places, cost in self.points]
        costs += [("draft", self.draft), ("slot", self.slot)]
        return ",".join(f"{name}:{cost:.4g}" for name, cost in costs)


def usual_price(by: str, int8: bool = False) -> CallPrice:
    """The price where nothing was timed.

    Args:
        by: what decodes: a key of :data:`USUAL`, or another device.
        int8: the verifier computes in 8 bits.
    """
    call = USUAL.get(by, USUAL["cuda"])
    return CallPrice(((0.0, call), (1.0, call + 1.0)), DRAFTER_INT8 if int8 else DRAFTER)


def key_of(compiled: bool, device: str) -> str:
    """The key of :data:`USUAL`: of the compiled library, which decodes a batch, or of a device."""
    return "kernels" if compiled else device


def parse_price(text: str) -> CallPrice | None:
    """Reads ``--call-price``: ``PLACES:COST,...,draft:COST,slot:COST``; None for one of the two words that it takes.

    Raises:
        ValueError: the text says no price.
    """
    if text in (USUAL_PRICE, MEASURED):
        return None
    try:
        parts = [part.split(":") for part in text.split(",")]
        costs = {name: float(cost) for name, cost in parts}
        of_drafts = {name: costs.pop(name) for name in ("draft", "slot") if name in costs}
        points = tuple((float(places), cost) for places, cost in costs.items())
    except ValueError:
        points, of_drafts = (), {}
    numbers = [number for point in points for number in point] + list(of_drafts.values())
    known = 2 <= len(points) <= MOST_POINTS and all(map(math.isfinite, numbers))
    if (
        not known
        or min(numbers) < 0
        or points[0][1] <= 0
        or not (_rise(points, 0) and _rise(points, 1))
    ):
        raise ValueError(
            f"--call-price {text}: say {MEASURED}, {USUAL_PRICE}, or what calls cost by the tokens that they read, 2 "
            f"to {MOST_POINTS} rising numbers, as in 1:0.9,4:1.2,8:1.8,draft:0.3,slot:0.02"
        )
    return CallPrice(points, **of_drafts)


def _rise(points: Sequence[tuple[float, float]], part: int) -> bool:
    """Tells whether places rise, or costs do not fall."""
    pairs = [(one[part], other[part]) for one, other in itertools.pairwise(points)]
    return all(one < other if part == 0 else one <= other for one, other in pairs)
