"""Average fairseq checkpoints into one that only decodes: no optimiser state, optionally half precision.

    aggdec average-checkpoints --output model.pt checkpoint_1.pt checkpoint_2.pt ...

The result loads with plain fairseq-generate (and as --finetune-from-model); training cannot resume from it.
"""

import argparse
from pathlib import Path

from fairseq_aggdec.cli.parsers.files import refuse_missing


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--half", action="store_true", help="store parameters in fp16")


def check(args: argparse.Namespace) -> None:
    """Refuses files that are not there, and outputs that are."""
    refuse_missing(args.checkpoints)
