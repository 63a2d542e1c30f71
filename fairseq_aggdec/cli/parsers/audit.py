"""Equality audit: is a fast method exactly what stock fairseq gives?

    aggdec audit DATA --path model.pt --gen-subset test --decoding iad --batch-sizes 1 8 32

takes every flag of fairseq-generate, decodes the set with stock fairseq and with the method at each batch size, and
reports how many sentences are equal and how the others differ. Stock decodes with --beam 1, with --decoding beam with
the beams of --beams, and every hypothesis of the n-best list counts. Exit status 1 on any BUG, a missing sentence
included.
--reference names another checkpoint for stock fairseq: that on which block heads were trained, for example.
With --strict N the method is compared with our own greedy decoding under the same option instead, in the same batches:
tokens and scores must be the same bit for bit, in fp16 and bf16 too, and any difference is a BUG.
With --int8 the reference is our own search in 8 bits with nothing drafted, and any difference, of a score too, is a
BUG: those sums are exact, so there are no ties. (--stock-batch-size 1 has it take one sentence at a time; --max-len-a
must then be 0, for it counts the longest source of a batch.)
With --output every comparison is written when it is done, and the same command goes on behind them after a kill.
"""

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("audit").add_argument
    add("--batch-sizes", type=int, nargs="+", default=[32], metavar="B")
    usage = "stock decodes once, in such batches (default: in those of the method)"
    add("--stock-batch-size", type=int, metavar="B", help=usage)
    whose = "checkpoint of the reference (default: that of --path)"
    add("--reference", metavar="FILE", help=whose)
    beams = "of --decoding beam (default: that of --beam)"
    add("--beams", type=int, nargs="+", metavar="B", help=beams)
    add("--limit", type=int, help="sentences to decode (default: all)")
    margin = "nats below which a difference is a tie (fp32: 1e-4)"
    add("--tie-margin", type=float, help=margin)
    add("--output", type=Path, help="result files to write: OUTPUT.json and OUTPUT.md")
