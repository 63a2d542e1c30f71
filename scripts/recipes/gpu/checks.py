"""Is it right on a GPU? Stages of the profile "checks".

On a GPU models run there. In a rehearsal everything is tiny: what must be equal is decoded on the strict device, which
says that it is CUDA, and what takes a session runs on the CPU.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.audit import equality, nbest_equality
from scripts.recipes.gpu import device_counts
from scripts.recipes.gpu.device_counts import COUNTED, ITERATIONS, START
from scripts.recipes.gpu.each_kernel import every_kernel
from scripts.recipes.gpu.plan import PRECISIONS, ROOT, Plan, Row, Rows, Stage, tried, versions
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES, Case
from tests.strict.device.recorder import KERNEL, TRANSFER

SANITIZED = 100  # seconds of a tool
STRICT = 16  # slots of a row


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


def counts(plan: Plan) -> Rows:
    """Kernels and host waits per iteration: as the profiler sees them, beside those of the counted table."""
    for case in plan.cases(COUNTED):
        yield tried(lambda case=case: _counted(plan, case), method=case.name)  # type: ignore[misc]


def _counted(plan: Plan, case: Case) -> Row:
    if plan.rehearse:
        small = {"encoder_layers": 1, "decoder_layers": 1}
        counted = device_counts.count(case, plan.folder, sizes=small).record()
        return _counts(counted)
    table = json.loads((ROOT / "docs" / "results" / "device-counts.json").read_text("utf-8"))
    return _counts(table["results"][case.name]) | _profiled(plan, case)


def _counts(counted: Mapping[str, Any]) -> Row:
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


def tests(plan: Plan) -> Rows:
    """The level ``strict`` of the tests on the device, where pytest is there."""
    if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("hypothesis") is None:
        yield {"tests": "pytest or hypothesis is not installed"}
        return
    import pytest

    chosen = ["-k", "half_precision and greedy"] if plan.rehearse else ["--device", "cuda"]
    files = [f"tests/strict/test_{name}.py" for name in ("gpu_kernels", "few_rows", "methods")]
    with chdir(ROOT), redirect_stdout(io.StringIO()) as printed:
        code = int(pytest.main(["-q", "-n", "0", *chosen, *files]))
    lines = printed.getvalue().splitlines()
    for line in [line for line in lines if line.startswith("FAILED")] + lines[-1:]:
        yield {"tests": line} | ({"error": code} if code else {})


def sanitizers(plan: Plan) -> Rows:
    """Some random cases of every kernel under compute-sanitizer, where it is installed."""
    tools = [
        shutil.which("compute-sanitizer"),
        *Path("/usr/local").glob("cuda*/bin/compute-sanitizer"),
    ]
    tool = next((str(place) for place in tools if place), None)
    for kind in ("memcheck", "racecheck", "synccheck"):
        if tool is None or plan.rehearse:
            yield {
                "tool": kind,
                "says": "a rehearsal" if tool else "compute-sanitizer is not installed",
            }
            continue
        yield tried(functools.partial(_sanitized, [tool, "--tool", kind]), tool=kind)


def _sanitized(tool: list[str]) -> Row:
    command = [*tool, "--error-exitcode", "9", sys.executable, "-m"]
    command += ["scripts.recipes.gpu.each_kernel", "3"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SANITIZED
    )
    lines = [line for line in done.stdout.splitlines() if "SUMMARY" in line] or [done.stderr[-200:]]
    return {"says": lines[-1]} | ({"error": done.returncode} if done.returncode else {})


STAGES: dict[str, Stage] = {
    "every kernel": Stage(every_kernel, 90),
    "versions": Stage(versions, 20),
    "equality": Stage(equal, 120),
    "audits": Stage(audits, 120),
    "counts": Stage(counts, 60),
    "tests": Stage(tests, 200),
    "sanitizers": Stage(sanitizers, 60),
}
