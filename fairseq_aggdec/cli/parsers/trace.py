"""Tells how single sentences were decoded, iteration by iteration.

    aggdec trace DATA --path verifier.pt --decoding gad --drafter-path drafter.pt --cpu
    aggdec trace DATA --path model.pt --decoding blockwise --sentences 4 17 --acceptance top-k:2

takes every flag of fairseq-generate. With --decoding gad each iteration is a line D of the drafter and a line V of the
verifier (Ge et al., Table 17); with iad it is one line; with blockwise it is a call of the decoder, token by token:
tokens gained, then proposals that were thrown away (Stern et al., section 7.4). Without --sentences some of middling
length are shown, from the fewest iterations to many.
"""

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("trace").add_argument
    numbers = "their numbers in the set, from 0"
    add("--sentences", type=int, nargs="+", metavar="N", help=numbers)
    most = "sentences to decode and choose from, of all lengths (default: 100)"
    add("--limit", type=int, default=100, help=most)
    add("--count", type=int, default=3, help="sentences to choose (default: 3)")
    add("--report", type=Path, metavar="FILE", help="the same as a page, in HTML")
