"""Makes the tables of the candidate model: word alignment, counting, length, weights of interpolation.

    aggdec lattice-tables data-bin                          aligns words as fast_align does
    aggdec lattice-tables data-bin --links train.links      with links of your own, in i-j form

DATA is a folder made by fairseq-preprocess. The tables go to DATA/lattice.SOURCE-TARGET, where decoding looks for them,
with the links beside them. Of the training pairs some are held out, the weights are chosen on them, and then they are
counted as well; the validation set is not touched.
"""

import argparse
from pathlib import Path

from fairseq_aggdec.cli.parsers import number
from fairseq_aggdec.lattice.alignment import DIRECTIONS, UNION
from fairseq_aggdec.lattice.settings import HELD_OUT, POSITIONS, TOP


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", type=Path, help="folder made by fairseq-preprocess")
    add("--split", default="train", help="set to count (default: train)")
    add("-s", "--source-lang", help="otherwise from the file names")
    add("-t", "--target-lang")
    add("--output", type=Path, help="folder of tables")
    add("--links", type=Path, help="word alignments, instead of making them")
    add("--top", type=number(1), default=TOP, help=f"tokens per word and offset (default: {TOP})")
    beyond = "offsets beyond are taken together (default: none are)"
    add("--max-offset", type=number(0, POSITIONS - 1), help=beyond)
    held_out = f"pairs for the choice of weights, at most (default: {HELD_OUT})"
    add("--held-out", type=number(0), default=HELD_OUT, help=held_out)
    group = parser.add_argument_group("word alignment")
    group.add_argument("--symmetrisation", choices=(UNION, *DIRECTIONS), default=UNION)
    group.add_argument("--iterations", type=int, default=5, help="of estimation (default: 5)")
    group.add_argument(
        "--fast-align", metavar="PROGRAM", help="the original fast_align (default: none is needed)"
    )
