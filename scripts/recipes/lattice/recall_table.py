"""How many reference tokens are in the lattice, against the number of candidates N (Deng and Rush 2021, figure 1)?

    python -m scripts.recipes.lattice.recall_table data-bin --nat nat.pt --output docs/results/lattice-recall-multi30k

DATA has tables made by aggdec lattice-tables. Compared at equal N are the paper's counts, interpolated counts, one
vocabulary per sentence shared by all its positions, and what a non-autoregressive Transformer finds likely. Written are
OUTPUT.json, OUTPUT.md and OUTPUT.svg. The lattice has as many positions as the reference has words; ``</s>``, which is
always there, is not counted.
"""

from __future__ import annotations

import argparse
import functools
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# `import fairseq` makes everybody log at DEBUG unless the root has a handler by then.
logging.getLogger().addHandler(logging.NullHandler())

import torch  # noqa: E402
from fairseq.tasks.translation import TranslationConfig, TranslationTask  # noqa: E402
from torch import Tensor  # noqa: E402

from fairseq_aggdec.lattice.alignment.corpus import BinarisedPairs  # noqa: E402
from fairseq_aggdec.lattice.building import (  # noqa: E402
    COUNTS,
    Proposer,
    recalls,
    reference_ranks,
)
from fairseq_aggdec.lattice.candidates import CandidateModel, Special, most_likely  # noqa: E402
from fairseq_aggdec.lattice.tables import read_header  # noqa: E402
from fairseq_aggdec.methods.shared.loading import load_drafter  # noqa: E402
from fairseq_aggdec.models.nar_drafter import NarDrafterModel  # noqa: E402
from fairseq_aggdec.records import machine  # noqa: E402
from fairseq_aggdec.records import results as files  # noqa: E402
from fairseq_aggdec.stored.loading import CheckpointError  # noqa: E402
from scripts.recipes import paper_plots, tables  # noqa: E402

Curves = dict[str, dict[int, float]]


def shared_vocabulary(model: CandidateModel) -> Proposer:
    """Proposes the same words at every position (L'Hostis et al. 2016): those with the largest sum of P(y | x_s)."""

    def propose(
        words: Tensor, lengths: Tensor, positions: int, count: int
    ) -> tuple[Tensor, Tensor]:
        tokens, chances, _ = model.lexicon.look_up(words)  # (B, S, K)
        tokens, chances = tokens.flatten(1).unsqueeze(1), chances.flatten(1).unsqueeze(1)
        best, sums = most_likely(tokens, chances, count, model.special.types)  # (B, 1, N)
        return best.expand(-1, positions, -1), sums.expand(-1, positions, -1)

    return propose


def non_autoregressive(model: NarDrafterModel, special: Special) -> Proposer:
    """Proposes what a non-autoregressive Transformer finds likely in each slot of its first block.

    Args:
        model: in evaluation mode; what is longer than its block has no candidates.
        special: symbols of its dictionaries.
    """
    decoder: Any = model.decoder

    @torch.inference_mode()
    def propose(
        words: Tensor, lengths: Tensor, positions: int, count: int
    ) -> tuple[Tensor, Tensor]:
        source = torch.nn.functional.pad(words, (0, 1), value=special.pad)
        source = source.scatter(1, lengths.unsqueeze(1), special.eos)  # (B, S + 1)
        slots = words.new_full((len(words), decoder.block_size), decoder.mask_index)
        features = model(source, lengths + 1, slots)[:, :positions]  # (B, T or k, C)
        chances = decoder.output_layer(features).float().softmax(-1)
        best = chances.topk(min(count, chances.size(-1)))
        missing = (0, 0, 0, positions - features.size(1))
        tokens, found = (
            torch.nn.functional.pad(part, missing) for part in (best.indices, best.values)
        )
        return tokens, found

    return propose


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder made by fairseq-preprocess")
    parser.add_argument("--split", default="valid", help="set to measure (default: valid)")
    parser.add_argument("-s", "--source-lang", help="otherwise from the file names")
    parser.add_argument("-t", "--target-lang")
    parser.add_argument("--tables", type=Path, help="folder of tables (default: that of DATA)")
    parser.add_argument(
        "--nat",
        metavar="FILE",
        help="checkpoint of --arch nar_drafter, trained with --prefixes none",
    )
    parser.add_argument("--candidates", type=int, nargs="+", default=list(COUNTS), metavar="N")
    parser.add_argument("--limit", type=int, help="measure only the first so many pairs")
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    parser.add_argument("--output", type=Path, required=True, help="name without a suffix")
    args = parser.parse_args(arguments)
    if min(args.candidates) < 1:
        parser.error("--candidates are at least 1")
    if args.limit is not None and args.limit < 1:
        parser.error(f"--limit is {args.limit}; it must be at least 1")
    return args


