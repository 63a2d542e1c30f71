"""Sizes of the models with random weights that measurements of time are made on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """Layers of encoder and of decoder, width, hidden units, attention heads, types of the dictionary."""

    layers: int
    dim: int
    hidden: int
    heads: int
    types: int

    def flags(self) -> list[str]:
        """The same as flags of any Transformer architecture."""
        found = []
        for side in ("encoder", "decoder"):
            found += [f"--{side}-layers={self.layers}", f"--{side}-embed-dim={self.dim}"]
            found += [f"--{side}-ffn-embed-dim={self.hidden}"]
            found += [f"--{side}-attention-heads={self.heads}"]
        return found


SIZES = {
    "tiny": Size(1, 32, 64, 2, 100),  # for tests
    "small": Size(3, 256, 1024, 4, 8120),  # that of the Multi30k recipe
    "base": Size(6, 512, 2048, 8, 32768),
    "big": Size(6, 1024, 4096, 16, 32768),
}
