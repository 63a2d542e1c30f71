"""A drafter, or block heads, for a trained model: distil what the model writes, train on that, average the result.

Every step has a folder in OUTPUT and, in ``settings.json``, what it was made with. A step that is there is kept. One
that was made with other settings is moved aside and made anew. An interrupted training goes on.
"""

import collections
import json
import logging
import re
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.data import data_utils

import fairseq_aggdec
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import write_text
from fairseq_aggdec.stored import progress
from fairseq_aggdec.stored.loading import load_checkpoint

logger = logging.getLogger(__name__)

KINDS = ("drafter", "heads")
EVERY = 250  # updates between two validations, and two checkpoints
MAX_TOKENS = {"drafter": 4000, "heads": 2000}
BOUND = """
import ctypes, runpy, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def distilled_by(flags: Sequence[str]) -> Namespace:
    """Languages and limits of length among the options of distillation."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for names in (
        ("-s", "--source-lang"),
        ("-t", "--target-lang"),
        ("--max-len-a",),
        ("--max-len-b",),
    ):
        parser.add_argument(*names)
    return parser.parse_known_args(flags)[0]


def languages(data: Path, flags: Sequence[str]) -> tuple[str, str]:
    """Source and target language: what the options of distillation say, else the names of the files.

    Raises:
        SystemExit: neither says.
    """
    named, inferred = distilled_by(flags), data_utils.infer_language_pair(str(data))
    source, target = named.source_lang or inferred[0], named.target_lang or inferred[1]
    if not source or not target:
        raise SystemExit(
            f"error: {data} does not tell the languages: --distill-flags='-s SOURCE -t TARGET'"
        )
    return source, target


def sizes(verifier: Path) -> list[str]:
    """Sizes of the verifier, whose encoder and embeddings the drafter shares, as options of fairseq-train."""
    state = load_checkpoint(str(verifier))
    model: Any = (state.get("cfg") or {}).get("model") or state.get("args")
    named = model if hasattr(model, "keys") else vars(model)
    flags = [f"--encoder-layers={named['encoder_layers']}"]
    for side in ("encoder", "decoder"):
        for name in ("embed_dim", "ffn_embed_dim", "attention_heads"):
            flags.append(f"--{side}-{name.replace('_', '-')}={named[f'{side}_{name}']}")
        for name in ("normalize_before", "learned_pos"):
            if named.get(f"{side}_{name}"):
                flags.append(f"--{side}-{name.replace('_', '-')}")
    return [*flags, f"--activation-fn={named.get('activation_fn', 'relu')}"]


def precision(args: Namespace) -> list[str]:
    """Options of the precision of training: fp16 on a GPU, bfloat16 on a CPU with AMX.

    PyTorch compiles every new shape of a bfloat16 product, which costs other CPUs more than it saves.
    """
    if args.precision != "auto":
        return [] if args.precision == "fp32" else [f"--{args.precision}"]
    if torch.cuda.is_available() and not args.cpu:
        return ["--fp16"]
    return ["--amp"] if "amx_bf16" in machine.processor_flags() else []


