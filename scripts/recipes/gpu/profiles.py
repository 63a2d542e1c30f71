"""The stages of each profile: how fast is a GPU, is it right, and a training."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts import random_models
from scripts.recipes.gpu.plan import AGGDEC, ROOT, Job, MissingError, Plan, Stage
from scripts.recipes.gpu.training import train

SHIPPED = ROOT / "checkpoints" / "ua_gec"
OURS = ("beam5", "beam1", "search5", "greedy", "iad", "gad", "blockwise")
RIVALS = (
    "greedy",
    "gad",
    "search5",
    "ct2-float16",
    "ct2-float16-beam5",
    "hf-fp16",
    "hf-beam5-fp16",
)
TESTS = ("gpu_kernels", "few_rows", "methods", "parts")
STRICT = "16"  # slots of a row


def proofs(plan: Plan) -> Stage:
    """Every kernel in a process of its own: what is right and faster runs in all stages behind this one."""
    arguments = ["doctor", *([] if plan.rehearse else ["--try-kernels"])]
    return Stage("kernels", 90, lambda _: [Job("kernels", AGGDEC, arguments)])


def speed(plan: Plan) -> list[Stage]:
    """How fast is every method, beside stock and rivals?"""
    tiny = ["--size", "tiny", "--sentences", "2"] if plan.rehearse else ["--size", "base"]

    def replayed(name: str, sizes: Sequence[int], *more: str, half: bool = True) -> Stage:
        given = [*tiny, "--folder", str(plan.work), *more, *(plan.half if half else plan.device)]
        shown = [str(size) for size in sizes[: 1 if plan.rehearse else None]]
        job = plan.measured(name, "scripts.recipes.gpu.replayed", *given, "--batch-sizes", *shown)
        return Stage(name, WEIGHTS[name], lambda _: [job])

    def benched(name: str, *more: str) -> Stage:
        def jobs(seconds: float) -> list[Job]:
            few = ["--limit", "2"] if plan.rehearse else ["--limit", "96", "--repeats", "3"]
            return [plan.bench(name, *shipped(plan), *more, *few, *plan.half)]

        return Stage(name, WEIGHTS[name], jobs)

    floors = plan.measured("floors", "scripts.recipes.gpu.floors", *plan.device)
    modules = {"ct2": "ctranslate2", "hf": "transformers"}
    rivals = [
        name
        for name in (RIVALS[:2] if plan.rehearse else RIVALS)
        if importlib.util.find_spec(modules.get(name.partition("-")[0], "torch"))
    ]
    few = ["--systems", "beam5", "search5", "greedy", "gad"]
    graphs = [
        f"{name}{said}=--decoding {name}{option}"
        for name in ("greedy", "beam")
        for said, option in (("", ""), (", no graphs", " --no-graphs"))
    ]
    return [
        proofs(plan),
        Stage("floors", 15, lambda _: [floors]),
        replayed("base", (1, 32, 128, 300), "--systems", *OURS),
        replayed("adding", (1,), "--systems", "greedy", "gad", "search5", "--adding"),
        replayed("rivals", (1, 32, 128), "--systems", *rivals),
        benched("shipped", "--systems", *OURS[:5], "--batch-sizes", "1", "32", "300"),
        replayed("bf16", (1, 32), *few, *([] if plan.rehearse else ["--bf16"]), half=False),
        replayed("fp32", (1, 32), *few, half=False),
        benched("graphs", *(word for one in graphs for word in ("--system", one))),
        benched("memory", "--systems", "beam5", "search5", "--batch-sizes", "32", "--memory"),
    ]


WEIGHTS = {
    "base": 170,
    "adding": 100,
    "rivals": 100,
    "shipped": 60,
    "bf16": 40,
    "fp32": 50,
    "graphs": 30,
    "memory": 30,
}


def checks(plan: Plan) -> list[Stage]:
    """Is it right: kernels, tests of the device, audits against stock fairseq, sanitizers?"""
    stages = [proofs(plan), Stage("tests", 200, lambda _: [tested(plan, "tests")])]
    precisions = {"fp32": [], "fp16": ["--fp16"], "bf16": ["--bf16"]}
    if plan.rehearse:
        precisions = {"fp32": []}
    for precision, flags in precisions.items():
        for decoding in ("iad", "beam"):
            name = f"{decoding}-{precision}"
            stages.append(audited(plan, name, ["--decoding", decoding, *flags]))
    strict = ["--decoding", "iad", "--strict", STRICT, *([] if plan.rehearse else ["--fp16"])]
    stages.append(audited(plan, "strict", strict))
    for tool in ("memcheck", "racecheck", "synccheck"):
        stages.append(Stage(tool, 20, lambda _, tool=tool: [sanitized(plan, tool)]))  # type: ignore[misc]
    return stages


def audited(plan: Plan, name: str, options: Sequence[str]) -> Stage:
    """The shipped model, and one of the user's, against stock fairseq."""

    def jobs(seconds: float) -> list[Job]:
        few = ["--limit", "2"] if plan.rehearse else ["--limit", "300"]
        models = {name: shipped(plan)}
        if plan.path:
            models[f"{name}-own"] = [str(plan.data), "--path", plan.path, "--gen-subset", "test"]
        sizes = ["--batch-sizes", *(["2"] if plan.rehearse else ["1", "32", "300"])]
        return [
            plan.measured(one, AGGDEC, "audit", *given, *options, *sizes, *few, *plan.device)
            for one, given in models.items()
        ]

    return Stage(name, 20, jobs)


