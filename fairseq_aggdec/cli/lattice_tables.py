"""Makes the tables of the candidate model: word alignment, counting, length, weights of interpolation.

    aggdec lattice-tables data-bin                          aligns words as fast_align does
    aggdec lattice-tables data-bin --links train.links      with links of your own, in i-j form

DATA is a folder made by fairseq-preprocess. The tables go to DATA/lattice.SOURCE-TARGET, where decoding looks for them,
with the links beside them. Of the training pairs some are held out, the weights are chosen on them, and then they are
counted as well; the validation set is not touched.
"""

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fairseq_aggdec.cli import number, tool_parser
from fairseq_aggdec.lattice.alignment.corpus import BinarisedPairs
from fairseq_aggdec.lattice.alignment.word_alignment import (
    add_options,
    align_data,
    build_aligner,
)
from fairseq_aggdec.lattice.building import COUNTS, HELD_OUT, Built, build
from fairseq_aggdec.lattice.counting import POSITIONS, TOP
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import check_place


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    add = (parser := tool_parser("lattice-tables", __doc__)).add_argument
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
    add_options(parser)
    return parser.parse_args(arguments)


def summary(built: Built, pairs: int, seconds: float) -> list[str]:
    model = built.model
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # GiB
    lines = [
        f"{pairs} sentence pairs, {built.links} links",
        f"{len(model.translation.keys)} (source token, offset) pairs with {len(model.translation.values)} entries",
        f"length = {model.length.slope:.3f} S + {model.length.intercept:.2f}",
        f"{seconds:.1f} s without alignment, peak memory {peak:.2f} GiB",
    ]
    if built.held_out_recall is not None:
        lines.append(
            f"weights {model.weights.translation} (translation) and {model.weights.position} (position): "
            f"recall {100 * built.held_out_recall:.1f} % on {built.held_out} held-out pairs, mean of N = {COUNTS}"
        )
    return lines


def run(args: argparse.Namespace, command: str) -> None:
    pairs = BinarisedPairs(args.data, args.split, args.source_lang, args.target_lang)
    folder = args.output or pairs.folder
    check_place("--output", folder / "header.json")
    links = args.links
    if links is None:
        links = folder / "links.txt"
        align_data(build_aligner(args), pairs, links)
    began = time.perf_counter()
    built = build(pairs, links, args.top, args.max_offset, args.held_out)
    about = {
        "command": command,
        "machine": machine.describe(),
        "split": args.split,
        "languages": pairs.languages,
        "pairs": len(pairs),
        "links": built.links,
        "top": args.top,
        "held_out": {"pairs": built.held_out, "recall": built.held_out_recall},
    }
    built.model.save(folder, *pairs.dictionaries, about)
    print(
        "\n".join([f"tables in {folder}", *summary(built, len(pairs), time.perf_counter() - began)])
    )


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        run(args, machine.command("lattice_tables", given))
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
