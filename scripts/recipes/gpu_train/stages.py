"""The stages of every ``--what``: a model, what it writes, what learns from that, and the tables of it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.recipes.gpu_train.plan import RAW, REHEARSED, Job, MissingError, Plan, Row, Stage

BASE, DISTILLED = "base", "distilled"
BLOCK = 10  # tokens of the pair's drafts
STERN = {"regular": RAW, "fine-tuning": RAW, "distillation": DISTILLED, "both": DISTILLED}
FROZEN = ("regular", "distillation")
BLOCK_SIZE = 8  # of Stern et al.'s heads
# Every model beside another makes it so much slower; so much of the time is planned.
BESIDE, PLANNED = 0.5, 0.8
GEOMETRIES = ((2, 1), (2, 2), (2, 4))
CANDIDATES = (32, 64)
TIMED = 60  # sentences of a table of speed

Stages = list[Stage]


def common(plan: Plan) -> Stages:
    """A Transformer on the data, and what it writes for the training set."""

    def base(seconds: float) -> list[Job]:
        flags = ["--arch=transformer", *plan.size.flags(), *smoothed()]
        return [plan.training(BASE, RAW, flags)]

    def distilled(seconds: float) -> list[Job]:
        return [plan.distillation(DISTILLED, plan.checkpoint(BASE))]

    return [
        Stage(BASE, 150, base, lambda: plan.trained([BASE])),
        Stage(DISTILLED, 40, distilled, list),
    ]


def smoothed(criterion: str = "label_smoothed_cross_entropy") -> list[str]:
    return [f"--criterion={criterion}", "--label-smoothing=0.1"]


def few(plan: Plan, sentences: int) -> list[str]:
    """``--limit`` of a measurement, which a rehearsal has small."""
    return ["--limit", str(4 if plan.rehearse else sentences)]


def bench(
    plan: Plan,
    name: str,
    systems: Sequence[str],
    *more: str,
    sizes: Sequence[int] = (1, 8, 32),
    sentences: int = TIMED,
) -> Job:
    """``aggdec bench``: BLEU, tokens per iteration, acceptance by slot, speed, equality with stock."""
    shown = [str(size) for size in (sizes[:1] if plan.rehearse else sizes)]
    arguments = ["bench", *plan.generation(plan.checkpoint(BASE)), "--batch-sizes", *shown]
    for system in systems:
        arguments += ["--system", system]
    arguments += [*few(plan, sentences), "--output", str(plan.output(name)), *more]
    return Job(name, "fairseq_aggdec.cli.main", arguments)


def tool(plan: Plan, name: str, module: str, path: Path, *more: str) -> Job:
    arguments = [*plan.generation(path), *more, "--output", str(plan.output(name))]
    return Job(name, f"scripts.recipes.{module}", arguments)


# -- a verifier, a drafter and heads


def pair(plan: Plan) -> Stages:
    """A verifier, the paper's drafter, that of `aggdec train-drafter`, and heads: quality, speed, tokens by slot."""
    base, kinds = plan.checkpoint(BASE), ("paper", "chain", "heads")

    def drafts(seconds: float) -> list[Job]:
        plan.source(DISTILLED)  # or say that it is missing, before the verifier is read
        updates = affordable(plan, seconds, len(kinds))
        flags = {
            "paper": published(plan, base),
            "chain": plan.drafter_flags("drafter", base, 1, BLOCK),
            "heads": dense_heads(plan, BLOCK),
        }
        return [plan.training(kind, DISTILLED, flags[kind], updates) for kind in kinds]

    paper = f"--decoding gad --drafter-path {plan.checkpoint('paper')}"
    relaxed = [
        f"GAD++ ({beta}, {tau})={paper} --acceptance top-beta:{beta}:{tau}"
        for beta, tau in ((3, 1.0), (5, 3.0))
    ]
    systems = [
        "fairseq beam 5=--decoding stock --beam 5",
        "fairseq beam 1=--decoding stock --beam 1",
        "ours, beam 5=--decoding beam --beam 5",
        "ours, greedy=--decoding greedy",
        "IAD=--decoding iad",
        f"GAD={paper}",
        *relaxed,
        f"GAD, chain=--decoding gad --drafter-path {plan.checkpoint('chain')}",
        f"blockwise=--decoding blockwise --path {plan.checkpoint('heads')}",
    ]
    half = [] if plan.rehearse else ["--fp16"]
    speed = bench(plan, "speed", systems, "--beam", "1", *half)
    scored = ["ours, greedy=--decoding greedy", f"GAD={paper}", *relaxed]
    quality = bench(plan, "quality", scored, "--beam", "1", *half, sizes=[32], sentences=1000)
    return [
        *common(plan),
        Stage("drafters and heads", 200, drafts, lambda: plan.trained(kinds)),
        measured(plan, "speed", 95, speed),
        measured(plan, "quality", 35, quality),
    ]


