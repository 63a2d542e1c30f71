"""One sentence's lattice, scored and searched: candidates, edges and the best path, to be read or looked at.

    python -m scripts.recipes.lattice.dump data-bin --path scorer.pt --gen-subset test --sentence 17 --output lattice-17

takes every flag of fairseq-generate, and decodes with --decoding lattice. Written are OUTPUT.json, OUTPUT.dot
(Graphviz) and OUTPUT.svg; the score of the best path in nats and its text are printed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import utils

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.records import machine
from fairseq_aggdec.records import results as files
from scripts.recipes.lattice import drawing


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("dump")
    group.add_argument(
        "--sentence", type=int, default=0, metavar="I", help="its number in the set, from 0"
    )
    group.add_argument(
        "--incoming",
        type=int,
        default=3,
        metavar="K",
        help="edges into each candidate, the best ones; 0: all (default: %(default)s)",
    )
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json, .dot and .svg")
    return parser


def dump(session: Session) -> drawing.Record:
    """The record of the chosen sentence."""
    args, dictionary = session.args, session.task.target_dictionary
    generator, _ = session.generator("lattice")
    sample = session.dataset.collater([session.dataset[args.sentence]])
    net_input = (utils.move_to_cuda(sample) if session.cuda else sample)["net_input"]
    with torch.inference_mode():
        lattice, first, edges = generator.scored(net_input)
        best = lattice.search(first, edges)
        _, steps = lattice.scores(first, edges)
    made = drawing.record(
        lattice.tokens[0],
        lattice.log_probabilities[0],
        steps[0],
        best.choices[0],
        dictionary.__getitem__,
        args.incoming or None,
    )
    source = session.task.source_dictionary.string(session.dataset[args.sentence]["source"])
    tokens = lattice.read(best.choices)[0]
    text = dictionary.string(tokens[tokens != lattice.pad], session.cfg.common_eval.post_process)
    about: dict[str, Any] = {
        "sentence": args.sentence,
        "source": source,
        "best": text,
        "score": float(best.scores[0]),
        "lengths": [int(lattice.lengths.shortest[0]), int(lattice.lengths.longest[0])],
    }
    return about | made


def check(args: argparse.Namespace, sentences: int) -> None:
    if args.incoming < 0:
        raise ValueError(f"--incoming is {args.incoming}; it must be at least 0")
    if not 0 <= args.sentence < sentences:
        raise ValueError(
            f"--sentence {args.sentence}: {args.gen_subset} has sentences 0 to {sentences - 1}"
        )


def write(output: Path, made: drawing.Record) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    parts = {
        "json": json.dumps(files.finite(made), indent=1, ensure_ascii=False) + "\n",
        "dot": drawing.dot(made),
        "svg": drawing.svg(made),
    }
    for suffix, text in parts.items():
        files.write_text(files.named(output, f".{suffix}"), text)


def main(given: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if given is None else given
    try:
        session = Session(build_parser(), arguments)
        logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
        check(session.args, len(session.dataset))
        made = dump(session)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    command = machine.command("scripts.recipes.lattice.dump", arguments)
    write(session.args.output, {"command": command} | made)
    print(f"{made['score']:.3f}\t{made['best']}")


if __name__ == "__main__":
    main()
