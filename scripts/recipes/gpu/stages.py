"""What a first GPU is asked, stage by stage; each stage gives rows of a table while it runs.

On a GPU models run there. In a rehearsal everything is tiny: what must be equal is decoded on the strict device, which
says that it is CUDA, and what takes a session runs on the CPU.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from typing import Any

import torch

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.audit import equality, nbest_equality
from fairseq_aggdec.bench import memory, replay, systems, timing
from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.records import machine
from scripts.recipes.gpu import device_counts
from scripts.recipes.gpu import methods as gpu_methods
from scripts.recipes.gpu.device_counts import COUNTED, ITERATIONS, START
from scripts.recipes.gpu.plan import PRECISIONS, ROOT, Plan, Row, Rows, shipped, tried
from scripts.recipes.gpu.step_cost import step_cost
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES, Case
from tests.strict.device.recorder import KERNEL, TRANSFER

STRICT = 16  # slots of a row
# What a replay at base size does: outputs of so many tokens, drafts of so many, of which so many stand.
LENGTH, DRAFTED, STANDING = 24, 10, 4
CHAIN = ["--slot-predicts", "next", "--prefix-attention", "causal", "--slot-chain"]


def versions(plan: Plan) -> Rows:
    """Machine, driver and packages."""
    yield {"what": "machine", "is": machine.sentence(machine.describe())}
    yield {"what": "CUDA, cuDNN", "is": f"{torch.version.cuda}, {torch.backends.cudnn.version()}"}
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        yield {"what": "GPU memory, GiB", "is": f"{found.total_memory / 2**30:.0f}"}
        yield {"what": "compute capability", "is": f"{found.major}.{found.minor}"}


def equal(plan: Plan) -> Rows:
    """Every method on the device against stock fairseq on the CPU, tiny random models."""
    with plan.device() as device:
        for case in plan.cases(CASES):
            for rows in plan.few([4, 1], 2):
                yield tried(
                    lambda case=case, rows=rows: _compared(plan, case, rows, device),  # type: ignore[misc]
                    case=case.name,
                    rows=rows,
                )


def _compared(plan: Plan, case: Case, rows: int, device: torch.device) -> Row:
    models, drafter = device_cases.random_models(case, {"encoder_layers": 2, "decoder_layers": 2})
    sample = device_cases.batch(1, rows)
    ready = device_cases.prepared(case, models, drafter, plan.folder, device)
    (wanted,) = device_cases.expected(case, models, drafter, plan.folder, [sample])
    found = ready.decode(sample, device_cases.prefix_of(case, rows))
    pairs = [
        (ours, theirs)
        for ranked, reference in zip(found, wanted, strict=True)
        for ours, theirs in zip(ranked, reference, strict=True)
    ]
    same = [a["tokens"].tolist() == b["tokens"].tolist() for a, b in pairs]
    errors = [
        (a["positional_scores"].cpu() - b["positional_scores"]).abs().max().item()
        for (a, b), alike in zip(pairs, same, strict=True)
        if alike
    ]
    return {"hypotheses": len(pairs), "differ": same.count(False), "score error": max(errors)}


def audits(plan: Plan) -> Rows:
    """Models of a user's size against stock fairseq, and with --strict against our own greedy decoding."""
    limit = 2 if plan.rehearse else 96
    for name, arguments in plan.models():
        for precision, flags in PRECISIONS.items():
            session = plan.session(arguments, *flags)
            strict = plan.session(arguments, *flags, "--strict", str(STRICT))
            for size in plan.few([32, 1], 2):
                for decoding in ("greedy", "iad", "beam", "strict"):
                    own = strict if decoding == "strict" else session
                    yield tried(
                        lambda own=own, size=size, decoding=decoding: _audited(  # type: ignore[misc]
                            own, size, limit, decoding
                        ),
                        model=name,
                        precision=precision,
                        batch=size,
                        method="iad, strict" if decoding == "strict" else decoding,
                    )


