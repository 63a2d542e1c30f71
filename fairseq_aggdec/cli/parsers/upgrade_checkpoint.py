"""Write a copy of a checkpoint that holds data only: tensors, numbers, texts, lists and dictionaries.

    aggdec upgrade-checkpoint checkpoint.pt upgraded.pt

For checkpoints that are refused although they are yours: old ones hold objects (meters, optimisers, configurations) or
lack entries that fairseq looks for. Objects of classes that are not data are left out, and each is named; nothing of
the file is run. Weights and options stay. The copy is for decoding and as a start of training; a run cannot resume from
it where its optimiser was left out.
"""

import argparse
from pathlib import Path

from fairseq_aggdec.cli.parsers.files import refuse_taken


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="FILE", help="the checkpoint; it stays as it is")
    add("output", type=Path, metavar="OUT", help="the copy, a new file")


def check(args: argparse.Namespace) -> None:
    """Refuses files that are not there, and outputs that are."""
    refuse_taken(args.output, "file")
    if not args.checkpoint.is_file():
        raise FileNotFoundError(str(args.checkpoint))
