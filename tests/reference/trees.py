"""Windows of drafted trees."""

from __future__ import annotations

import torch

from fairseq_aggdec.windows.tree_window import TreeWindow


def drafted_tree(
    tokens: list[list[int]], parents: list[list[int]], starts: list[int], device: torch.device
) -> TreeWindow:
    """The last token of each row and a tree below it: which of its row each of the others follows."""
    depths: list[int] = []
    seen: list[int] = []
    for own, start in zip(parents, starts, strict=True):
        root = len(depths)
        depths.append(start)
        seen.append((2 << start) - 1)
        for place, parent in enumerate(own, start + 1):
            depths.append(depths[root + parent] + 1)
            seen.append(seen[root + parent] | 1 << place)
    flat = [token for row in tokens for token in row]
    return TreeWindow(flat, starts, list(map(len, tokens)), depths, seen, device)
