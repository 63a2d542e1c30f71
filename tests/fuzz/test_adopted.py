"""Random tasks, models, hubs, options and calls through ``adopt()``: every difference is a tie."""

from __future__ import annotations

import contextlib
import copy
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

import fairseq_aggdec
from tests.fuzz import budget
from tests.fuzz.adopted import Case
from tests.pipelines.making import forgotten, stock_repaired
from tests.rule_cases import WorkingBlocker

# By how much scores may differ, and weights change, relatively, to see whether rounding decides a case; as often.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.03}
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 0.01, torch.float16: 0.001}
ROUNDINGS = 6
FAILS = "stock fails"


def generator_of(case: Case, models: Any, ours: bool) -> tuple[Any, Any]:
    """A task and its generator; stock's blocker works on a CPU as it does with its CUDA extension."""
    task = copy.copy(case.place.task)
    args = Namespace(**case.options)
    with forgotten(), stock_repaired() if not ours else contextlib.nullcontext():
        if case.by == "hub":
            hub = case.hub(task, models)
            return task, fairseq_aggdec.adopt(hub, **case.own) if ours else hub
        if ours and case.by == "task":
            task = fairseq_aggdec.adopt(task, **case.own)
            return task, task.build_generator(models, args)
        if ours:
            with stock_repaired():
                generator = task.build_generator(models, args)
            return task, fairseq_aggdec.adopt(generator, **case.own)
        generator = task.build_generator(models, args)
    if generator.repeat_ngram_blocker is not None:
        generator.repeat_ngram_blocker = WorkingBlocker(generator.repeat_ngram_blocker)
    return task, generator


def outputs(case: Case, ours: bool, noise: int = 0) -> Iterator[Any]:
    """The hypotheses of each call; an error ends them."""
    models = case.models()
    if noise:
        own = torch.Generator().manual_seed(noise)
        with torch.no_grad():
            for model in models:
                for weight in model.parameters():
                    noisy = 1 + ROUNDING[case.dtype] * torch.randn(weight.shape, generator=own)
                    weight.copy_(weight * noisy)
    task, generator = generator_of(case, models, ours)
    yield type(generator).__name__
    for call in case.calls:
        for change in call.fields:
            change(generator)
        for change in call.models:
            for model in models:
                change(model)
        torch.manual_seed(case.seed)
        with forgotten() if case.by == "hub" else contextlib.nullcontext(), stock_repaired():
            found = call.make(task, generator, models)
        yield found


def numbers(found: Any) -> Any:
    """An alignment, whose soft form is text."""
    if isinstance(found, list) and found and isinstance(found[0], list):
        return torch.tensor([[float(one) for one in row] for row in found])
    return torch.as_tensor(found).float()


def difference(found: Any, expected: Any, aligned: bool, tolerance: float) -> str | None:
    """What tells two n-best lists apart; None: rounding alone."""
    if [len(ranked) for ranked in found] != [len(ranked) for ranked in expected]:
        return f"hypotheses: {[*map(len, found)]} for {[*map(len, expected)]}"
    names = ["score", "positional_scores", *(["alignment", "attention"] if aligned else [])]
    for row, (own, theirs) in enumerate(zip(found, expected, strict=True)):
        for rank, (one, other) in enumerate(zip(own, theirs, strict=True)):
            pair = one["tokens"], other["tokens"]
            if pair[0].dtype != pair[1].dtype or pair[0].tolist() != pair[1].tolist():
                return f"row {row} rank {rank}: {pair[0].tolist()} for {pair[1].tolist()}"
            for name in names:
                a, b = numbers(one[name]), numbers(other[name])
                within = (
                    max(2e-3, tolerance) if name == "alignment" else tolerance
                )  # soft ones are printed
                if a.shape != b.shape or not torch.allclose(a, b, atol=within, rtol=tolerance):
                    return f"row {row} rank {rank}: {name} {a} for {b}"
    return None


def next_of(calls: Iterator[Any]) -> tuple[Any, str]:
    """What a call gives, or the error that ends it."""
    try:
        return next(calls), ""
    except Exception as error:
        return None, f"{type(error).__name__} {error}"


def rounding_decides(case: Case, number: int, expected: Any) -> bool:
    """Whether stock itself gives something else in a call where weights differ by their last bits."""
    for noise in range(1, ROUNDINGS + 1):
        calls = outputs(case, False, noise)
        found = [next_of(calls) for _ in range(number + 1)][-1]
        if found[1] or difference(found[0], expected, False, TOLERANCE[case.dtype]):
            return True
    return False


def compare(case: Case) -> tuple[str, str]:
    """What came of a case: equal, a tie, a case with which stock fails, or a BUG; and what was seen."""
    calls = outputs(case, False), outputs(case, True)
    kinds = []
    for number in range(len(case.calls) + 1):  # the first gives the class of the generator
        (expected, failed), (found, error) = map(next_of, calls)
        if failed:
            return FAILS, f"{failed} / {error}"
        if error:
            return "BUG", error
        if not number:
            kinds = [expected, found]
            if case.by == "generator" and found == expected:
                return "equal", "given back"
            continue
        aligned = kinds[0] == "SequenceGeneratorWithAlignment"
        gap = difference(found, expected, aligned, TOLERANCE[case.dtype])
        if gap is not None:
            kind = "tie" if rounding_decides(case, number, expected) else "BUG"
            return kind, f"call {number}: {gap}"
    return "equal", kinds[1]


def test_adopted() -> None:
    seen: Counter[str] = Counter()
    for seed in budget.seeds():
        case = Case(seed)
        verdict, told = compare(case)
        again = budget.again("tests/fuzz/test_adopted.py", seed)
        assert verdict != "BUG", f"{again}\n{case}\n{told}"
        kind = f"{case.by} {str(case.dtype).removeprefix('torch.')}"
        seen[f"{kind}: {told if verdict == 'equal' else verdict}"] += 1
    print(seen)
