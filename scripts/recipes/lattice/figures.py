"""Where a lattice's time goes and what its search changes (Deng and Rush 2021, figures 4 and 2), from a trained model.

    python -m scripts.recipes.lattice.figures data-bin --path scorer.pt --gen-subset test \\
        --variant lattice-least-probability=0 \\
        --output docs/results/lattice-figures-multi30k

takes every flag of fairseq-generate, and decodes with --decoding lattice, one sentence at a time. Written are
OUTPUT.json, OUTPUT.md, OUTPUT-time.svg and OUTPUT-ranks.svg.

Figure 4: seconds of encoder, candidates, scorer and search against target length. Figure 2: the rank that the words of
the best path had in their position before the search; </s> is not counted. The paper does not say how words are
ranked "using edge scores only". Here a word is ranked by the best edge that leads to it, whatever word that edge
comes from; beside it are the rank of the path's edge among all edges to its position, and the word's rank in the
candidate model.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# "Asynchronous execution disabled": every part's time is its own on a GPU too. Read before the GPU is first used.
os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")

import torch
from torch import Tensor
from tqdm import tqdm

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.lattice.lattice import Lattice
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.records import machine
from fairseq_aggdec.records import results as files
from scripts.recipes import paper_plots, tables

TITLE = "Sequence-to-lattice: time by part, and ranks before the search"
# Name in the figure -> what the counters call it.
PARTS = {"encoder": "encoder", "candidates": "draft", "scorer": "verify", "search": "other"}
BEST_EDGE, EDGE, CANDIDATE = "best edge to the word", "edge", "candidate model"
SHOWN = 10  # ranks in the table


@dataclass
class Span:
    """Sentences with targets of like length.

    Attributes:
        first, last: target lengths, ``</s>`` counted.
        sentences: how many.
        milliseconds: part -> mean per sentence.
    """

    first: int
    last: int
    sentences: int
    milliseconds: dict[str, float]


# -- figure 4


def timed(session: Session, args: argparse.Namespace) -> list[tuple[int, dict[str, float]]]:
    """Target length and seconds by part of every sentence, medians over repeats; one more round before, untimed."""
    generator, counters = session.generator("lattice")
    samples = session.batches(1, args.limit)
    rounds: list[list[dict[str, float]]] = []
    lengths: list[int] = []
    for _ in tqdm(range(args.repeats + 1), desc="timing", unit="round", leave=False, disable=None):
        lengths, seconds = [], []
        for sample in samples:
            before = dict(counters.seconds)
            (hypothesis,) = session.decode(generator, sample)
            lengths.append(len(hypothesis["tokens"]))
            seconds.append(
                {name: counters.seconds[part] - before[part] for name, part in PARTS.items()}
            )
        rounds.append(seconds)
    medians = [
        {name: statistics.median(one[name] for one in repeats) for name in PARTS}
        for repeats in zip(*rounds[1:], strict=True)
    ]
    return list(zip(lengths, medians, strict=True))


def spans(times: Sequence[tuple[int, Mapping[str, float]]], width: int) -> list[Span]:
    """The sentences by target length, ``width`` lengths together; those that have none are left out."""
    grouped: dict[int, list[Mapping[str, float]]] = {}
    for length, seconds in times:
        grouped.setdefault((length - 1) // width, []).append(seconds)
    return [
        Span(
            number * width + 1,
            (number + 1) * width,
            len(members),
            {name: 1e3 * statistics.fmean(member[name] for member in members) for name in PARTS},
        )
        for number, members in sorted(grouped.items())
    ]


# -- figure 2


def path_ranks(
    lattice: Lattice, first: Tensor, edges: Tensor, choices: Tensor
) -> dict[str, list[int]]:
    """Ranks of the words on a path among the words of their position, 1 for the best; equal ones share the best rank.

    Args:
        lattice: of B rows.
        first, edges: the scorer's, (B, N) and (B, T - 1, N, N), nats.
        choices: (B, T), the path.

    Returns:
        By each of the three ways to rank, one number per word.
    """
    unary, steps = lattice.scores(first, edges)
    tokens = lattice.tokens
    words = lattice.nodes & (tokens != lattice.eos) & (tokens != lattice.pad)  # (B, T, N)
    # What leads to each word: at position 0 one edge, the word's own score.
    leading = steps.masked_fill(~words[:, :-1].unsqueeze(3), -torch.inf)  # (B, T - 1, N, N)
    start = unary[:, :1].unsqueeze(2).expand(-1, 1, tokens.size(2), -1)
    start = start.masked_fill(
        torch.arange(tokens.size(2), device=tokens.device)[:, None] > 0, -torch.inf
    )
    leading = torch.cat([start, leading], 1)  # (B, T, N, N)
    leading = leading.masked_fill(~words.unsqueeze(2), -torch.inf)
    here = choices.unsqueeze(2)  # (B, T, 1)
    before = torch.cat([torch.zeros_like(choices[:, :1]), choices[:, :-1]], 1)  # (B, T)
    taken = leading.flatten(2).gather(2, (before * tokens.size(2) + choices).unsqueeze(2))
    best = leading.amax(2)  # (B, T, N)
    own = lattice.log_probabilities.masked_fill(~words, -torch.inf)
    above = {
        BEST_EDGE: (best > best.gather(2, here)).sum(2),
        EDGE: (leading.flatten(2) > taken).sum(2),
        CANDIDATE: (own > own.gather(2, here)).sum(2),
    }
    on_path = words.gather(2, here).squeeze(2)  # (B, T)
    return {name: (count[on_path] + 1).tolist() for name, count in above.items()}


def ranks(session: Session, args: argparse.Namespace) -> dict[str, Counter[int]]:
    """How often a word of a best path had each rank."""
    generator, _ = session.generator("lattice")
    found: dict[str, Counter[int]] = {name: Counter() for name in (BEST_EDGE, EDGE, CANDIDATE)}
    for sample in tqdm(session.batches(1, args.limit), desc="ranks", leave=False, disable=None):
        with torch.inference_mode():
            lattice, first, edges = generator.scored(sample["net_input"])
            choices = lattice.search(first, edges).choices
            for name, numbers in path_ranks(lattice, first, edges, choices).items():
                found[name].update(numbers)
    return found


def shares(found: Mapping[str, Counter[int]]) -> dict[str, dict[int, float]]:
    """Rank -> share of the words that had it."""
    return {
        name: {rank: count / counts.total() for rank, count in sorted(counts.items())}
        for name, counts in found.items()
    }


# -- tables and command line


def time_table(found: Sequence[Span]) -> str:
    rows = []
    for span in found:
        numbers = list(span.milliseconds.values())
        rows.append([f"{span.first} to {span.last}", span.sentences, *numbers, sum(numbers)])
    return tables.table(["target length", "sentences", *PARTS, "sum"], rows)


def rank_table(found: Mapping[str, Mapping[int, float]]) -> str:
    counted = {
        str(rank): [one.get(rank, 0.0) for one in found.values()] for rank in range(1, SHOWN + 1)
    }
    counted[f"above {SHOWN}"] = [
        sum(share for rank, share in one.items() if rank > SHOWN) for one in found.values()
    ]
    rows = [[name, *(f"{100 * share:.1f}" for share in shown)] for name, shown in counted.items()]
    return tables.table(["rank before the search", *found], rows)


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("figures")
    group.add_argument("--limit", type=int, help="sentences (default: all), of all lengths")
    group.add_argument("--repeats", type=int, default=3, help="times each sentence is timed")
    group.add_argument(
        "--span", type=int, default=5, help="target lengths that are taken together (default: 5)"
    )
    group.add_argument("--output", type=Path, required=True, help="name without a suffix")
    return parser


def check(args: argparse.Namespace) -> None:
    for name in ("limit", "repeats", "span"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} is {value}; it must be at least 1")


def main(arguments: Sequence[str]) -> None:
    try:
        args, _ = build_parser().parse_known_args(arguments)
        check(args)
        session = Session(build_parser(), arguments)
        logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
        times = spans(timed(session, session.args), session.args.span)
        found = ranks(session, session.args)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    settings = read_settings(session.task.cfg)
    words = found[BEST_EDGE].total()
    about = {
        "candidates": settings.lattice_candidates,
        "least_probability": settings.lattice_least_probability,
        "length_window": settings.lattice_length_window,
        "sentences": sum(span.sentences for span in times),
        "repeats": session.args.repeats,
        "precision": session.precision,
        "spans": [asdict(span) for span in times],
        "words": words,
        "ranks": {name: dict(sorted(counts.items())) for name, counts in found.items()},
    }
    text = (
        f"Milliseconds per sentence, one at a time:\n\n{time_table(times)}\n\nWords of the best paths, %, by their "
        f"rank before the search ({words} words):\n\n{rank_table(shares(found))}"
    )
    command = machine.command("scripts.recipes.lattice.figures", arguments)
    record = files.write_table(session.args.output, TITLE, command, text, {}, about)
    paper_plots.draw(session.args.output, record)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
