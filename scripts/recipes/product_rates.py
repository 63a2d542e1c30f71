"""Write a table: how fast all products of one decoder call are, by rows of the window, beside the processor's limit.

    python -m scripts.recipes.product_rates --channels 256 --output docs/results/product-rates

Each product is timed by itself, every number of rows in turn, and its fastest time counts: other work on the machine
makes some times longer and none shorter. The limit is a loop of multiply-adds in registers, compiled here, so that a
C++ compiler and a processor with AVX2 are needed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fairseq_aggdec.kernels.library import Product
from fairseq_aggdec.records import machine, results
from scripts.recipes import tables

ROWS = (*range(1, 13), 14, 16)
PEAK = r"""
#include <cstdio>
#include <ctime>
#define F(n) "vfmadd231ps %%ymm15,%%ymm15,%%ymm" #n "\n"
int main() {
    double best = 1e9;
    for (int i = 0; i < 50; ++i) {
        timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        long n = 1000000;
        asm volatile("1:\n" F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) "dec %0\njnz 1b\n" : "+r"(n) :
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "cc");
        clock_gettime(CLOCK_MONOTONIC, &b);
        const double taken = b.tv_sec - a.tv_sec + 1e-9 * (b.tv_nsec - a.tv_nsec);
        if (taken < best) best = taken;
    }
    std::printf("%.1f\n", 12e6 * 16 / best / 1e9);
}
"""


@dataclass(frozen=True)
class Rate:
    """All products of a call with so many rows: seconds, times the time of one row, and 1e9 operations a second."""

    kind: str
    rows: int
    seconds: float
    of_one_row: float
    rate: float


def peak() -> float:
    """1e9 operations a second of multiply-adds in fp32 with AVX2, one thread."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "peak.cpp"), Path(folder, "peak")
        source.write_text(PEAK, encoding="utf-8")
        subprocess.run(
            [*os.environ.get("CXX", "g++").split(), "-O2", source, "-o", program], check=True
        )
        return float(subprocess.run([program], check=True, capture_output=True, text=True).stdout)


def products(channels: int, inner: int, layers: int, types: int, int8: bool) -> list[Product]:
    """Products of a call: self-attention, attention to the source, feed-forward; the vocabulary."""
    own = torch.Generator().manual_seed(1)
    of_layer = [
        (3 * channels, channels),
        *[(channels, channels)] * 3,
        (inner, channels),
        (channels, inner),
    ]
    shapes = [*of_layer * layers, (types, channels)]
    return [Product(torch.randn(shape, generator=own), None, int8=int8) for shape in shapes]


@torch.inference_mode()
def rates(
    kind: str, chain: Sequence[Product], repeats: int, rows: Sequence[int] = ROWS
) -> list[Rate]:
    """Rates by rows; a call is made twice, and the second one counts, whose weights lie where a search finds them."""
    best = {count: [float("inf")] * len(chain) for count in rows}
    inputs = {size: torch.randn(max(rows), size) for size in {product.inputs for product in chain}}
    for _ in range(repeats):
        for count in rows:
            for turn in range(2):
                for i, product in enumerate(chain):
                    x = inputs[product.inputs][:count]
                    start = time.perf_counter()
                    product(x)
                    taken = time.perf_counter() - start
                    if turn:
                        best[count][i] = min(best[count][i], taken)
    operations = 2 * sum(product.inputs * product.outputs for product in chain)
    seconds = {count: sum(times) for count, times in best.items()}
    return [
        Rate(kind, count, taken, taken / seconds[rows[0]], operations * count / taken / 1e9)
        for count, taken in seconds.items()
    ]


def main(given: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if given is None else given
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--channels", type=int, default=256, metavar="C", help="of the decoder; 256"
    )
    parser.add_argument("--inner", type=int, default=1024, metavar="F", help="of its layers; 1,024")
    parser.add_argument("--layers", type=int, default=3, metavar="L", help="3")
    parser.add_argument(
        "--types", type=int, default=8000, metavar="V", help="of the dictionary; 8,000"
    )
    parser.add_argument("--repeats", type=int, default=40, metavar="N", help="40")
    parser.add_argument("--output", type=Path, help="result files: OUTPUT.json, OUTPUT.md")
    args = parser.parse_args(arguments)
    results.check_counts(args, "channels", "inner", "layers", "types", "repeats")
    results.check_place("--output", args.output, ".json", ".md")
    torch.set_num_threads(1)
    limit, sizes = peak(), (args.channels, args.inner, args.layers, args.types)
    found = [
        rate
        for kind in ("fp32", "8 bits")
        for rate in rates(kind, products(*sizes, int8=kind != "fp32"), args.repeats)
    ]
    shown = [
        (
            rate.kind,
            rate.rows,
            f"{1e3 * rate.seconds:.3f}",
            f"{rate.of_one_row:.2f}",
            f"{rate.rate:.0f}",
        )
        for rate in found
    ]
    heads = ["", "rows", "ms", "of one row's", "1e9 operations a second"]
    table = f"Multiply-adds in registers, fp32: {limit:.0f}e9 operations a second.\n\n{tables.table(heads, shown)}"
    print(table)
    if args.output:
        command = machine.command("scripts.recipes.product_rates", arguments)
        record = {"peak": limit, "rates": [asdict(rate) for rate in found]}
        results.write_table(args.output, "Products by rows of a window", command, table, record)


if __name__ == "__main__":
    main()
