"""``--shortlist``: the verifier chooses among the words that the candidate tables propose for a source."""

import logging
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.decoding.options import refusal
from fairseq_aggdec.decoding.transfer import to_device
from fairseq_aggdec.lattice.candidates import CandidateModel, Smoothing
from fairseq_aggdec.lattice.decoding import open_candidates

logger = logging.getLogger(__name__)

METHODS = ("greedy", "iad", "gad", "blockwise")


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


def build_shortlist(cfg: Any, task: Any, args: Any) -> Shortlist | None:
    """The shortlist that the options ask for; says once that it is not lossless.

    Args:
        cfg: decoding options.
        task: has dictionaries.
        args: fairseq's generation options (any of them may be missing).

    Raises:
        ValueError, FileNotFoundError: an option or tables that do not fit, in one sentence.
    """
    count, decoding = int(cfg.shortlist), str(cfg.decoding)
    if count < 0:
        raise ValueError(f"--shortlist {count}: it must be at least 0")
    if count == 0:
        return None
    if decoding not in METHODS:
        raise ValueError(refusal("--shortlist", decoding, f"it is for {', '.join(METHODS)}"))
    if getattr(args, "prefix_size", 0):
        raise ValueError("--prefix-size does not go with --shortlist, which may lack its words")
    model = open_candidates(cfg, task, "--shortlist")
    logger.info("--shortlist %d is not lossless: outputs may differ from --beam 1", count)
    return Shortlist(model, count, cfg.lattice_smoothing)
