"""Tells how the compiled libraries have weights in memory, as ``structs.h`` says of a ``Product``."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL = 64  # weights are padded to a multiple of that many outputs
BLOCK = 32  # inputs in bfloat16 are padded to a multiple of that many


@dataclass(frozen=True)
class Layout:
    """Tells how a library has its weights, which differs from one set of instructions to the other.

    Attributes:
        strip: outputs whose weights stand side by side.
        depth: a multiple of inputs, to which weights in 8 bits are padded.
        apart: inputs between those of a pair in bfloat16.
    """

    strip: int
    depth: int
    apart: int

    @classmethod
    def of(cls, library: Any) -> "Layout":
        return cls(library.aggdec_strip(), library.aggdec_depth(), library.aggdec_apart())

    def laid_out(self, weight: Tensor, int8: bool = False, bf16: bool = False) -> Tensor:
        """A weight (O, K), in 8 bits if it is for them, as ``Product`` of ``structs.h`` has it: (O / strip, ...)."""
        missing = -len(weight) % PANEL
        if int8:
            levels = F.pad(weight, (0, -weight.size(1) % self.depth, 0, missing))
            return levels.view(-1, self.strip, levels.size(1) // 4, 4).transpose(1, 2)
        if bf16:
            weight = F.pad(weight.bfloat16(), (0, -weight.size(1) % BLOCK, 0, missing))
            return in_pairs(weight, self.strip, self.apart)
        weight = F.pad(weight, (0, 0, 0, missing))
        return weight.view(-1, self.strip, weight.size(1)).transpose(1, 2)


def in_pairs(weight: Tensor, strip: int, apart: int) -> Tensor:
    """A padded weight (O, K) bfloat16 as ``Product`` of ``structs.h`` has it: (O / strip, K / 2, strip, 2)."""
    pairs = weight.view(-1, strip, weight.size(1) // (2 * apart), 2, apart)
    # The low half of a word comes first: the processors with these instructions are little-endian.
    return pairs.flip(3).permute(0, 2, 4, 1, 3)


@dataclass(frozen=True)
class ProductForm:
    """Dtypes and shapes that the parts of a packed product must have, from the linear layers that it stands for.

    Attributes:
        kind: ``fp32``, ``int8`` or ``bf16``. bias: it has one.
    """

    kind: str
    inputs: int
    outputs: int
    bias: bool

    def parts(self, layout: Layout) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Dtype and shape of each part that such a product has, by its name."""
        int8, bf16 = self.kind == "int8", self.kind == "bf16"
        dtype = torch.int8 if int8 else torch.float32
        weight = torch.empty(self.outputs, self.inputs, dtype=dtype, device="meta")
        laid_out = layout.laid_out(weight, int8, bf16)
        shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "weight": (laid_out.dtype, tuple(laid_out.shape))
        }
        if self.bias:
            shapes["bias"] = torch.float32, (self.outputs,)
        if int8:
            padded = (-(-self.outputs // PANEL) * PANEL,)
            shapes |= {"scales": (torch.float32, padded), "sums": (torch.int32, padded)}
        return shapes