def measure(
    args: argparse.Namespace, pairs: BinarisedPairs, folder: Path
) -> tuple[Curves, dict[str, Any]]:
    """Recall of every lattice at every N, and what it was measured on."""
    device = "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"
    model = CandidateModel.open(folder, *pairs.dictionaries).to(device)
    source, target = pairs.read(0, min(len(pairs), args.limit or len(pairs)))
    if not len(target.tokens):
        raise ValueError(f"{args.data}: {args.split} has no reference token")
    lattices = {
        "counts (none)": functools.partial(model.words, smoothing="none"),
        "interpolated": functools.partial(model.words, smoothing="interpolated"),
        "shared vocabulary": shared_vocabulary(model),
    }
    if args.nat:
        languages = dict(zip(("source_lang", "target_lang"), pairs.languages, strict=True))
        config = TranslationConfig(data=str(args.data), **languages)
        nat = load_drafter(args.nat, TranslationTask(config, *pairs.dictionaries), "--nat")
        lattices["non-autoregressive"] = non_autoregressive(nat.to(device), model.special)
    curves: Curves = {}
    seconds = {}
    for name, propose in lattices.items():
        began = time.perf_counter()
        ranks = reference_ranks(model, source, target, propose, max(args.candidates), device)
        seconds[name] = round(time.perf_counter() - began, 2)
        curves[name] = recalls(ranks, sorted(args.candidates))
    about = {
        "split": args.split,
        "pairs": len(target.lengths),
        "tokens": len(target.tokens),
        "device": device,
        "seconds": seconds,
        "weights": {"translation": model.weights.translation, "position": model.weights.position},
    }
    return curves, about


def table(curves: Curves) -> str:
    counts = next(iter(curves.values()))
    rows = [
        [name, *(f"{100 * value:.1f}" for value in curve.values())]
        for name, curve in curves.items()
    ]
    return tables.table(["lattice", *(f"N = {count}" for count in counts)], rows)


def run(args: argparse.Namespace, command: str) -> None:
    files.check_place("--output", args.output, ".json", ".md", ".svg")
    pairs = BinarisedPairs(args.data, args.split, args.source_lang, args.target_lang)
    folder = args.tables or pairs.folder
    header = read_header(folder)
    curves, about = measure(args, pairs, folder)
    names = ("command", "pairs", "links", "top", "max_offset", "held_out")
    made, weights = {name: header[name] for name in names}, about["weights"]
    shown = table(curves)
    text = (
        f"{shown}\n\n{about['pairs']} sentence pairs of `{about['split']}`, {about['tokens']} words of references, "
        f"lengths of the references. Weights of interpolation, chosen on {made['held_out']['pairs']} training pairs "
        f"that were held out: {weights['translation']} (translation), {weights['position']} (position).\n\n"
        f"Tables: {made['pairs']} pairs, {made['links']} links, top {made['top']}; `{made['command']}`"
    )
    extra = {**about, "tables": made, "recall": curves}
    title = "Reference tokens in the lattice, %"
    paper_plots.draw(args.output, files.write_table(args.output, title, command, text, {}, extra))
    print(shown)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        run(args, machine.command("scripts.recipes.lattice.recall_table", given))
    except (CheckpointError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
