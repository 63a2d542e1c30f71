"""How fast is a GPU? Stages of the profile "speed", the most valuable first.

At base size weights are random, and a replay says how right drafts are: of ten drafted tokens four stand. Every cell
warms up on all of its batches until nothing is captured any more. Then it is the median of three passes, systems in
turn. A cell during which a graph was captured all the same says so.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench import memory, systems, timing
from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.engine import encoder, packed_decoder
from fairseq_aggdec.engine.graphs.conditions import set_tf32, tf32_allowed
from fairseq_aggdec.kernels.gpu import operators, products
from fairseq_aggdec.kernels.gpu.operators import PROBES
from fairseq_aggdec.kernels.switches import VARIABLE
from scripts import random_models
from scripts.recipes.gad import replay
from scripts.recipes.gpu.cold_start import cold_start
from scripts.recipes.gpu.each_kernel import every_kernel, launches
from scripts.recipes.gpu.hardware import hardware
from scripts.recipes.gpu.methods import methods
from scripts.recipes.gpu.plan import PRECISIONS, Plan, Row, Rows, Stage, shipped, tried
from scripts.recipes.gpu.step_cost import step_cost

# Outputs of so many tokens, drafts of so many, of which so many stand.
LENGTH, DRAFTED, STANDING = 24, 10, 4
# As `aggdec train-drafter` makes it: without the source copy of nar_drafter_base, with which the host sees every draft.
CHAIN = [
    "--arch",
    "nar_drafter",
    "--slot-predicts",
    "next",
    "--prefix-attention",
    "causal",
    "--slot-chain",
]
WARM, PASSES = 3, 3
FLAGS = {**PRECISIONS, "tf32": []}
SIZES = (1, 32, 8, 128)
LARGEST = max(SIZES)


class Base:
    """Sessions at base size with random weights, made when they are first needed.

    Args:
        plan: what is asked.
        flags: the precision.
    """

    def __init__(self, plan: Plan, flags: Sequence[str]):
        self.plan, self.flags = plan, list(flags)
        self.records = [record(index) for index in range(plan.sentences(LARGEST))]

    @functools.cached_property
    def drafter(self) -> tuple[Session, Any]:
        """A verifier with a drafter of one layer, and what replays drafts."""
        return self._made("drafter", ["--decoder-layers", "1", *CHAIN], False)

    @functools.cached_property
    def heads(self) -> tuple[Session, Any]:
        """A verifier with block heads, and what replays drafts."""
        return self._made("heads", None, True)

    def _made(self, name: str, drafter: list[str] | None, heads: bool) -> tuple[Session, Any]:
        size = "tiny" if self.plan.rehearse else "base"
        records = [
            record(0, alone=heads),
            *(record(i, alone=heads) for i in range(1, len(self.records))),
        ]
        arguments = random_models.prepare(
            self.plan.folder / f"{size}-{name}", size, records, drafter, heads
        )
        arguments += ["--min-len", str(LENGTH), "--max-len-a", "0", "--max-len-b", str(LENGTH)]
        session = self.plan.session(arguments, "--draft-tokens", str(DRAFTED), *self.flags)
        return session, replay.replay_drafter(session, records)

    def of(self, name: str) -> tuple[Session, Any]:
        return self.heads if name == "blockwise" else self.drafter


def record(
    index: int, alone: bool = False, drafts: int = DRAFTED, standing: int = STANDING
) -> Record:
    """Source and output of the same length, every draft as right as every other.

    Args:
        index: of the sentence.
        alone: nothing is drafted at first: heads read what the verifier read before.
        drafts, standing: tokens of a draft, and how many of them are right.
    """
    iterations, left = [], LENGTH + 1
    if alone:
        iterations, left = [Iteration([], [0], 0, [0])], left - 1
    while left:
        gained = min(standing + 1, left)
        drafted = [0] * min(drafts, left - 1)
        iterations.append(Iteration(drafted, [0] * (len(drafted) + 1), gained - 1, [0] * gained))
        left -= gained
    return Record(index, [*range(4, 4 + LENGTH), 2], iterations)


def timed(
    plan: Plan, running: Sequence[System], batches: Sequence[dict[str, Any]], **names: Any
) -> Iterator[Row]:
    """Rows of systems in turn on some batches; one that fails is left out with the reason."""
    ready, launched = [], {}
    for system in running:
        try:
            # Stock captures nothing, and takes longest.
            with launches() as launched[system.name]:
                for _ in range(1 if plan.rehearse or system.stock else WARM):
                    for sample in batches:
                        system.decode(sample)
            ready.append(system)
        except Exception as error:
            yield names | {
                "system": systems.label(system.name),
                "error": f"{type(error).__name__}: {error}"[:300],
            }
    if not ready:
        return
    found = timing.measure(ready, batches, 0, 1 if plan.rehearse else PASSES)
    first = found[0]
    for one in found:
        sentences = len(one.outputs)
        yield names | {
            "system": systems.label(one.name),
            "ms / sentence": 1e3 * one.total / sentences,
            "ms / token": 1e3 * one.total / one.tokens * len(batches[0]["id"]),
            "sentences / s": sentences / one.total,
            "x first": first.total / one.total,
            "tokens / iteration": one.mean_accepted,
            "other than first": timing.different(first, one),
            "captures": one.captured,
            "kernels": ", ".join(sorted(launched[one.name])),
        }


def base_cells(plan: Plan, precision: str, names: Sequence[str], sizes: Sequence[int]) -> Rows:
    """Cells of systems at base size, by batch size."""
    base = Base(plan, FLAGS[precision])
    for size in sizes:
        running = []
        for name in names:
            try:
                session, drafts = base.of(name)
                running.append(built(name, session, drafts))
            except (Exception, SystemExit) as error:
                yield {
                    "precision": precision,
                    "batch": size,
                    "system": systems.label(name),
                    "error": str(error)[:300],
                }
        batches = base.drafter[0].batches(size, plan.sentences(size))
        yield from timed(plan, running, batches, precision=precision, batch=size)


def built(name: str, session: Session, drafts: replay.ReplayDrafter) -> System:
    """A system; one of ours that drafts gets the drafts of the replay."""
    system = systems.build(name, session)
    replay.force_drafts(system, drafts, session.cuda)
    return system


OURS = ("beam5", "beam1", "search5", "greedy", "iad", "gad", "blockwise")


def base_half(plan: Plan) -> Rows:
    """Base size, 24 tokens, fp16: every method of ours beside stock."""
    yield from base_cells(plan, "fp16" if not plan.rehearse else "fp32", OURS, plan.few(SIZES, 3))


def rivals(plan: Plan) -> Rows:
    """The same beside CTranslate2 and Hugging Face transformers, in fp16."""
    if plan.rehearse:
        names, precision = ["greedy", "gad"], "fp32"
        names += [n for n, m in (("ct2-float32", "ctranslate2"), ("hf", "transformers")) if _has(m)]
    else:
        precision = "fp16"
        names = [
            "greedy",
            "gad",
            "search5",
            "ct2-float16",
            "ct2-float16-beam5",
            "hf-fp16",
            "hf-beam5-fp16",
        ]
    yield from base_cells(plan, precision, names, plan.few([1, 32, 8], 3))


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def shipped_times(plan: Plan) -> Rows:
    """The shipped model of error correction with its own drafts."""
    names = ["beam5", "beam1", "search5", "greedy", "iad"]
    for precision in plan.few(["fp16", "fp32"], 2):
        session = plan.session(shipped(plan.folder), *PRECISIONS[precision])
        for size in plan.few([1, 32, 8], 3):
            running = [systems.build(name, session) for name in plan.few(names, 2)]
            batches = session.batches(size, plan.sentences(size))
            yield from timed(plan, running, batches, precision=precision, batch=size)


def precisions(plan: Plan) -> Rows:
    """Base size in the other precisions."""
    names = plan.few(["beam5", "search5", "greedy", "gad"], 2)
    for precision in plan.few(["fp32", "tf32", "bf16"], 9):
        with rounding(precision):
            yield from base_cells(plan, precision, names, plan.few([1, 32], 2))


@contextmanager
def rounding(precision: str) -> Iterator[None]:
    """Products of fp32 round to TF32 meanwhile, where that is the precision."""
    before = tf32_allowed()
    if precision == "tf32":
        set_tf32(True)
    try:
        yield
    finally:
        set_tf32(before)


def histogram(plan: Plan) -> Rows:
    """Kernels of one iteration at batch 1, base size, fp16: where its time goes."""
    base = Base(plan, PRECISIONS["fp32" if plan.rehearse else "fp16"])
    activities = [torch.profiler.ProfilerActivity.CPU]
    if not plan.rehearse:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for name in plan.few(["greedy", "iad", "gad", "search5"], 4):
        session, drafts = base.of(name)
        system = built(name, session, drafts)
        (sample,) = session.batches(1, 1)
        for _ in range(WARM):
            system.decode(sample)
        assert system.counters is not None
        before = system.counters.calls
        with torch.profiler.profile(activities=activities) as profiler:
            system.decode(sample)
        yield from _kernels(plan, name, profiler, max(1, system.counters.calls - before))


def _kernels(plan: Plan, name: str, profiler: Any, calls: int) -> Rows:
    """The kernels with the most time, each per call of the decoder."""
    device = torch.autograd.DeviceType.CPU if plan.rehearse else torch.autograd.DeviceType.CUDA
    seconds: defaultdict[str, float] = defaultdict(float)
    times: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type == device:
            kind = re.sub(r"<.*|\(.*", "", event.name)[:80]
            seconds[kind] += event.time_range.elapsed_us()
            times[kind] += 1
    total = sum(seconds.values())
    yield {
        "method": name,
        "kernel": "all",
        "per call": sum(times.values()) / calls,
        "us per call": total / calls,
    }
    for kind in sorted(seconds, key=seconds.__getitem__, reverse=True)[
        : 3 if plan.rehearse else 15
    ]:
        yield {
            "method": name,
            "kernel": kind,
            "per call": times[kind] / calls,
            "us per call": seconds[kind] / calls,
        }


def windows(plan: Plan) -> Rows:
    """Cost of one call by width and rows, and what a call costs beyond its tokens in tokens' worth."""
    size = "tiny" if plan.rehearse else "base"
    arguments = random_models.prepare(plan.folder / f"{size}-windows", size, [record(0)])
    for precision in plan.few(["fp16", "fp32"], 2):
        session = plan.session(arguments, *PRECISIONS[precision])
        for rows in plan.few([1, 8, 32], 2):
            cost = step_cost(session, rows=rows, repeats=1 if plan.rehearse else 15)
            yield {
                "precision": precision,
                "rows": rows,
                **{f"{w} wide, ms": 1e3 * s for w, s in cost.seconds.items()},
                "beyond, tokens": cost.intercept_in_tokens,
            }


