"""What an update of interleaved training takes, beside one of the stock Transformer: "Train" in Zhang et al.'s Table 1.

    python -m scripts.recipes.interleaved.training DATA --geometries 1x1 2x1 2x2 4x1 --updates 40 --cpu --cpu-time \\
        --max-tokens 4000 --encoder-layers 3 --decoder-layers 3 --criterion label_smoothed_cross_entropy \\
        --label-smoothing 0.1 --optimizer adam --lr 0.001 --output docs/results/interleaved-training

takes every flag of fairseq-train but --arch. A geometry is DIRECTIONSxWORDS. All models begin with the same seed and
make their updates in turn, on the same batches, by fairseq's trainer: forward, loss, backward, optimiser. Nothing is
saved. The loss of the first update shows that 1x1 is the stock Transformer.
"""

import argparse
import logging
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from tqdm import tqdm

import fairseq_aggdec  # noqa: F401  (registers the architecture)
from fairseq_aggdec.bench.timing import synchronise
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import write_table
from scripts.recipes import tables

STOCK = "stock"
TITLE = "Interleaved training: time of an update"
COLUMNS = (
    "model",
    "parameters, M",
    "loss of the first update",
    "ms / update",
    "tokens / s",
    "time over stock",
)


@dataclass
class Learner:
    """A model under training."""

    name: str
    trainer: Any
    parameters: int


@dataclass
class Cost:
    """One model.

    Attributes:
        first_loss: of the first update, per token in bits, as fairseq rounds it.
        seconds: of an update, median.
        tokens: target tokens of all measured updates.
        total: seconds of all measured updates.
        over_stock: median over batches of the time for the batch over that of the stock Transformer.
    """

    model: str
    parameters: int
    first_loss: float
    seconds: float
    tokens: int
    total: float
    over_stock: float


def configuration(arguments: Sequence[str], geometry: str) -> Any:
    """fairseq-train's configuration of one model."""
    arch = ["--arch", "transformer"]
    if geometry != STOCK:
        directions, words = geometry.split("x")
        arch = ["--arch", "interleaved_transformer"]
        arch += ["--directions", directions, "--words-per-direction", words]
    args = options.parse_args_and_arch(build_parser(), input_args=[*arguments, *arch])
    return convert_namespace_to_omegaconf(args)


def learner(task: Any, config: Any, geometry: str) -> Learner:
    torch.manual_seed(config.common.seed)
    model = task.build_model(config.model)
    trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
    trainer.begin_epoch(1)
    count = sum(parameter.numel() for parameter in model.parameters())
    return Learner(geometry, trainer, count)


def batches(task: Any, config: Any, count: int) -> list[dict[str, Any]]:
    """The first ``count`` batches of training."""
    task.load_dataset("train")
    itr = task.get_batch_iterator(
        task.dataset("train"),
        max_tokens=config.dataset.max_tokens,
        max_sentences=config.dataset.batch_size,
        required_batch_size_multiple=config.dataset.required_batch_size_multiple,
        max_positions=task.max_positions(),
        ignore_invalid_inputs=True,
        seed=config.common.seed,
    ).next_epoch_itr(shuffle=True)
    found = [sample for sample, _ in zip(itr, range(count), strict=False)]
    if len(found) < count:
        raise SystemExit(
            f"error: --updates: an epoch of {config.task.data} has only {len(found)} batches, {count} are needed"
        )
    return found