def tested(plan: Plan, name: str, *options: str, under: Sequence[str] = ()) -> Job:
    """Tests of the level ``strict`` on the device, in a rehearsal some on the one that takes its place."""
    for module in ("pytest", "hypothesis"):
        if importlib.util.find_spec(module) is None:
            raise MissingError(f"{module} is not installed")
    chosen = ["-k", "half_precision and greedy"] if plan.rehearse else ["--device", "cuda"]
    files = [str(ROOT / "tests" / "strict" / f"test_{one}.py") for one in TESTS]
    return Job(name, "pytest", ["-q", "-n", "0", *chosen, *options, *files], None, under)


def sanitized(plan: Plan, tool: str) -> Job:
    """Random cases of every kernel under compute-sanitizer.

    Raises:
        MissingError: it is not installed.
    """
    if plan.rehearse:
        raise MissingError("it needs a GPU")
    folders = sorted(Path("/usr/local").glob("cuda*/bin"))
    found = [shutil.which("compute-sanitizer", path=str(folder)) for folder in folders]
    program = next(filter(None, [shutil.which("compute-sanitizer"), *found]), None)
    if program is None:
        raise MissingError("compute-sanitizer is not installed")
    under = "env", "KERNEL_SEEDS=3", program, "--tool", tool, "--error-exitcode", "9"
    return tested(plan, tool, "-k", "the_kernels_do_what_operators_do", under=under)


def shipped(plan: Plan) -> list[str]:
    """The shipped model and its sample in subwords; fairseq's arguments for them."""
    import sentencepiece  # not needed elsewhere in a check

    data, source = plan.work / "shipped", random_models.SOURCE
    text = data / f"{random_models.SPLIT}.{source}-{random_models.TARGET}.{source}"
    if not text.exists():
        data.mkdir(parents=True, exist_ok=True)
        for side, name in ((source, "src"), (random_models.TARGET, "tgt")):
            shutil.copy(SHIPPED / f"dict.{name}.txt", data / f"dict.{side}.txt")
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(SHIPPED / "spm.model"))
        lines = (SHIPPED / "sample.src").read_text(encoding="utf-8").splitlines()
        encoded = pieces.encode(lines, out_type=str)
        text.write_text("".join(" ".join(line) + "\n" for line in encoded), encoding="utf-8")
    return random_models.data_arguments(data, SHIPPED / "checkpoint.pt")


PROFILES: dict[str, Callable[[Plan], list[Stage]]] = {
    "speed": speed,
    "checks": checks,
    "train": train,
}