def peaks(plan: Plan) -> Rows:
    """Peak memory of decoding, the shipped model."""
    session = plan.session(shipped(plan.folder))
    for size in plan.few([32, 1], 2):
        batches = session.batches(size, plan.sentences(size))
        for name in ("beam1", "beam5", "search5", "iad"):
            yield tried(
                lambda name=name, batches=batches: {  # type: ignore[misc]
                    "MiB": memory.peak_of(systems.build(name, session), batches)
                },
                system=systems.label(name),
                batch=size,
            )


def without(plan: Plan) -> Rows:
    """Base size, fp16, batch 1: all kernels, none, and all but those that work with one of them."""
    words = ["", "no-gpu", *(f"no-{names[0]}" for names in PROBES.values())]
    before, base = (
        os.environ.get(VARIABLE, ""),
        Base(plan, FLAGS["fp32" if plan.rehearse else "fp16"]),
    )
    batches = base.drafter[0].batches(1, plan.sentences(1))
    try:
        for word in plan.few(words, 1 if not plan.rehearse else 6):
            os.environ[VARIABLE] = ",".join(filter(None, (before, word)))
            running = [
                built(name, *base.of(name)) for name in plan.few(["greedy", "gad", "search5"])
            ]
            yield from timed(plan, running, batches, without=word)
    finally:
        os.environ[VARIABLE] = before