def published(plan: Plan, verifier: Path) -> list[str]:
    """The drafter of Ge et al. at the verifier's sizes: whole blocks at once, glancing over its own updates."""
    flags = ["--arch=nar_drafter", *plan.size.flags(), f"--block-size={BLOCK}"]
    flags += [f"--init-encoder-from={verifier}", f"--init-decoder-from={verifier}"]
    return [*flags, "--share-decoder-input-output-embed", *smoothed("glancing_loss")]


def dense_heads(plan: Plan, k: int) -> list[str]:
    """Heads of Stern et al., which learn at once by the mean of their losses: drawn, each had few updates."""
    flags = ["--arch=blockwise_transformer", f"--base-checkpoint={plan.checkpoint(BASE)}"]
    flags += [f"--block-size={k}", "--head-layout=dense", "--criterion=blockwise_loss"]
    return [*flags, "--head-loss=mean", "--head-decay=1", "--label-smoothing=0.1", "--dropout=0.1"]


def affordable(plan: Plan, seconds: float, beside: int) -> int:
    """Updates of each of some models beside each other, as the base's speed tells beforehand.

    Raises:
        MissingError: the base has left no checkpoint.
    """
    base = next(iter(plan.trained([BASE])), {})
    if "updates" not in base or not plan.checkpoint(BASE).exists():
        raise MissingError(f"{BASE} was not trained")
    if plan.rehearse:
        return REHEARSED
    alone = base["updates"] / max(1.0, base["seconds"])  # fairseq logs whole seconds
    return max(2, int(PLANNED * seconds * alone / (1 + BESIDE * (beside - 1))))


def measured(plan: Plan, name: str, weight: float, job: Job) -> Stage:
    """A stage of one measurement, whose rows are what it wrote."""
    return Stage(name, weight, lambda _: [job], lambda: rows_of(plan.results(name)))


def rows_of(record: Any) -> list[Row]:
    """Rows of a result file: of a list, or of several, each with its name."""
    found = record["results"]
    if isinstance(found, dict):
        return [{"part": part} | row for part, rows in found.items() for row in rows]
    return list(found)


# -- Stern et al., Table 1


def stern(plan: Plan) -> Stages:
    """Table 1 of Stern et al. at one k: four settings, dense heads, equal updates."""
    models = [f"{kind}/1={plan.checkpoint(BASE)}" for kind in FROZEN]
    models += [f"{setting}/{BLOCK_SIZE}={plan.checkpoint(setting)}" for setting in STERN]
    times = ["--time-sentences", "2" if plan.rehearse else "50"]
    more = ["--models", *models, "--batch-size=32", *times, *few(plan, 1000)]
    job = tool(plan, "table", "blockwise.table", plan.checkpoint(BASE), *more)
    return [
        *common(plan),
        Stage("heads", 240, lambda seconds: headed(plan, seconds), lambda: plan.trained([*STERN])),
        measured(plan, "table", 90, job),
    ]


def headed(plan: Plan, seconds: float) -> list[Job]:
    """The four models."""
    updates, flags = affordable(plan, seconds, len(STERN)), dense_heads(plan, BLOCK_SIZE)
    return [
        plan.training(
            setting,
            data,
            [*flags, *(["--freeze-base"] if setting in FROZEN else [])],
            updates,
        )
        for setting, data in STERN.items()
    ]


# -- Zhang et al., Figures 4 and 5


