"""How fast are the decoders? All systems in turn in one process, equality checked beside each speed.

    python scripts/benchmark.py DATA --path model.pt --gen-subset test --limit 300 --output docs/results/iad-ua_gec

takes every flag of fairseq-generate. Nothing but decoding is timed: models are loaded and sentences collated before.
Plots of the first thread count are written beside the tables.

    --record FILE     writes what IAD did (lengths, drafts, bifurcations), for --replay
    --replay FILE     base and big size with random weights: the recorded iterations forced through (no DATA needed)
    --step-cost       time of one decoder call against the number of tokens it reads
"""

import logging
import sys
from pathlib import Path

import torch

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.evaluation import benchmark, plots, systems
from fairseq_aggdec.evaluation.session import Session, generation_parser
from fairseq_aggdec.evaluation.timing import Measurement, measure

DEFAULT_SYSTEMS = ["beam5", "beam1", "greedy", "iad"]


def build_parser():
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--systems", nargs="+", default=DEFAULT_SYSTEMS, metavar="NAME")
    group.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32], metavar="B")
    group.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="T")
    group.add_argument(
        "--limit", type=int, help="sentences (default: all), spread over all lengths"
    )
    group.add_argument(
        "--repeats", type=int, default=1, help="times each batch is decoded; medians"
    )
    group.add_argument(
        "--output", type=Path, help="result files: OUTPUT.json, OUTPUT.md, OUTPUT-*.svg"
    )
    return parser


def main() -> None:
    session = Session(build_parser())
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    args = session.args
    rows: list[benchmark.Line] = []
    single: list[Measurement] = []
    for threads in args.threads:
        torch.set_num_threads(threads)
        running = [systems.build(name, session) for name in args.systems]
        for batch_size in args.batch_sizes:
            batches = session.batches(batch_size, args.limit)
            measurements = measure(running, batches, repeats=args.repeats)
            rows += benchmark.lines(measurements, batch_size, threads)
            if batch_size == 1 and not single:
                single = measurements
            print(benchmark.markdown(rows[-len(running) :]), flush=True)
    if args.output:
        title = f"Decoding speed, {session.precision}, {Path(session.cfg.task.data).name}"
        command = "python scripts/benchmark.py " + " ".join(sys.argv[1:])
        benchmark.write(args.output, title, command, rows, {"precision": session.precision})
        draw(args.output, session, rows, single)


def draw(output: Path, session: Session, rows: list, single: list[Measurement]) -> None:
    """The plots: per-sentence ones from the first run at batch 1, latency against batch size from all."""
    by_name = {measurement.name: measurement for measurement in single}
    methods = [name for name in by_name if not name.startswith(("beam", "ct2", "greedy"))]
    if "beam5" in by_name and methods:
        method = by_name[methods[0]]
        speedups = [a / b for a, b in zip(by_name["beam5"].seconds, method.seconds, strict=True)]
        ratios = []
        for sentence in (sample["id"].item() for sample in session.batches(1, session.args.limit)):
            source = session.dataset[sentence]["source"].tolist()[:-1]
            ratios.append(benchmark.edit_ratio(source, method.outputs[sentence][:-1]))
        plots.speedup_distribution(speedups, "fairseq beam 5", Path(f"{output}-distribution.svg"))
        plots.speedup_against_edits(ratios, speedups, "fairseq beam 5", Path(f"{output}-edits.svg"))
    latencies: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.threads == rows[0].threads:
            name = systems.LABELS.get(row.system, row.system)
            latencies.setdefault(name, {})[row.batch_size] = row.seconds / row.sentences
    plots.latency_against_batch(latencies, Path(f"{output}-batch.svg"))


if __name__ == "__main__":
    main()