class Choice(NamedTuple):
    """A number that only a card can choose.

    Attributes:
        what: for the table.
        places: modules that have it, and its name there.
        values: today's first.
        cells: methods and batch sizes that it changes.
    """

    what: str
    places: Sequence[tuple[Any, str]]
    values: Sequence[int]
    cells: Sequence[tuple[str, int]]


FEW_ROWS = ("greedy", 32), ("search5", 6), ("gad", 2)  # 17 to 32 rows of a product
CHOICES = (
    Choice(
        "most rows of our products",
        [(packed_decoder, "MOST_ROWS"), (encoder, "MOST_ROWS")],
        (32, 16),
        FEW_ROWS,
    ),
    Choice("tiles of rows of a block", [(products, "HIGH")], (1, 2), FEW_ROWS),
    Choice("blocks that read logits", [(operators, "BUSY")], (264, 528), [("search5", 32)]),
)


def choices(plan: Plan) -> Rows:
    """Base size, fp16: numbers of our kernels that only a card can choose."""
    base = Base(plan, FLAGS["fp32" if plan.rehearse else "fp16"])
    for what, places, values, cells in CHOICES:
        for (name, size), value in itertools.product(plan.few(cells), values):
            session, drafts = base.of(name)
            batches = session.batches(size, plan.sentences(size))
            with ExitStack() as held:
                for module, constant in places:
                    held.enter_context(mock.patch.object(module, constant, value))
                running = [built(name, session, drafts)]
                yield from timed(plan, running, batches, choice=what, value=value, batch=size)


STAGES: dict[str, Stage] = {
    "every kernel": Stage(every_kernel, 90),
    "hardware": Stage(hardware, 15),
    "base size, fp16": Stage(base_half, 150),
    "rivals": Stage(rivals, 100),
    "without": Stage(without, 60),
    "choices": Stage(choices, 40),
    "shipped model": Stage(shipped_times, 60),
    "precisions": Stage(precisions, 90),
    "kernels": Stage(histogram, 25),
    "windows": Stage(windows, 30),
    "cold start": Stage(cold_start, 30),
    "memory": Stage(peaks, 20),
    "graphs": Stage(methods, 30),
}
