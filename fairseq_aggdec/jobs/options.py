"""The option of all commands that work on a job; loads nothing."""

import argparse


def add_shard_size(parser: argparse.ArgumentParser) -> None:
    """Adds ``--shard-size``."""
    size = "sentences (about) that a worker claims at a time, and loses when it is killed (default: 1000)"
    add = parser.add_argument_group("workers").add_argument
    add("--shard-size", type=positive, default=1000, metavar="N", help=size)


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least 1")
    return int(text)