def _audited(session: Session, size: int, limit: int, decoding: str) -> Row:
    margin = equality.TIE_MARGIN[session.precision]
    tolerance = equality.SCORE_TOLERANCE[session.precision]
    if decoding == "beam":
        found = nbest_equality.audit(session, size, 5, limit, margin, tolerance, None)
    else:
        oracle, method = ("greedy", "iad") if decoding == "strict" else ("stock", decoding)
        if decoding == "strict":
            margin = tolerance = 0.0
        expected = equality.decode_all(session, oracle, size, limit)
        decoded = equality.decode_all(session, method, size, limit)
        sentences = session.sentences(limit)
        found = equality.audit(session, sentences, expected, decoded, margin, tolerance)
    numbers = {"sentences": found.sentences, "equal": found.equal, "ties": found.ties}
    return numbers | {"BUGs": found.bugs, "score error": found.score_error}


def times(plan: Plan) -> Rows:
    """Systems in turn, the shipped model with its own drafts."""
    names = ["beam5", "beam1", "search5", "greedy", "iad"]
    for precision in plan.few(["fp32", "fp16"], 2):
        session = plan.session(shipped(plan.folder), *PRECISIONS[precision])
        yield from _timed(plan, "shipped", session, plan.few(names, 2), None)
        if plan.rehearse:
            continue  # on a CPU that is the same
        session = plan.session(shipped(plan.folder), *PRECISIONS[precision], "--no-graphs")
        yield from _timed(plan, "shipped, no graphs", session, names[2:], None)


def base_times(plan: Plan) -> Rows:
    """The same at base size with random weights: of every draft of 10 tokens 4 stand."""
    records = [_record(index) for index in range(plan.sentences(128))]
    size = "tiny" if plan.rehearse else "base"
    variants: list[tuple[str, list[str], list[str] | None, bool]] = [
        ("1-layer drafter", ["beam5", "beam1", "greedy", "iad", "gad"], _layers(1), False),
        ("6-layer drafter", ["greedy", "gad"], _layers(6), False),
        ("block heads", ["greedy", "blockwise"], None, True),
    ]
    for name, names, drafter, heads in variants:
        folder = plan.folder / f"{size}-{name.replace(' ', '-')}"
        arguments = replay.prepare(folder, size, records, drafter, heads)
        arguments += ["--min-len", str(LENGTH), "--max-len-a", "0", "--max-len-b", str(LENGTH)]
        for precision in plan.few(["fp32", "fp16"], 2):
            session = plan.session(arguments, *PRECISIONS[precision])
            drafts = replay.replay_drafter(session, records)
            yield from _timed(plan, f"{size}, {name}", session, names, drafts)


def _layers(count: int) -> list[str]:
    return ["--decoder-layers", str(count), *CHAIN]


def _record(index: int) -> Record:
    """Source and output of the same length, every draft as right as every other."""
    iterations, left = [], LENGTH + 1
    while left:
        gained = min(STANDING + 1, left)
        drafted = [0] * min(DRAFTED, left - 1)
        iterations.append(Iteration(drafted, [0] * (len(drafted) + 1), gained - 1, [0] * gained))
        left -= gained
    return Record(index, [*range(4, 4 + LENGTH), 2], iterations)


def _timed(
    plan: Plan, model: str, session: Session, names: Sequence[str], drafter: Any
) -> Iterator[Row]:
    for size in plan.batch_sizes:
        running = [systems.build(name, session, None, drafter) for name in names]
        batches = session.batches(size, plan.sentences(size))
        measured = timing.measure(running, batches, warm_up=1)
        first = measured[0].total
        for found in measured:
            yield {
                "model": model,
                "precision": session.precision,
                "batch": size,
                "system": systems.LABELS.get(found.name, found.name),
                "ms / sentence": 1e3 * found.total / len(found.outputs),
                "sentences / s": len(found.outputs) / found.total,
                "x first": first / found.total,
                "tokens / iteration": found.mean_accepted,
                "differ from first": timing.different(measured[0], found),
            }


def counts(plan: Plan) -> Rows:
    """Kernels and host waits per iteration: as the profiler sees them, beside those of the counted table."""
    for case in plan.cases(COUNTED):
        yield tried(lambda case=case: _counted(plan, case), method=case.name)  # type: ignore[misc]


def _counted(plan: Plan, case: Case) -> Row:
    if plan.rehearse:
        small = {"encoder_layers": 1, "decoder_layers": 1}
        counted = device_counts.count(case, plan.folder, sizes=small).record()
        return _told(counted)
    table = json.loads((ROOT / "docs" / "results" / "device-counts.json").read_text("utf-8"))
    return _told(table["results"][case.name]) | _profiled(plan, case)


