"""Processes that work on a job: the GPU and the log of each.

Workers need no numbers: claims say who does what. So torchrun, srun, an array of jobs, or a shell with ``&`` start them
all alike, and what the environment says is only asked for the GPU.
"""

import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from fairseq_aggdec.data.ranks import IGNORED, local_rank
from fairseq_aggdec.startup.after_fairseq import set_up_log

logger = logging.getLogger(__name__)


def begin(cpu: bool) -> None:
    """Prepares this process to work: its GPU and its log."""
    set_up_log(os.environ.get("LOGLEVEL", "INFO").upper())
    rank = local_rank(os.environ)
    if not cpu and torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    elif rank:
        logger.info(IGNORED, rank)


def forget(generator: Any) -> None:
    """Makes a generator forget what it learned about drafts, so that a shard does not depend on those before it."""
    forget: Callable[[], None] | None = getattr(generator, "forget", None)
    if forget is not None:
        forget()
