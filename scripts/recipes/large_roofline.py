"""Write a table: how near decoding with a large model is to the limits of the machine, one thread.

    python -m scripts.recipes.large_roofline work/large/tables --output work/large/tables/roofline

Limits are measured here: bytes a second that one core reads from memory, and products a second of our kernels with
weights in the cache. A part of a model takes at least the larger of its bytes and its products over these. TABLES has
the tables of large_rivals.sh, whose times stand beside the sum.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fairseq_aggdec.kernels.huge_pages import use_huge_pages
from fairseq_aggdec.kernels.library import Product
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import write_table
from scripts.random_models import SIZES, Size

STEPS, LENGTH = 21, 20  # of an output and of a source
BYTES = {"float32": 4, "int8": 1}
NAMES = (
    "form",
    "search",
    "batch",
    "encoder, ms",
    "layers",
    "projection",
    "limit",
    "measured",
    "share",
)
HEAD = "| " + " | ".join(NAMES) + " |\n" + "|---" * len(NAMES) + "|"
CACHED = 2048, 1024  # outputs and inputs of a product whose weights stay in the cache


@dataclass(frozen=True)
class Bound:
    """Milliseconds a sentence: the least that each part takes, and what was measured."""

    form: str
    search: str
    batch: int
    encoder: float
    layers: float
    projection: float
    measured: float

    @property
    def limit(self) -> float:
        return self.encoder + self.layers + self.projection

    def row(self) -> str:
        parts = " | ".join(f"{one:.0f}" for one in (self.encoder, self.layers, self.projection))
        whole = f"{self.limit:.0f} | {self.measured:.0f} | {self.limit / self.measured:.2f}"
        return f"| {self.form} | {self.search} | {self.batch} | {parts} | {whole} |"


def fastest(call: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest call."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def read_speed() -> float:
    """Bytes a second that one core reads from memory."""
    numbers, vector = torch.ones(1 << 14, 1 << 14), torch.ones(1 << 14)
    use_huge_pages(numbers.data_ptr(), numbers.nbytes)  # as packed weights have them
    return numbers.nbytes / fastest(lambda: torch.mv(numbers, vector))


def product_speed(form: str, rows: int) -> float:
    """Products a second of a call with ``rows`` rows."""
    outputs, inputs = CACHED
    product = Product(torch.randn(outputs, inputs), None, False, int8=form == "int8")
    x = torch.randn(rows, inputs)
    return outputs * inputs * rows / fastest(lambda: product(x), 200)


def weights(size: Size) -> tuple[int, int, int]:
    """Weights of the encoder, the decoder's layers (keys and values of the source apart), and the projection."""
    attention, hidden = 4 * size.dim**2, 2 * size.dim * size.hidden
    decoder = attention + 2 * size.dim**2 + hidden
    return size.layers * (attention + hidden), size.layers * decoder, size.dim * size.types


def bounds(tables: Path, size: Size, read: float) -> Iterator[Bound]:
    """A row for each table and batch size."""
    encoder, layers, projection = weights(size)
    memory = 2 * size.layers * size.dim**2  # keys and values of the source
    for form, width in BYTES.items():
        for search, beam in (("greedy", 1), ("beam5", 5)):
            path = tables / f"{form}-{search}-1.json"
            found = json.loads(path.read_text())["results"] if path.exists() else []
            ours = ("greedy", "search5") if form == "float32" else ("greedy-int8", "search5-int8")
            for result in (one for one in found if one["system"] in ours):
                batch = result["batch_size"]
                rows = batch * beam

                def part(count: int, rows: int, speed: float, times: int = 1) -> float:
                    return 1000 * times * max(count * width / read, count * rows / speed)  # noqa: B023

                many, few = product_speed(form, batch * LENGTH), product_speed(form, rows)
                yield Bound(
                    form,
                    search,
                    batch,
                    part(encoder + memory, batch * LENGTH, many) / batch,
                    part(layers, rows, few, STEPS) / batch,
                    part(projection, rows, few, STEPS) / batch,
                    1000 * result["seconds"] / result["sentences"],
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, metavar="TABLES", help="folder of large_rivals.sh")
    parser.add_argument("--size", default="large", choices=SIZES, help="of the model in the tables")
    parser.add_argument("--output", type=Path, help="write OUTPUT.md and OUTPUT.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    read = read_speed()
    found = list(bounds(args.tables, SIZES[args.size], read))
    limits = (
        f"One core reads {read / 1e9:.1f} GB/s from memory; products in the cache, 10^9 a second: "
        + "; ".join(
            f"{form} {product_speed(form, 1) / 1e9:.0f} for one row, {product_speed(form, 40) / 1e9:.0f} for 40"
            for form in BYTES
        )
    )
    table = "\n".join([limits + ".", "", HEAD, *(bound.row() for bound in found)])
    print(table)
    if args.output:
        command = machine.command("scripts.recipes.large_roofline", sys.argv[1:])
        title = "Limits at the size of NLLB-600M"
        write_table(args.output, title, command, table, [asdict(bound) for bound in found])


if __name__ == "__main__":
    main()
