"""``aggdec train-drafter``: distils a model and trains a drafter, or block heads, for it."""

import argparse
from collections.abc import Sequence

from fairseq_aggdec.cli.parsers import parsed
from fairseq_aggdec.distill.drafter_training import DrafterTraining, run_module
from fairseq_aggdec.records.results import check_counts, check_place, refusals
from fairseq_aggdec.startup.after_fairseq import set_up_log


def check(args: argparse.Namespace) -> None:
    """Refuses what cannot work, before anything is begun."""
    check_counts(args, "layers", "block_size", "max_update", "patience", "average", "max_tokens")
    if args.output is not None:
        check_place("--output", args.output / "settings.json")


@refusals()
def main(words: Sequence[str] | None = None) -> None:
    args = parsed("train-drafter", words)
    check(args)
    set_up_log("INFO")
    training = DrafterTraining(args, run_module)
    made = training.make()
    if args.kind == "drafter":
        flags = f"--path {args.path} --decoding gad --drafter-path {made}"
    else:
        flags = f"--path {made} --decoding blockwise"
    print(f"Decode with\n\n    aggdec-generate {args.data} {flags}")
