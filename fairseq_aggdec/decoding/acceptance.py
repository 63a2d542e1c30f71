"""Acceptance: which drafted tokens stand, as pure tensor functions over the N positions of a window."""

import torch
from torch import Tensor

from fairseq_aggdec.decoding.window import Window

NO_DRAFT = -1


def drafted_next(window: Window) -> Tensor:
    """The token drafted right after each position (N,), ``NO_DRAFT`` at the last position of a row."""
    if window.width == 1:
        return torch.full_like(window.tokens, NO_DRAFT)
    following = torch.roll(window.tokens, -1)
    if window.rows == 1:
        following[-1] = NO_DRAFT
    else:
        ends = torch.tensor(window.widths).cumsum(0) - 1
        following[ends.to(following.device)] = NO_DRAFT
    return following


def exact(logits: Tensor, choices: Tensor, drafted: Tensor) -> Tensor:
    """Accepts a drafted token when it is the verifier's own choice: lossless. All (N,); returns bool (N,)."""
    return choices == drafted
