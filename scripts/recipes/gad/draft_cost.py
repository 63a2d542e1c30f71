"""Table of what a draft costs by its parts, beside a step of greedy search and what its multiply-adds need.

    python -m scripts.recipes.gad.draft_cost DATA --path model.pt --drafter-path drafter.pt --gen-subset test --cpu \\
        --limit 100 --output docs/results/draft-cost

``gad`` decodes the sentences one at a time, so that calls have their measured price (the log's ``--call-price``): that
of a whole draft and of a step of greedy search, behind other calls, whose weights have pushed the draft's out of the
cache. Growing a tree, the products of the vocabulary and reading a source are timed here, the least of --repeats, on
the last sentence, with weights in the cache. What is left of the whole is the slots' way through the layers, and
waiting for weights, in the window behind the draft too. Takes every flag of fairseq-generate.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.drafters.proposer import Proposer
from fairseq_aggdec.kernels.library import SlotsStruct
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.windows.transfer import int64_array
from scripts.recipes import flags, tables
from scripts.recipes.product_rates import peak

TITLE = "What a draft costs by its parts"
PRECISIONS = {"fp32": "drafts", "8 bits": "all"}  # -> --int8
SLOTS = (1, 2, 4, 7)
PARTS = {
    "whole": "whole draft",
    "rest": "the rest: slots through the layers, waiting for weights",
    "vocabulary": "vocabulary",
    "tree": "chain, candidates and tree",
}


@dataclass(frozen=True)
class Cost:
    """Microseconds of a draft of so many slots by part, and 1e6 multiply-adds of the parts that are products."""

    slots: int
    whole: float
    rest: float
    vocabulary: float
    tree: float
    of_layers: float
    of_vocabulary: float


def least(repeats: int, call: Callable[[], object]) -> float:
    """Microseconds of the fastest of several calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best


def growing(proposer: Proposer, features: Tensor, eos: int) -> Callable[[], object]:
    """The library's call that grows a tree of as many tokens as features (k, C) have slots."""
    slots = len(features)
    given, found = int64_array([4, slots]), int64_array([0] * (2 * slots + 1))
    as_given = torch.tensor([[1.0] * slots, [0.0] * slots])
    chances = (ctypes.c_double * slots)()
    at, out = given.buffer_info()[0], found.buffer_info()[0]
    call = SlotsStruct(1, slots, 1, features.data_ptr(), at, at + 8)
    call.slopes, call.shifts = as_given[0].data_ptr(), as_given[1].data_ptr()
    call.nodes, call.eos, call.branches, call.trust = slots, eos, 1, 1.0
    call.tokens, call.parents, call.counts = out, out + 8 * slots, out + 16 * slots
    call.chances = ctypes.addressof(chances)
    kept = call, given, found, as_given, chances, features  # what the structure points to
    grow, address = proposer.library.aggdec_grow, ctypes.addressof(call)
    return lambda: (grow(proposer.address, address), kept)


def likely(proposer: Proposer, features: Tensor) -> tuple[Callable[[], object], float]:
    """The library's calls that find likely tokens of features (k, C); 1e6 multiply-adds of them."""
    products = [proposer.kept[0]] if proposer.narrow is None else list(proposer.narrow)
    calls, total, x = [], 0, features
    for product in products:
        y = x.new_empty(len(x), product.outputs)
        calls.append((product, x, y))
        total += len(x) * product.inputs * product.outputs
        x = y

    def call() -> None:
        for product, x, y in calls:
            ends = (x.data_ptr(), x.numel(), y.data_ptr(), y.numel())
            product.library.aggdec_multiply(product.address, *ends, 1)

    return call, total / 1e6


def learn(drafter: Any) -> None:
    """Has the drafter learn the directions of its vocabulary, which it does with its first drafts, if it rests."""
    while drafter.proposer.narrow is None and drafter.proposer.learning > 0:
        drafter.proposer.learn_rows(drafter.slots.block_features([[]], SLOTS[1])[0])


