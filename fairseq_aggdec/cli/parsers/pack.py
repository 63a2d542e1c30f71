"""Write a folder with a model's packed weights, which loads in a second and is shared by all processes that load it.

    aggdec pack model.pt data-bin packed --int8
    aggdec serve packed

The folder has the weights as this machine's kernels read them, a checkpoint with all parameters, the dictionaries and
subword models. Whatever takes a checkpoint takes the folder; --int8 or --bf16 need not be said again. Sums of all files
are compared whenever it is opened. On a machine with other kernels its weights are packed anew. MODEL may be a drafter,
whose folder --drafter-path takes, or a model with block heads.
"""

import argparse
from pathlib import Path

from fairseq_aggdec.cli.parsers.files import refuse_missing, refuse_taken


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a checkpoint")
    add("data", type=Path, metavar="DATA", help="folder with the dictionaries")
    add("output", type=Path, metavar="OUT", help="a new folder")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--int8", action="store_true", help="products in 8 bits, as --int8 of aggdec-generate"
    )
    kinds.add_argument(
        "--bf16", action="store_true", help="products in bfloat16, as --bf16 of aggdec-generate"
    )


def check(args: argparse.Namespace) -> None:
    """Refuses files that are not there, and outputs that are."""
    refuse_taken(args.output)
    refuse_missing([args.model])
