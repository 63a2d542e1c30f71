"""A training in minutes: a base, what it writes, drafters and heads that learn from that, and their tables."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.data import data_utils

import fairseq_aggdec
from scripts.recipes.gpu.plan import AGGDEC, Job, MissingError, Plan, Stage

BASE, DISTILLED, KINDS = "base", "distilled", ("paper", "chain", "heads")
BLOCK = 10  # tokens of a draft
LONGEST = 100000  # updates of a training that only the clock ends
EPOCH = 900  # updates: the ends of short epochs, each with a new loader, would take longer than the updates
MAX_TOKENS = 16384  # of a minibatch
# Every model beside another makes it so much slower; so much of the time is planned.
BESIDE, PLANNED = 0.5, 0.8
TIMED, SCORED = 60, 1000  # sentences of the table of speed, and of that of BLEU


def train(plan: Plan) -> list[Stage]:
    """A base-size verifier, the drafter of Ge et al., that of `aggdec train-drafter`, and heads; speed and BLEU."""
    base = checkpoint(plan, BASE)

    def verifier(seconds: float) -> list[Job]:
        flags = ["--arch=transformer", *sizes(plan), "--criterion=label_smoothed_cross_entropy"]
        return [training(plan, BASE, plan.data, flags, LONGEST)]

    def distilled(seconds: float) -> list[Job]:
        flags = ["distill", str(plan.data), "--output", str(plan.work / DISTILLED)]
        flags += ["--path", str(base), "--batch-size=256", "--decoding=greedy", "--beam=1"]
        flags += ["--keep-cut", "--max-len-a=1.2", "--max-len-b=10", *plan.device]
        return [Job(DISTILLED, AGGDEC, flags, done(plan, DISTILLED))]

    def drafters(seconds: float) -> list[Job]:
        data = plan.work / DISTILLED
        if not (data / "distillation.json").exists():  # no raw data under a distilled name
            raise MissingError(f"{DISTILLED} has not ended")
        updates = affordable(plan, seconds)
        return [training(plan, kind, data, learning(plan, kind), updates) for kind in KINDS]

    stages = [
        Stage(BASE, 150, verifier),
        Stage(DISTILLED, 40, distilled),
        Stage("drafters", 200, drafters),
    ]
    paper = f"--decoding gad --drafter-path {checkpoint(plan, 'paper')}"
    scored = ["ours, greedy=--decoding greedy", f"GAD={paper}"]
    scored += [
        f"GAD++ ({beta}, {tau})={paper} --acceptance top-beta:{beta}:{tau}"
        for beta, tau in ((3, 1.0), (5, 3.0))
    ]
    timed = [
        "fairseq beam 5=--decoding stock --beam 5",
        "fairseq beam 1=--decoding stock --beam 1",
        "ours, beam 5=--decoding beam --beam 5",
        "IAD=--decoding iad",
        *scored,
        f"GAD, chain=--decoding gad --drafter-path {checkpoint(plan, 'chain')}",
        f"blockwise=--decoding blockwise --path {checkpoint(plan, 'heads')}",
    ]
    folders = [str(plan.work), str(plan.out)]
    shown = ["8"] if plan.rehearse else ["1", "8", "32"]
    return [
        *stages,
        Stage("drafted", 95, lambda _: [table(plan, "drafted", timed, TIMED, shown)]),
        Stage("quality", 35, lambda _: [table(plan, "quality", scored, SCORED, shown[-1:])]),
        Stage("halves", 15, lambda _: [Job("halves", "scripts.recipes.gpu.halves", folders)]),
    ]


def table(
    plan: Plan, name: str, systems: Sequence[str], sentences: int, batches: Sequence[str]
) -> Job:
    """``aggdec bench`` of what was trained: BLEU, tokens per iteration, speed, equality with stock."""
    base = checkpoint(plan, BASE)
    if not base.exists():
        raise MissingError(f"{BASE} was not trained")
    subwords = (plan.data.parent / "subwords" / "spm.model").exists()
    flags = [str(plan.data), "--path", str(base), "--gen-subset=test", "--beam", "1", *plan.half]
    flags += ["--max-len-a=1.2", "--max-len-b=10"]
    flags += ["--post-process=sentencepiece"] if subwords else []
    flags += ["--limit", str(4 if plan.rehearse else sentences), "--batch-sizes", *batches]
    return plan.bench(name, *flags, *(word for one in systems for word in ("--system", one)))


def learning(plan: Plan, kind: str) -> list[str]:
    """Architecture and loss of what drafts."""
    base = checkpoint(plan, BASE)
    if kind == "paper":  # whole blocks at once, glancing over its own updates
        flags = ["--arch=nar_drafter", *sizes(plan), f"--init-encoder-from={base}"]
        flags += [f"--init-decoder-from={base}", "--share-decoder-input-output-embed"]
        flags += ["--criterion=glancing_loss"]
    elif kind == "chain":  # as `aggdec train-drafter` has it
        flags = ["--arch=nar_drafter", *sizes(plan, 1), f"--share-verifier-encoder={base}"]
        flags += [f"--init-decoder-from={base}", "--share-decoder-input-output-embed"]
        flags += ["--slot-predicts=next", "--prefix-attention=causal", "--slot-chain"]
        flags += ["--slot-decay=0.8", "--criterion=glancing_loss"]
    else:  # of Stern et al., which learn at once by the mean of their losses: drawn, each had few updates
        flags = ["--arch=blockwise_transformer", f"--base-checkpoint={base}", "--head-layout=dense"]
        flags += ["--criterion=blockwise_loss", "--head-loss=mean", "--head-decay=1"]
    return [*flags, f"--block-size={BLOCK}"]


def sizes(plan: Plan, layers: int | None = None) -> list[str]:
    """Base size, in a rehearsal a tiny one; ``layers``: of the decoder."""
    deep, width, inner, heads = (1, 16, 16, 2) if plan.rehearse else (6, 512, 2048, 8)
    found = [f"--encoder-layers={deep}", f"--decoder-layers={layers or deep}"]
    for side in ("encoder", "decoder"):
        found += [f"--{side}-embed-dim={width}", f"--{side}-ffn-embed-dim={inner}"]
        found += [f"--{side}-attention-heads={heads}"]
    return [*found, "--share-all-embeddings", "--dropout=0.3"]


def training(plan: Plan, name: str, data: Path, flags: Sequence[str], updates: int) -> Job:
    """fairseq-train, without anything that takes time beside training; schedules of losses end with ``updates``."""
    source, target = languages(plan)
    common = [str(upsampled(plan, name, data)), "--user-dir", fairseq_aggdec.__path__[0]]
    common += ["--task=translation_aggdec", "--source-lang", source, "--target-lang", target]
    common += ["--optimizer=adam", "--adam-betas=(0.9, 0.98)", "--clip-norm=1.0", "--seed=1"]
    common += ["--lr=7e-4", "--lr-scheduler=inverse_sqrt", "--warmup-updates=400"]
    common += ["--label-smoothing=0.1", "--required-batch-size-multiple=1", "--upsample-primary=1"]
    common += ["--disable-validation", "--no-epoch-checkpoints", "--no-save-optimizer-state"]
    common += ["--save-interval-updates=0", "--validate-interval-updates=0", "--log-format=json"]
    common += ["--save-dir", str(checkpoint(plan, name).parent), *flags]
    if plan.rehearse:  # stock fairseq's --bf16 does not run on a CPU
        common += ["--max-update=2", "--max-tokens=400", "--log-interval=1", "--cpu"]
    else:
        common += [f"--max-update={updates}", f"--max-tokens={MAX_TOKENS}", "--log-interval=25"]
        common += ["--num-workers=2", "--bf16"]
    return Job(name, "fairseq_cli.train", common, done(plan, name), trains=True)


def upsampled(plan: Plan, name: str, data: Path) -> Path:
    """A folder with the data of a job, its training set so often that an epoch has :data:`EPOCH` updates.

    The copies are links, which fairseq reads as parts of the set (train, train1, ...).
    """
    folder, pair = plan.work / f"{name}-data", "-".join(languages(plan))
    if folder.exists():
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    for part in range(2 if plan.rehearse else copies(plan, data)):
        for path in data.glob(f"train.{pair}.*"):
            link(path, partial / path.name.replace("train", f"train{part or ''}", 1))
    for path in [*data.glob("dict.*.txt"), *data.glob("valid.*"), *data.glob("test.*")]:
        link(path, partial / path.name)
    partial.rename(folder)
    return folder


def copies(plan: Plan, data: Path) -> int:
    """How often the training set is read in an epoch."""
    path = data / f"train.{'-'.join(languages(plan))}"
    sides = [data_utils.load_indexed_dataset(f"{path}.{side}", None) for side in languages(plan)]
    # Sizes are views of files that are closed with their data sets.
    longer = sum(map(max, *(side.sizes.tolist() for side in sides)))
    return max(1, math.ceil(EPOCH * MAX_TOKENS / max(1, longer)))


def link(path: Path, place: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(path.resolve())


def languages(plan: Plan) -> tuple[str, str]:
    source, target = data_utils.infer_language_pair(str(plan.data))
    if source is None or target is None:
        raise SystemExit(f"error: --data {plan.data} is no folder of fairseq-preprocess")
    return source, target


def affordable(plan: Plan, seconds: float) -> int:
    """Updates of each of the models that draft, beside each other, as the base's speed tells beforehand.

    Raises:
        MissingError: the base has left no checkpoint.
    """
    base = logged(plan.log(BASE)) if checkpoint(plan, BASE).exists() else {}
    if not base:
        raise MissingError(
            f"{BASE} was not trained, or its log is gone: name the folder of its --out"
        )
    alone = int(base["num_updates"]) / max(1.0, float(base["wall"]))  # fairseq logs whole seconds
    return max(2, int(PLANNED * seconds * alone / (1 + BESIDE * (len(KINDS) - 1))))


def logged(log: Path) -> dict[str, Any]:
    """The last line that fairseq-train logged as JSON of training."""
    found: dict[str, Any] = {}
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    for match in re.finditer(r"\btrain_inner\b[ |:]+(\{.*\})$", text, re.MULTILINE):
        found = json.loads(match[1])
    return found


def checkpoint(plan: Plan, name: str) -> Path:
    return plan.work / name / "checkpoint_last.pt"


def done(plan: Plan, name: str) -> Path:
    return plan.work / f"{name}.done"