def multiply_adds(decoder: Any, places: int) -> float:
    """1e6 multiply-adds of a window through the layers, without attention over the source's and other keys."""
    total = 0
    for layer in decoder.layers:
        width, inner = layer.embed_dim, layer.fc1.out_features
        total += places * width * (6 * width + 2 * inner)
    return total / 1e6


def costs(drafter: Any, repeats: int, eos: int) -> list[Cost]:
    """Costs by slots, of the batch that the drafter has read last."""
    price, proposer, found = drafter.draft_length.price, drafter.proposer, []
    for slots in (slots for slots in SLOTS if slots <= drafter.draft_length.size):
        features = drafter.slots.block_features([[]], slots)[0].contiguous()
        whole = 1e3 * (price.draft + slots * price.slot)
        grown = least(repeats, growing(proposer, features, eos))
        call, of_vocabulary = likely(proposer, features)
        read = least(repeats, call)
        parts = (whole, whole - grown, read, grown - read)
        of_layers = multiply_adds(drafter.model.decoder, slots)
        found.append(Cost(slots, *parts, of_layers, of_vocabulary))
    return found


def of_precision(name: str, arguments: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """What is measured of a precision."""
    words = [*arguments, "--decoding", "gad", "--draft-tree", "auto", "--int8", PRECISIONS[name]]
    session = Session(generation_parser(None), words)
    generator, counters = session.generator("gad")
    drafter = generator.drafter
    for sample in session.batches(1, args.limit):
        session.decode(generator, sample)

    def read_source() -> None:
        drafter.sample = sample
        drafter.begin()

    read_source()
    learn(drafter)
    price = drafter.draft_length.price
    found = costs(drafter, args.repeats, session.task.target_dictionary.eos())
    return {
        "price": str(price),
        "step": 1e3 * price.call(1),
        "encoder": 1e6 * counters.seconds["encoder"] / counters.sentences,
        "source": least(args.repeats, read_source),
        "costs": [asdict(cost) for cost in found],
    }


def markdown(found: dict[str, Any], limit: float) -> str:
    """A table for each precision, µs."""
    shown = [
        f"Multiply-adds in registers, fp32: {limit:.0f}e9 operations a second. Times are in µs."
    ]
    for name, of in found.items():
        rows = [
            (text, *(f"{cost[part]:.0f}" for cost in of["costs"])) for part, text in PARTS.items()
        ]
        share = [f"{cost['whole'] / of['step']:.2f}" for cost in of["costs"]]
        rows.append(("whole draft, in greedy steps", *share))
        for part in ("layers", "vocabulary"):
            needed = [2e3 * cost[f"of_{part}"] / limit for cost in of["costs"]]
            rows.append((f"multiply-adds of {part} at that rate", *(f"{us:.0f}" for us in needed)))
        heads = [name, *(machine.count(cost["slots"], "slots") for cost in of["costs"])]
        shown.append(
            f"**{name}**: a step of greedy search {of['step']:.0f}, the encoder {of['encoder']:.0f} a sentence, the "
            f"drafter's part of the source {of['source']:.0f}; `--call-price {of['price']}`\n\n"
            + tables.table(heads, rows)
        )
    return "\n\n".join(shown)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's own options."""
    group = parser.add_argument_group("draft cost")
    group.add_argument("--limit", type=int, help="sentences (default: all), of all lengths")
    group.add_argument("--repeats", type=int, default=200, help="times each call is made; 200")
    group.add_argument("--output", type=Path, help="result files: OUTPUT.json, OUTPUT.md")


def main(given: Sequence[str]) -> None:
    args, arguments = flags.split(__doc__, add_options, given)
    results.check_counts(args, "limit", "repeats")
    results.check_place("--output", args.output, ".json", ".md")
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    with torch.inference_mode():
        found = {name: of_precision(name, arguments, args) for name in PRECISIONS}
    limit = peak()
    text = markdown(found, limit)
    print(text)
    if args.output:
        command = machine.command("scripts.recipes.gad.draft_cost", given)
        results.write_table(args.output, TITLE, command, text, found, {"peak": limit})


if __name__ == "__main__":
    main(sys.argv[1:])
