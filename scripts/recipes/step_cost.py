"""Time of one decoder call against the number of tokens that it reads.

    python -m scripts.recipes.step_cost DATA --path model.pt --cpu --threads 1 2 --output results/step_cost

takes every flag of fairseq-generate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench.timing import synchronise
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.windows.window import Window

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
START = 10  # committed positions before the window


@dataclass
class StepCost:
    """Time of one decoder call, vocabulary projection included.

    Attributes:
        seconds: window width in tokens -> seconds, medians.
        intercept, slope: of the straight line through them, seconds and seconds per token.
    """

    seconds: dict[int, float]
    intercept: float
    slope: float

    @property
    def intercept_in_tokens(self) -> float:
        """What a call costs beyond its tokens, in tokens' worth: how long a draft should dare to be."""
        return self.intercept / self.slope if self.slope > 0 else float("inf")


@torch.inference_mode()
def step_cost(
    session: Session, widths: Sequence[int] = WIDTHS, repeats: int = 15, rows: int = 1
) -> StepCost:
    """Times windows of each width on so many copies of the median sentence, the widths in turn."""
    generator, _ = session.generator("greedy")
    order = session.sentences()
    sample = session.dataset.collater([session.dataset[order[len(order) // 2]]] * rows)
    if session.cuda:
        sample = {"net_input": {k: v.cuda() for k, v in sample["net_input"].items()}}
    tokens = sample["net_input"]["src_tokens"]
    generator.verifier.start(sample["net_input"], START + max(widths))
    first = torch.full((rows * START,), 4, device=tokens.device)
    generator.verifier.read(Window(first, [0] * rows, [START] * rows))
    windows = {
        w: Window(torch.full((rows * w,), 5, device=tokens.device), [START] * rows, [w] * rows)
        for w in widths
    }
    times: dict[int, list[float]] = {width: [] for width in widths}
    for repeat in range(repeats + 2):
        for width, window in windows.items():
            synchronise()
            start = time.perf_counter()
            generator.verifier.read(window)
            synchronise()
            if repeat >= 2:  # the first ones warm up
                times[width].append(time.perf_counter() - start)
    medians = {width: statistics.median(seconds) for width, seconds in times.items()}
    slope, intercept = np.polyfit(list(medians), list(medians.values()), 1)
    return StepCost(medians, float(intercept), float(slope))


def cost_table(threads: int, cost: StepCost) -> str:
    """Markdown of the cost of a call."""
    rows = "\n".join(f"| {w} | {1e3 * s:.2f} |" for w, s in cost.seconds.items())
    return (
        f"**{threads} thread(s)**: {1e3 * cost.intercept:.2f} ms + {1e3 * cost.slope:.3f} ms a token; the "
        f"intercept is worth {cost.intercept_in_tokens:.0f} tokens\n\n| tokens read | ms |\n|---|---|\n{rows}"
    )


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1], metavar="T")
    parser.add_argument("--output", type=Path, help="result files: OUTPUT.json, OUTPUT.md")
    return parser


def main(given: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if given is None else given
    with results.refusals():
        session = Session(build_parser(), arguments)
        tables, found = [], {}
        for threads in session.args.threads:
            torch.set_num_threads(threads)
            found[threads] = cost = step_cost(session)
            tables.append(cost_table(threads, cost))
        shown = "\n\n".join(tables)
        print(shown)
        if session.args.output:
            command = machine.command("scripts.recipes.step_cost", arguments)
            record = {threads: asdict(cost) for threads, cost in found.items()}
            title = f"Cost of a decoder call, {session.precision}"
            results.write_table(session.args.output, title, command, shown, record)


if __name__ == "__main__":
    main()