class DrafterTraining:
    """The steps from a model and its data to a drafter; ``args`` are of ``aggdec train-drafter``."""

    def __init__(self, args: Namespace, run: Callable[[str, Sequence[str], Path | None], None]):
        self.args, self.run = args, run
        self.output: Path = args.output or args.data.with_name(f"{args.data.name}-drafter")
        self.languages = languages(args.data, args.distill_flags)
        self.cpu = ["--cpu"] if args.cpu or not torch.cuda.is_available() else []

    def make(self) -> Path:
        """Runs all steps that are not done yet; gives the checkpoint."""
        self.output.mkdir(parents=True, exist_ok=True)
        options = [str(self.args.data), *self.distillation_flags()]
        made_with = self.of_data() | {"options": options}
        self.step("distilled", made_with, lambda to: self.distil(options, to), "distillation.json")
        training = self.training_flags()
        settings = {"distilled": self.settings.get("distilled"), "options": training}
        source = str(self.output / "distilled")
        folder = self.step(self.args.kind, settings, lambda to: self.train(source, training, to))
        return folder / ("averaged.pt" if self.args.average > 1 else "checkpoint_best.pt")

    # -- steps

    @property
    def settings(self) -> dict[str, Any]:
        """Step -> what its folder was made with."""
        path = self.output / "settings.json"
        stored: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return stored

    def of_data(self) -> dict[str, Any]:
        return {"data": str(self.args.data), "verifier": str(self.args.path)}

    def step(
        self, name: str, settings: dict[str, Any], make: Callable[[Path], None], marker: str = ""
    ) -> Path:
        """Makes OUTPUT/NAME, unless it is there.

        Args:
            settings: what it is made with.
            make: fills a folder; what an interrupted try left in it may be used.
            marker: file of a folder that is whole; none: the folder gets its name when it is whole.
        """
        folder, partial = self.output / name, self.output / f"{name}.partial"
        known = self.settings
        for made in (folder, partial):
            if known.get(name, settings) != settings and made.exists():
                aside = made.with_name(f"{made.name}.before-{time.strftime('%Y%m%d-%H%M%S')}")
                logger.info(f"{name}: made with other settings; made anew, the former is {aside}")
                made.rename(aside)
        text = json.dumps(known | {name: settings}, indent=1)
        write_text(self.output / "settings.json", text + "\n")
        if (folder / marker).exists():
            logger.info(f"{name}: done already, kept")
            return folder
        logger.info(f"{name}: begins")
        if not marker:
            partial.mkdir(exist_ok=True)
        make(folder if marker else partial)
        if not marker:
            partial.rename(folder)
        logger.info(f"{name}: done")
        return folder

    def distillation_flags(self) -> list[str]:
        """Options of aggdec distill. Outputs that were cut are kept: the verifier will write such ones again."""
        flags = ["--path", str(self.args.path), "--batch-size", "64", *self.cpu]
        flags += [*self.args.distill_flags, "--decoding", "greedy", "--beam", "1", "--keep-cut"]
        if not self.cpu:
            flags += ["--bf16"]
        return flags

    def distil(self, options: Sequence[str], folder: Path) -> None:
        module, arguments = (
            "fairseq_aggdec.cli.main",
            ["distill", *options, "--output", str(folder)],
        )
        gpus = 0 if self.cpu else torch.cuda.device_count()
        if gpus > 1:
            arguments = ["--standalone", f"--nproc-per-node={gpus}", "-m", module, *arguments]
            module = "torch.distributed.run"
        self.run(module, arguments, None)

    def training_flags(self) -> list[str]:
        """Options of fairseq-train but DATA and the folder of checkpoints."""
        args, verifier = self.args, str(self.args.path)
        if args.kind == "drafter":
            flags = ["--task=translation_aggdec", "--arch=nar_drafter", *sizes(args.path)]
            flags += [f"--decoder-layers={args.layers}", "--criterion=glancing_loss"]
            flags += ["--slot-decay=0.8", f"--eval-acceptance={verifier}"]
            flags += [f"--share-verifier-encoder={verifier}", f"--init-decoder-from={verifier}"]
            flags += ["--share-decoder-input-output-embed", "--slot-predicts=next"]
            flags += ["--prefix-attention=causal"]
        else:
            # Heads fill a block behind every position, of which a part is enough.
            flags = ["--task=translation", "--arch=blockwise_transformer", "--freeze-base"]
            flags += [f"--base-checkpoint={verifier}", "--identity-first-head"]
            flags += [f"--head-layers={args.layers}", "--head-layout=per-head"]
            flags += ["--head-hidden-dim=32", "--criterion=blockwise_loss", "--head-loss=mean"]
            flags += ["--head-decay=0.8", "--head-positions=0.2"]
        warm_up = args.max_update // 10 if args.max_update < 4000 else 400
        flags += [f"--max-tokens={args.max_tokens or MAX_TOKENS[args.kind]}"]
        flags += ["--user-dir", fairseq_aggdec.__path__[0], *self.cpu, *precision(args)]
        flags += [f"--seed={args.seed}", f"--block-size={args.block_size}", "--slot-chain"]
        flags += ["--dropout=0", "--label-smoothing=0.1", "--optimizer=adam"]
        flags += ["--adam-betas=(0.9, 0.98)", "--clip-norm=3.0", f"--lr={args.lr}"]
        flags += ["--lr-scheduler=polynomial_decay", f"--warmup-updates={warm_up}"]
        flags += [f"--total-num-update={args.max_update}", f"--max-update={args.max_update}"]
        flags += ["--required-batch-size-multiple=1", "--num-workers=0", "--upsample-primary=1"]
        flags += [f"--patience={args.patience}", "--best-checkpoint-metric=mean_accepted"]
        flags += ["--maximize-best-checkpoint-metric", f"--save-interval-updates={EVERY}"]
        flags += [f"--validate-interval-updates={EVERY}", "--validate-interval=1000000"]
        flags += [f"--keep-interval-updates={args.average}", "--no-epoch-checkpoints"]
        flags += ["--source-lang", self.languages[0], "--target-lang", self.languages[1]]
        return [*flags, *args.train_flags, "--log-format=simple", "--log-interval=50"]

    def train(self, data: str, flags: Sequence[str], folder: Path) -> None:
        log = folder / "train.log"
        self.run("fairseq_cli.train", [data, *flags, "--save-dir", str(folder)], log)
        if self.args.average > 1:
            kept = sorted(folder.glob("checkpoint_*_*.pt"), key=lambda path: path.stat().st_mtime)
            last = kept[-self.args.average :] or [folder / "checkpoint_last.pt"]
            arguments = ["average-checkpoints", *map(str, last)]
            arguments += ["--output", str(folder / "averaged.pt")]
            self.run("fairseq_aggdec.cli.main", arguments, None)


