"""Writes the word alignment of binarised data or of a tokenised text, which aggdec lattice-tables reads with --links.

    python -m scripts.recipes.lattice.align --data data-bin --output train.links
    python -m scripts.recipes.lattice.align --text train.de train.en --output train.links \\
        --fast-align work/fast_align/fast_align
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from fairseq_aggdec.lattice.alignment.corpus import BinarisedPairs
from fairseq_aggdec.lattice.alignment.word_alignment import (
    Pair,
    add_options,
    align_data,
    build_aligner,
)


def read_text(source: Path, target: Path) -> Iterator[Pair]:
    """Sentence pairs of two files of tokenised text.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: one has more lines.
    """
    with source.open(encoding="utf-8") as left, target.open(encoding="utf-8") as right:
        for one, two in zip_longest(left, right):
            if one is None or two is None:
                raise ValueError(f"{source} and {target} have different numbers of lines")
            yield one.split(), two.split()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pairs = parser.add_mutually_exclusive_group(required=True)
    pairs.add_argument("--data", type=Path, help="folder made by fairseq-preprocess")
    pairs.add_argument(
        "--text", type=Path, nargs=2, metavar=("SOURCE", "TARGET"), help="tokenised text"
    )
    parser.add_argument("--split", default="train", help="set of --data (default: train)")
    parser.add_argument("-s", "--source-lang", help="of --data; otherwise from its file names")
    parser.add_argument("-t", "--target-lang")
    parser.add_argument("--output", type=Path, required=True, help="file of links")
    add_options(parser)
    args = parser.parse_args(arguments)
    try:
        aligner = build_aligner(args)
        if args.text:
            links = aligner.align(read_text(*args.text), args.output)
        else:
            data = BinarisedPairs(args.data, args.split, args.source_lang, args.target_lang)
            links = align_data(aligner, data, args.output)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(f"{args.output}: {links} links")


if __name__ == "__main__":
    main()
