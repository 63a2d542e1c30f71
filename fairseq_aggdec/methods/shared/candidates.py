"""The tables of ``--lattice``, and the candidate list of ``--shortlist``, which restricts a method's vocabulary."""

import logging
from pathlib import Path
from typing import Any

from fairseq_aggdec.lattice.candidates import CandidateModel, Shortlist
from fairseq_aggdec.methods.options.settings import Settings

logger = logging.getLogger(__name__)


def open_candidates(
    cfg: Settings, task: Any, wanted_by: str = "--decoding lattice"
) -> CandidateModel:
    """The tables of ``--lattice``, or those beside the data; ``wanted_by`` needs them, for messages."""
    folder = tables_folder(getattr(task, "settings", task.cfg), wanted_by, cfg.lattice)
    return CandidateModel.open(folder, task.source_dictionary, task.target_dictionary)


def tables_folder(
    cfg: Any, wanted_by: str = "--decoding lattice", lattice: str | None = None
) -> Path:
    """Folder in which :func:`open_candidates` finds tables: the folder ``lattice``, or what the task's ``cfg`` says."""
    folder = lattice or getattr(cfg, "lattice", None)
    if not folder:
        folder = Path(cfg.data.split(":")[0], f"lattice.{cfg.source_lang}-{cfg.target_lang}")
        if not folder.exists():
            raise FileNotFoundError(
                f"{wanted_by} needs tables of candidates: make {folder} with aggdec lattice-tables, or name "
                "others with --lattice"
            )
    return Path(folder)


def build_shortlist(cfg: Settings, task: Any, args: Any) -> Shortlist:
    """The shortlist of ``--shortlist``; says once that it is not lossless."""
    count = cfg.shortlist
    if count < 1:
        raise ValueError(f"--shortlist {count}: it must be at least 0")
    if getattr(args, "prefix_size", 0):
        raise ValueError("--prefix-size does not go with --shortlist, which may lack its words")
    model = open_candidates(cfg, task, "--shortlist")
    logger.info("--shortlist %d is not lossless: outputs may differ from --beam 1", count)
    smoothing: Any = cfg.lattice_smoothing
    return Shortlist(model, count, smoothing)
