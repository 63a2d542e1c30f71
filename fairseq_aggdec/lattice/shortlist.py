"""``--shortlist``: the verifier chooses among the words that the candidate tables propose for a source."""

import torch
from torch import Tensor

from fairseq_aggdec.lattice.candidates import CandidateModel, Smoothing
from fairseq_aggdec.windows.transfer import to_device


class Shortlist:
    """Which types a batch may be translated into: the likeliest words of every target position, and special symbols.

    Args:
        model: proposes words; moved to the device of the first source.
        count: words for each target position.
        smoothing: of their probabilities.
    """

    def __init__(self, model: CandidateModel, count: int, smoothing: Smoothing):
        self.model, self.count, self.smoothing = model, count, smoothing

    def __call__(self, source: Tensor) -> Tensor:
        """Ids (M,) int64, sorted, for sources (B, S)."""
        self.model = self.model.to(source.device)
        # `</s>` and padding are candidates, too, and take two places.
        words = self.model.lattice(source, self.count + 2, self.smoothing).tokens
        special = self.model.special
        always = to_device([special.pad, special.eos, special.unk], words.device)
        return torch.cat([words.flatten(), always]).unique()