def zhang(plan: Plan) -> Stages:
    """Interleaved models by words per direction: BLEU, OTEM and speed (Figure 4), agreement (Figure 5)."""
    names = [f"{h}x{c}" for h, c in GEOMETRIES]

    def models(seconds: float) -> list[Job]:
        return [interleaved(plan, *geometry) for geometry in GEOMETRIES]

    writers = [word for n in names for word in ("--model", f"{n}={plan.checkpoint(n)}")]
    base = plan.checkpoint(BASE)
    sizes = ["1"] if plan.rehearse else ["1", "8"]
    figures = [*writers, "--variant=dedup=2", "--beams=4", "--batch-sizes", *sizes]
    figures += ["--bins=2", *few(plan, 300)]
    stages = [
        Stage("interleaved", 150, models, lambda: plan.trained(names)),
        measured(plan, "figures", 80, tool(plan, "figures", "interleaved.figures", base, *figures)),
    ]
    if plan.subwords:
        more = ["--bpe=sentencepiece", f"--sentencepiece-model={plan.subwords}"]
        more += ["--model", f"Transformer={base}", *writers, *few(plan, 1000)]
        arguments = [*plan.read(base), *more, "--output", str(plan.output("contrast"))]
        job = Job("contrast", "scripts.recipes.interleaved.contrast", arguments)
        stages.append(measured(plan, "contrast", 30, job))
    return [*common(plan), *stages]


def interleaved(plan: Plan, directions: int, words: int) -> Job:
    flags = ["--arch=interleaved_transformer", f"--directions={directions}"]
    flags += [f"--words-per-direction={words}", f"--base-checkpoint={plan.checkpoint(BASE)}"]
    name = f"{directions}x{words}"
    return plan.training(name, DISTILLED, [*flags, *plan.size.flags(), *smoothed()])


# -- Deng and Rush, Table 1


def lattice(plan: Plan) -> Stages:
    """A scorer of lattices of one layer and a plain NAT, on distilled data (Table 1 of Deng and Rush)."""
    base, tables = plan.checkpoint(BASE), plan.folder("tables")
    length = ["--block-size=40"]

    def counted(seconds: float) -> list[Job]:
        arguments = ["lattice-tables", str(plan.folder(DISTILLED)), "--output", str(tables)]
        return [Job("tables", "fairseq_aggdec.cli.main", arguments)]

    def models(seconds: float) -> list[Job]:
        scorer = ["--arch=lattice_transformer", f"--base-checkpoint={base}", "--decoder-layers=1"]
        scorer += ["--markov-order=mixed", f"--dropout={plan.size.dropout}", *smoothed()]
        nat = ["--arch=nar_drafter", *plan.size.flags(1), *length, "--prefixes=none"]
        nat += [f"--init-encoder-from={base}", f"--init-decoder-from={base}"]
        nat += ["--share-decoder-input-output-embed", "--activation-fn=relu"]
        # The baseline of the paper learns without glancing.
        nat += [*smoothed("glancing_loss"), "--glancing-start=0", "--glancing-end=0"]
        flags, updates = {"scorer": scorer, "nat": nat}, affordable(plan, seconds, 2)
        return [plan.training(name, DISTILLED, own, updates) for name, own in flags.items()]

    written = f"--decoding lattice --path {plan.checkpoint('scorer')} --lattice {tables}"
    systems = [
        "fairseq beam 5=--decoding stock --beam 5",
        "fairseq beam 1=--decoding stock --beam 1",
        "ours, greedy=--decoding greedy",
        *(f"lattice, N = {n}={written} --variant lattice-candidates={n}" for n in CANDIDATES),
        f"NAT=--decoding nar --drafter-path {plan.checkpoint('nat')}",
    ]
    return [
        *common(plan),
        Stage("tables", 40, counted, list),
        Stage("scorer and NAT", 150, models, lambda: plan.trained(["scorer", "nat"])),
        measured(plan, "table", 60, bench(plan, "table", systems, "--beam", "1")),
    ]


WHAT: dict[str, Callable[[Plan], Stages]] = {
    "pair": pair,
    "stern": stern,
    "zhang": zhang,
    "lattice": lattice,
}
