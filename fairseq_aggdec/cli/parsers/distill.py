"""Sequence-level distillation: replaces the targets of a data folder by what a teacher writes.

    aggdec distill DATA --output OUTPUT --path teacher.pt            decodes; who ends last makes OUTPUT a data folder
    aggdec distill DATA --output OUTPUT --path teacher.pt --merge    makes it anew, with another filter

takes every flag of fairseq-generate and of the plugin. Any number of processes and machines may run the first command
at once, come later and be killed at any moment: each claims the next shard that nobody works on, and the result is the
same to the byte. scripts/distill.sh starts one process per GPU; so do torchrun and srun (docs/bulk.md).
"""

import argparse
from pathlib import Path

from fairseq_aggdec.jobs.options import add_shard_size


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("distillation").add_argument
    made = "data folder to make; progress is kept in it"
    add("--output", type=Path, required=True, help=made)
    add(
        "--subsets",
        nargs="+",
        metavar="SUBSET",
        help="sets to distill (default: --gen-subset, which is train); valid and test keep their references",
    )
    merging = "decode nothing: all shards are there, make the data folder"
    add("--merge", action="store_true", help=merging)
    add(
        "--max-length-ratio",
        type=float,
        metavar="R",
        help="when merging, drop pairs with a side more than R times as long as the other (default: none)",
    )
    cut = "when merging, keep outputs that were cut at the maximum length (default: dropped)"
    add("--keep-cut", action="store_true", help=cut)
    add_shard_size(parser)
