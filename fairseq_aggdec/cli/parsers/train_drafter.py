"""A drafter for a trained model, from the model and the data it was trained on.

    aggdec train-drafter DATA --path model.pt                    a drafter with the model's encoder (--decoding gad)
    aggdec train-drafter DATA --path model.pt --kind heads       block heads on the model (--decoding blockwise)

DATA is a folder of fairseq-preprocess, --path a checkpoint of an ordinary fairseq Transformer. What the model writes
for the training set is distilled; then a drafter of one layer learns to write that, or block heads with a layer of
their own. Training ends early when the accepted tokens no longer grow
(mean_accepted in the log). Killed at any moment, the same command goes on. A step with other settings is made anew;
what was there is moved aside.
"""

import argparse
import shlex
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", type=Path, metavar="DATA", help="folder of fairseq-preprocess")
    add("--path", type=Path, required=True, metavar="MODEL", help="the model to draft for")
    add("--output", type=Path, metavar="FOLDER", help="default: DATA-drafter")
    add("--kind", choices=("drafter", "heads"), default="drafter", help="default: drafter")
    add("--layers", type=int, default=1, metavar="N", help="decoder layers of drafter or heads (1)")
    add("--block-size", type=int, default=10, metavar="K", help="tokens drafted at once (10)")
    add("--max-update", type=int, default=5000, metavar="N", help="most updates (5000)")
    patience = "stop after N validations without gain (6)"
    add("--patience", type=int, default=6, metavar="N", help=patience)
    add("--average", type=int, default=1, metavar="N", help="mean of N checkpoints (1: the best)")
    add("--lr", type=float, default=0.001, metavar="LR", help="learning rate (0.001)")
    add("--max-tokens", type=int, metavar="N", help="largest batch (4000; heads 2000)")
    add("--seed", type=int, default=1, metavar="N")
    add("--cpu", action="store_true", help="train on the CPU even if there is a GPU")
    add("--precision", choices=("auto", "fp32", "fp16", "bf16", "amp"), default="auto")
    lengths = ["--max-len-a", "1.2", "--max-len-b", "10"]
    distilling = f"options for aggdec distill ({' '.join(lengths)})"
    add("--distill-flags", type=shlex.split, default=lengths, metavar="FLAGS", help=distilling)
    training = "options for fairseq-train"
    add("--train-flags", type=shlex.split, default=[], metavar="FLAGS", help=training)


def check(args: argparse.Namespace) -> None:
    """Refuses files that are not there, and outputs that are."""
    if not args.data.is_dir():
        raise SystemExit(f"error: the folder {args.data} does not exist")
    if not args.path.is_file():
        raise SystemExit(f"error: --path: the checkpoint {args.path} does not exist")
