"""``aggdec lattice-tables``: aligns words and makes the tables of the candidate model."""

import argparse
import resource
import sys
import time
from collections.abc import Sequence

from fairseq_aggdec.cli.parsers import parser_of
from fairseq_aggdec.lattice.alignment.corpus import BinarisedPairs
from fairseq_aggdec.lattice.alignment.word_alignment import (
    align_data,
    build_aligner,
)
from fairseq_aggdec.lattice.building import COUNTS, Built, build
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import check_place


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
    args = parser_of("lattice-tables").parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        run(args, machine.command("lattice_tables", words))
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
