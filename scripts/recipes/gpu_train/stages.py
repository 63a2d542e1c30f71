"""The stages of every ``--what``: a model, what it writes, what learns from that, and the tables of it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq_aggdec.records.results import write_text
from scripts.recipes.gpu_train.plan import Job, Plan, Row, Stage

BASE, DISTILLED = "base", "distilled"
BLOCK = 10  # tokens of the pair's drafts
STERN = {"regular": "raw", "fine-tuning": "raw", "distillation": DISTILLED, "both": DISTILLED}
FROZEN = ("regular", "distillation")
BLOCK_SIZES = (8, 4)
# Four models beside each other are this much slower, each, than one alone; so much of their time is planned.
BESIDE, PLANNED = 2.5, 0.8
GEOMETRIES = ((2, 1), (2, 2), (2, 4))
CANDIDATES = (32, 64)
TIMED = 200  # sentences of a table of speed

Stages = list[Stage]


def common(plan: Plan) -> Stages:
    """A Transformer on the data, and what it writes for the training set."""

    def base(seconds: float) -> list[Job]:
        flags = ["--arch=transformer", *plan.size.flags(), *smoothed()]
        return [plan.training(BASE, "raw", flags)]

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


def bench(plan: Plan, name: str, systems: Sequence[str], *more: str) -> Job:
    """``aggdec bench``: BLEU, tokens per iteration, acceptance by slot, speed, equality with stock."""
    sizes = ["1"] if plan.rehearse else ["1", "8", "32"]
    arguments = ["bench", *plan.generation(plan.checkpoint(BASE)), "--batch-sizes", *sizes]
    for system in systems:
        arguments += ["--system", system]
    arguments += [*few(plan, TIMED), "--output", str(plan.output(name)), *more]
    return Job(name, "fairseq_aggdec.cli.main", arguments)


def tool(plan: Plan, name: str, module: str, path: Path, *more: str) -> Job:
    arguments = [*plan.generation(path), *more, "--output", str(plan.output(name))]
    return Job(name, f"scripts.recipes.{module}", arguments)


# -- a verifier, a drafter and heads


def pair(plan: Plan) -> Stages:
    """A verifier, a drafter of one layer and heads: quality, tokens per iteration by slot, speed."""
    base, kinds = plan.checkpoint(BASE), ("drafter", "heads")

    def drafts(seconds: float) -> list[Job]:
        return [
            plan.training(kind, DISTILLED, plan.drafter_flags(kind, base, 1, BLOCK))
            for kind in kinds
        ]

    systems = [
        "fairseq beam 5=--decoding stock --beam 5",
        "fairseq beam 1=--decoding stock --beam 1",
        "ours, beam 5=--decoding beam --beam 5",
        "ours, greedy=--decoding greedy",
        "IAD=--decoding iad",
        f"GAD=--decoding gad --drafter-path {plan.checkpoint('drafter')}",
        f"GAD, auto=--decoding gad --draft-tokens auto --drafter-path {plan.checkpoint('drafter')}",
        f"blockwise=--decoding blockwise --path {plan.checkpoint('heads')}",
    ]
    stages = [Stage("drafter and heads", 150, drafts, lambda: plan.trained(kinds))]
    for precision in ("fp32",) if plan.rehearse else ("fp32", "fp16"):
        name, more = f"table-{precision}", [] if precision == "fp32" else [f"--{precision}"]
        stages.append(measured(plan, name, 50, bench(plan, name, systems, "--beam", "1", *more)))
    return [*common(plan), *stages]


def measured(plan: Plan, name: str, weight: float, job: Job) -> Stage:
    """A stage of one measurement, whose rows are what it wrote."""
    return Stage(name, weight, lambda _: [job], lambda: rows_of(plan.results(name)))


def rows_of(record: Any) -> list[Row]:
    """Rows of a result file: of a list, or of several, each with its name."""
    found = record["results"] if "results" in record else record["scores"]
    if isinstance(found, dict):
        return [{"part": part} | row for part, rows in found.items() for row in rows]
    return list(found)


# -- Stern et al., Table 1


def stern(plan: Plan) -> Stages:
    """Table 1 of Stern et al.: four settings, dense heads, one head drawn per minibatch, equal updates."""
    stages = [
        Stage(
            f"k = {k}",
            130,
            lambda seconds, k=k: headed(plan, k, seconds),  # type: ignore[misc]
            lambda k=k: plan.trained([heads_name(s, k) for s in STERN]),  # type: ignore[misc]
        )
        for k in BLOCK_SIZES
    ]
    models = [f"{kind}/1={plan.checkpoint(BASE)}" for kind in FROZEN]
    models += [f"{s}/{k}={plan.checkpoint(heads_name(s, k))}" for s in STERN for k in BLOCK_SIZES]
    times = ["--time-sentences", "2" if plan.rehearse else "50"]
    more = ["--models", *models, "--batch-size=32", *times, *few(plan, 1000)]
    job = tool(plan, "table", "blockwise.table", plan.checkpoint(BASE), *more)
    return [*common(plan), *stages, measured(plan, "table", 90, job)]


def heads_name(setting: str, k: int) -> str:
    return f"{setting}-{k}"


def headed(plan: Plan, k: int, seconds: float) -> list[Job]:
    """The four models of one k."""
    flags = ["--arch=blockwise_transformer", f"--base-checkpoint={plan.checkpoint(BASE)}"]
    flags += [f"--block-size={k}", "--head-layout=dense", "--criterion=blockwise_loss"]
    flags += ["--head-loss=sample", "--head-decay=1", "--label-smoothing=0.1", "--dropout=0.1"]
    flags += [f"--max-update={equal_updates(plan, seconds)}"]
    return [
        plan.training(
            heads_name(setting, k),
            data,
            [*flags, *(["--freeze-base"] if setting in FROZEN else [])],
        )
        for setting, data in STERN.items()
    ]


def equal_updates(plan: Plan, seconds: float) -> int:
    """Updates of every model of the table, which the base's speed tells beforehand; a later stage has as many."""
    file = plan.work / "updates"
    if not file.exists():
        (base,) = plan.trained([BASE])
        alone = base["updates"] / max(1.0, base["seconds"])  # fairseq logs whole seconds
        write_text(file, str(max(2, int(PLANNED * seconds * alone / BESIDE))))
    return int(file.read_text(encoding="utf-8"))


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
        flags = {"scorer": scorer, "nat": nat}
        return [plan.training(name, DISTILLED, own) for name, own in flags.items()]

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