def _told(counted: Mapping[str, Any]) -> Row:
    """What was counted without a GPU, of an iteration."""
    part = ITERATIONS if counted["iterations"] > 1 else START
    means = counted["counts"][part]
    return {f"{kind}, counted": means[kind] for kind in (KERNEL, TRANSFER)} | {
        "waits, counted": counted["blocking"][part]
    }


def _profiled(plan: Plan, case: Case) -> Row:
    """What the profiler sees of a batch, per call of the decoder; what comes before the first is in it."""
    models, drafter = device_cases.random_models(case, device_counts.SIZES)
    with plan.device() as device:
        ready = device_cases.prepared(case, models, drafter, plan.folder, device)
        sample = device_cases.batch(device_counts.SEED, device_counts.ROWS)
        prefix = device_cases.prefix_of(case, device_counts.ROWS)
        ready.decode(sample, prefix)
        before = ready.task.counters.calls
        with torch.profiler.profile() as profiler:
            ready.decode(sample, prefix)
        calls = ready.task.counters.calls - before
    found = Counter(event.name for event in profiler.events())
    kinds = {
        "launches": ("cudaLaunchKernel", "cuLaunchKernel"),
        "copies": ("cudaMemcpyAsync",),
        "waits": ("cudaStreamSynchronize", "cudaDeviceSynchronize"),
    }
    return {
        kind: sum(times for name, times in found.items() if name.startswith(names)) / max(1, calls)
        for kind, names in kinds.items()
    }


def windows(plan: Plan) -> Rows:
    """Cost of one call by width and rows, and what a call costs beyond its tokens in tokens' worth."""
    size = "tiny" if plan.rehearse else "base"
    base = replay.prepare(plan.folder / f"{size}-windows", size, [_record(0)])
    for name, arguments in (("shipped", shipped(plan.folder)), (size, base)):
        for precision in plan.few(["fp32", "fp16"], 2):
            session = plan.session(arguments, *PRECISIONS[precision])
            for rows in plan.few([1, 8, 32], 2):
                cost = step_cost(session, rows=rows, repeats=1 if plan.rehearse else 15)
                yield {
                    "model": name,
                    "precision": precision,
                    "rows": rows,
                    **{f"{w} wide, ms": 1e3 * s for w, s in cost.seconds.items()},
                    "beyond, tokens": cost.intercept_in_tokens,
                }


def peaks(plan: Plan) -> Rows:
    """Peak memory of decoding."""
    session = plan.session(shipped(plan.folder))
    for size in plan.few([32, 1], 2):
        batches = session.batches(size, plan.sentences(size))
        for name in ("beam1", "beam5", "search5", "iad"):
            yield tried(
                lambda name=name, batches=batches: {  # type: ignore[misc]
                    "MiB": memory.peak_of(systems.build(name, session), batches)
                },
                system=systems.LABELS[name],
                batch=size,
            )


def tests(plan: Plan) -> Rows:
    """The level ``strict`` of the tests on the device, where pytest is there."""
    if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("hypothesis") is None:
        yield {"tests": "pytest or hypothesis is not installed"}
        return
    import pytest

    chosen = ["-k", "half_precision and greedy"] if plan.rehearse else ["--device", "cuda"]
    with chdir(ROOT), redirect_stdout(io.StringIO()) as printed:
        code = int(pytest.main(["-q", "-n", "0", *chosen, "tests/strict/test_methods.py"]))
    lines = printed.getvalue().splitlines()
    for line in [line for line in lines if line.startswith("FAILED")] + lines[-1:]:
        yield {"tests": line} | ({"error": code} if code else {})


# Stage -> what it does and its weight: so much of the time that is left is its own, beside the stages after it.
STAGES: dict[str, tuple[Callable[[Plan], Rows], int]] = {
    "versions": (versions, 40),
    "equality": (equal, 90),
    "audits": (audits, 120),
    "times": (times, 60),
    "base size": (base_times, 90),
    "methods": (gpu_methods.methods, 60),
    "windows": (windows, 40),
    "counts": (counts, 40),
    "memory": (peaks, 25),
    "tests": (tests, 120),
}