def bound(module: str, arguments: Sequence[str]) -> list[str]:
    """``python -m MODULE ARGUMENTS`` with this interpreter, for a process that on Linux ends when the one that started
    it does, even by SIGKILL: the same command again must find nobody at work in its folders."""
    return [sys.executable, "-c", BOUND, module, *arguments]


def updates_in(arguments: Sequence[str]) -> int:
    """The number of updates that a command line of fairseq-train asks for; 0: it does not say."""
    limits = [word for word in arguments if word.startswith("--max-update=")]
    return int(limits[-1].partition("=")[2]) if limits else 0


def with_progress(lines: Iterable[str], updates: int) -> Iterator[str]:
    """The lines of a log, which go to stderr too; on a terminal a bar below them counts the updates of a training.

    Args:
        updates: of the whole training, which may begin in the middle of it.
    """
    with progress.counting("training", " updates", updates) as bar:
        for line in lines:
            bar.write(line, file=sys.stderr, end="")
            if match := re.search(r"\bnum_updates=(\d+)", line):
                done = int(match[1])
                if not bar.n:  # what an earlier run has done took no time of this one
                    bar.initial = bar.n = bar.last_print_n = done
                bar.update(done - bar.n)
            yield line


def run_module(module: str, arguments: Sequence[str], log: Path | None) -> None:
    """``python -m MODULE ARGUMENTS`` with this interpreter.

    Args:
        log: gets what it prints, beside the terminal. None: the terminal alone.

    Raises:
        SystemExit: it failed.
    """
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if log else {}
    last = collections.deque[str](maxlen=12)
    with subprocess.Popen(bound(module, arguments), text=True, **pipe) as child:
        if log is not None and child.stdout is not None:
            with log.open("a", encoding="utf-8") as file:
                for line in with_progress(child.stdout, updates_in(arguments)):
                    last.append(line)
                    file.write(line)
    if child.returncode:
        raise SystemExit(
            f"error: {module} failed with status {child.returncode}; once the reason is gone, the same command goes "
            f"on\n{''.join(last)}"
        )