def measure(
    learners: Sequence[Learner],
    samples: Sequence[dict[str, Any]],
    warm_up: int,
    clock: Callable[[], float],
) -> list[Cost]:
    """Trains all models in turn on the same batches; the first ``warm_up`` are not counted."""
    seconds: dict[str, list[float]] = {one.name: [] for one in learners}
    losses: dict[str, float] = {}
    for turn, sample in enumerate(tqdm(samples, desc="updates", leave=False, disable=None)):
        first = turn % len(learners)  # none always runs after the same one
        for one in (*learners[first:], *learners[:first]):
            synchronise()
            start = clock()
            logged = one.trainer.train_step([sample])
            synchronise()
            taken = clock() - start
            losses.setdefault(one.name, float(logged["loss"]))
            if turn >= warm_up:
                seconds[one.name].append(taken)
    tokens = sum(sample["ntokens"] for sample in samples[warm_up:])
    return [
        Cost(
            one.name,
            one.parameters,
            losses[one.name],
            statistics.median(seconds[one.name]),
            tokens,
            sum(seconds[one.name]),
            ratio(seconds[one.name], seconds[STOCK]),
        )
        for one in learners
    ]


def ratio(seconds: Sequence[float], stock: Sequence[float]) -> float:
    """Median of the ratios, batch by batch."""
    return statistics.median(ours / theirs for ours, theirs in zip(seconds, stock, strict=True))


def markdown(costs: Sequence[Cost]) -> str:
    rows = [
        [
            *(cost.model, cost.parameters / 1e6, cost.first_loss, 1e3 * cost.seconds),
            *(f"{cost.tokens / cost.total:.0f}", f"{cost.over_stock:.3f}"),
        ]
        for cost in costs
    ]
    return tables.table(COLUMNS, rows)


def build_parser() -> argparse.ArgumentParser:
    parser = options.get_training_parser(default_task="translation_aggdec")
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    group = parser.add_argument_group("measurement")
    group.add_argument("--geometries", nargs="+", default=["1x1", "2x1", "2x2", "4x1"])
    group.add_argument("--updates", type=int, default=40, help="that are measured (default: 40)")
    group.add_argument("--warm-up", type=int, default=4, help="before them (default: 4)")
    group.add_argument("--threads", type=int, default=1)
    group.add_argument(
        "--cpu-time",
        action="store_true",
        help="time of the processor instead of wall clock, for a busy machine; one thread, no GPU",
    )
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json and OUTPUT.md")
    return parser


def check(args: argparse.Namespace) -> None:
    """Stops at the first option that cannot be."""
    for geometry in args.geometries:
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", geometry):
            raise SystemExit(f"error: --geometries {geometry}: give DIRECTIONSxWORDS, such as 2x1")
    if len(set(args.geometries)) < len(args.geometries):
        raise SystemExit("error: --geometries: one comes twice")
    for option, least in (("updates", 1), ("warm_up", 0), ("threads", 1)):
        if getattr(args, option) < least:
            name = option.replace("_", "-")
            raise SystemExit(f"error: --{name} {getattr(args, option)}: at least {least}")
    if args.max_tokens is None and args.batch_size is None:
        raise SystemExit("error: --max-tokens or --batch-size is needed")
    if args.cpu_time and (args.threads > 1 or not args.cpu):
        raise SystemExit(
            "error: --cpu-time needs --cpu and --threads 1: it adds up what threads take"
        )


def main(arguments: Sequence[str]) -> None:
    args, _ = build_parser().parse_known_args(arguments)
    check(args)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    torch.set_num_threads(args.threads)
    configs = {name: configuration(arguments, name) for name in (STOCK, *args.geometries)}
    task = tasks.setup_task(configs[STOCK].task)
    samples = batches(task, configs[STOCK], args.warm_up + args.updates)
    learners = [learner(task, config, name) for name, config in configs.items()]
    clock = time.process_time if args.cpu_time else time.perf_counter
    with metrics.aggregate(new_root=True):
        costs = measure(learners, samples, args.warm_up, clock)
    command = machine.command("scripts.recipes.interleaved.training", arguments)
    extra = {"clock": "processor" if args.cpu_time else "wall", "threads": args.threads}
    table = (
        f"time: {extra['clock']}, threads: {args.threads}, updates: {args.updates}\n\n"
        + markdown(costs)
    )
    results = [asdict(cost) for cost in costs]
    write_table(args.output, TITLE, command, table, results, extra)
    print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
