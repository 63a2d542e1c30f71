"""Tells how fast and how good are decoders? Ours, stock fairseq and other engines on one model, equality beside each
speed.

    aggdec bench DATA --path model.pt --gen-subset test --limit 300 --systems stock ours --output results/speed
    aggdec bench DATA --path model.pt --gen-subset test --cpu --systems ours,stock,ctranslate2,huggingface
    aggdec bench DATA --path model.pt --gen-subset test --batch-sizes 1 \\
        --system "beam 5=--decoding stock --beam 5" --system "gad=--decoding gad --drafter-path drafter.pt"

takes every flag of fairseq-generate, for all systems. --systems names groups (stock, ours, ctranslate2, huggingface,
all) or systems: beam5, beam1 (stock), search5 (ours with beam 5), greedy, iad, gad, blockwise, ct2-int8, hf, ...
-int8 or -bf16 behind a name of ours is its precision. "ours" has gad with --drafter-path and blockwise with --heads.
--system adds one by its options; it drafts in every iteration, unless they say how much. Only decoding is timed, all
systems in turn on the same batches. Other engines get processes of their own, bound to the same cores, and so do all
systems of a run with one of them, or with --apart.

    --by-length 4         below each table of batch 1: speed in 4 bins of about as many sentences, by tokens of the
                          source without </s>; larger batches mix lengths and have no such table
    --hypotheses FOLDER   what each system wrote, for other scorers: a file NAME.txt in the order of the set
    --memory              instead: peak memory of each system, in a process of its own
"""

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("bench").add_argument
    add("--systems", nargs="+", metavar="NAME", help="groups or systems (default: stock ours)")
    add("--system", action="append", default=[], metavar="NAME=OPTIONS", dest="by_options")
    add("--baselines", nargs="*", metavar="NAME", help="over which ratios are given")
    add("--batch-sizes", type=int, nargs="+", default=[1, 8, 32], metavar="B")
    add("--threads", type=int, nargs="+", default=[1], metavar="T")
    add("--limit", type=int, help="sentences (default: all), spread over all lengths")
    add("--repeats", type=int, default=1, help="times each batch is decoded; medians")
    add("--apart", action="store_true", help="each system in a process of its own")
    add("--heads", metavar="FILE", help="checkpoint with block heads on the same model")
    add("--gec", type=Path, nargs="+", metavar="FILE", help="F0.5: source, corrections, ...")
    add("--distribution", metavar="NAME", help="system whose speed-up of each sentence is written")
    add("--by-length", type=int, metavar="N")
    add("--hypotheses", type=Path, metavar="FOLDER")
    add("--title", help="heading of the result")
    add("--output", type=Path, help="result files: OUTPUT.json, OUTPUT.md")
    add("--memory", action="store_true")
