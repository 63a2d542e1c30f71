"""``--shortlist``: builds the candidate list that restricts a method's vocabulary."""

import logging
from typing import Any

from fairseq_aggdec.lattice.shortlist import Shortlist
from fairseq_aggdec.methods.lattice import open_candidates
from fairseq_aggdec.search.errors import refusal

logger = logging.getLogger(__name__)

METHODS = ("greedy", "iad", "gad", "blockwise")


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
