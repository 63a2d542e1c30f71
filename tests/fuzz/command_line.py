"""Random options of ``aggdec-generate``, and what comes of them beside ``--decoding stock``.

A set of options is either accepted, and then the output is that of stock, or left to stock, or refused in one sentence.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fairseq_aggdec.cli import fairseq_commands
from fairseq_aggdec.cli.refusals import REFUSED
from scripts import random_models
from tests.cli.commands import run
from tests.support import make_dictionary

SENTENCES, WORDS = 6, 36
SIZES = [
    *("--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16"),
    *(
        "--decoder-embed-dim",
        "16",
        "--encoder-ffn-embed-dim",
        "32",
        "--decoder-ffn-embed-dim",
        "32",
    ),
    *("--encoder-attention-heads", "2", "--decoder-attention-heads", "2"),
    *("--max-source-positions", "64", "--max-target-positions", "64"),
]
# What stands before the options of a case; the last value of an option counts.
USUAL = ["--cpu", "--num-workers", "0", "--no-progress-bar", "--max-len-b", "20", "--seed", "1"]
# Options that stock reads, too, and values of them; "" for a flag.
SHARED: dict[str, tuple[Any, ...]] = {
    "--beam": (1, 1, 2, 3, 5, 9),
    "--nbest": (1, 2),
    "--lenpen": (0.5, 2, 0, -1),
    "--unkpen": (1, -2),
    "--min-len": (0, 3, 30),
    "--max-len-a": (0.5, 2),
    "--max-len-b": (3, 1, 0),
    "--temperature": (0.5, 2),
    "--prefix-size": (1, 3),
    "--no-repeat-ngram-size": (2, 3),
    "--match-source-len": ("",),
    "--unnormalized": ("",),
    "--no-early-stop": ("",),
    "--sampling": ("",),
    "--sampling-topk": (3,),
    "--sampling-topp": (0.8,),
    "--diversity-rate": (0.5,),
    "--diverse-beam-groups": (1, 2),
    "--print-alignment": ("hard", "soft"),
    "--print-step": ("",),
    "--retain-iter-history": ("",),
    "--retain-dropout": ("",),
    "--score-reference": ("",),
    "--quiet": ("",),
    "--batch-size": (1, 4),
    "--max-tokens": (40,),
    "--skip-invalid-size-inputs-valid-test": ("",),
    "--post-process": ("sentencepiece",),
    "--fp16": ("",),
    "--bf16": ("",),
}
# Options of the plugin.
OWN: dict[str, tuple[Any, ...]] = {
    "--draft-tokens": ("auto", "all", 1, 3, 0, 99, "x"),
    "--draft-tree": ("auto", 9, 0, "x"),
    "--int8": ("none", "drafts", "all", "x"),
    "--strict": (0, 1, 4, -2),
    "--acceptance": ("exact", "top-beta:3:0", "top-beta:0", "top-k", "distance", "min:2", "min:0"),
    "--variant": (
        *(
            "iad-match=unique",
            "iad-match=longest",
            "iad-match=recent",
            "end-condition=all",
            "dedup=2",
            "dedup",
        ),
    ),
    "--draft-from": ("source", "file", "none"),
    "--draft-file": ("drafts.txt", "missing.txt"),
    "--shortlist": (3,),
    "--low-memory": ("",),
    "--no-graphs": ("",),
}
METHODS = ("beam", "beam", "greedy", "iad", "gad", "blockwise", "nar", "interleaved", "lattice")
EXACT = ("beam", "greedy", "iad", "gad", "blockwise")
# With these the output may be another than stock's; stock blocks no n-grams on CPU.
LOSSY = {
    *("--int8", "--acceptance", "--shortlist", "--no-repeat-ngram-size"),
    *("--fp16", "--bf16", "--strict"),
}


@dataclass
class Outcome:
    """How a command ended.

    Attributes:
        status: 0, or 2 where it refused; None after an exception.
        said: on stderr where it refused, or the exception.
        hypotheses: sentence -> (score, tokens) of its n-best list.
    """

    status: int | None
    said: str
    hypotheses: dict[str, list[tuple[float, str]]]


def prepare(folder: Path) -> dict[str, Path]:
    """Writes dictionaries, a test set and lively random models: transformer, other, headed, drafter."""
    dictionary, chance = make_dictionary([f"w{i}" for i in range(WORDS)]), random.Random(1)
    for side in (random_models.SOURCE, random_models.TARGET):
        dictionary.save(str(folder / f"dict.{side}.txt"))
        lines = [
            " ".join(f"w{chance.randrange(WORDS)}" for _ in range(chance.randint(1, 9)))
            for _ in range(SENTENCES)
        ]
        name = f"{random_models.SPLIT}.{random_models.SOURCE}-{random_models.TARGET}.{side}"
        for path in (folder / name, folder / "drafts.txt"):
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    kinds = {
        "transformer": ("transformer", ()),
        "other": ("transformer", ()),
        "headed": ("blockwise_transformer", ("--block-size", "4", "--head-hidden-dim", "8")),
        "drafter": ("nar_drafter", ("--block-size", "5")),
    }
    found = {}
    for seed, (name, (arch, flags)) in enumerate(kinds.items()):
        found[name] = folder / f"{name}.pt"
        random_models.write_checkpoint(found[name], folder, arch, *SIZES, *flags, seed=seed)
        enliven(found[name], seed)
    return found


def enliven(path: Path, seed: int) -> None:
    """Weights of which outputs vary along a sentence and end, as those of ``make_model``."""
    state = torch.load(path, weights_only=True)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in state["model"].items():
        if "embed_tokens" in name:
            weight.normal_(0, 0.4, generator=generator)
        elif weight.dim() > 1 and "embed_positions" not in name:
            weight.normal_(0, 1.5 / weight.size(-1) ** 0.5, generator=generator)
    torch.save(state, path)


@dataclass
class Given:
    """A random command line: its method, its options by name, and the models that it names."""

    decoding: str
    shared: dict[str, Any]
    own: dict[str, Any]
    paths: dict[str, Path]
    folder: Path

    @classmethod
    def of(cls, seed: int, folder: Path, models: dict[str, Path]) -> Given:
        chance = random.Random(seed)

        def some(options: dict[str, tuple[Any, ...]], mean: float) -> dict[str, Any]:
            share = mean / len(options)
            return {o: chance.choice(v) for o, v in options.items() if chance.random() < share}

        decoding = chance.choice(METHODS)
        headed = decoding == "blockwise" or chance.random() < 0.2
        paths = {"--path": models["headed" if headed else "transformer"]}
        if not headed and chance.random() < 0.15:
            paths["--path"] = Path(f"{models['transformer']}:{models['other']}")
        if (decoding in ("gad", "nar")) != (chance.random() < 0.1):
            paths["--drafter-path"] = models["drafter"]
        shared = some(SHARED, chance.choice((1, 3, 5)))
        own = some(OWN, chance.choice((0, 1, 2, 4)))
        return cls(decoding, shared, own, paths, folder)

    @property
    def exact(self) -> bool:
        return self.decoding in EXACT and LOSSY.isdisjoint(self.shared | self.own)

    def arguments(self, stock: bool = False) -> list[str]:
        given = [
            str(self.folder),
            "--source-lang",
            random_models.SOURCE,
            "--target-lang",
            random_models.TARGET,
        ]
        given += ["--dataset-impl", "raw", *USUAL, "--path", str(self.paths["--path"])]
        shared = dict(self.shared)
        if stock and self.decoding != "beam":
            shared["--beam"] = 1
        given += flat(shared)
        if stock:
            return [*given, "--decoding", "stock"]
        own = dict(self.own)
        if "--draft-file" in own:
            own["--draft-file"] = self.folder / own["--draft-file"]
        drafter = self.paths.get("--drafter-path")
        given += ["--drafter-path", str(drafter)] if drafter else []
        return [*given, "--decoding", self.decoding, *flat(own)]


def flat(options: dict[str, Any]) -> list[str]:
    return [str(w) for option, value in options.items() for w in (option, value) if w != ""]


def generate(arguments: list[str]) -> Outcome:
    """``aggdec-generate`` in this process."""
    status: list[int] = []

    def command() -> None:
        sys.argv = ["aggdec-generate", *arguments]
        status.append(fairseq_commands.generate())

    error = StringIO()
    with redirect_stderr(error), mock.patch.object(sys, "argv", []):
        try:
            result = run(command)
        except (Exception, SystemExit) as exception:
            return Outcome(None, f"{type(exception).__name__}: {exception}", {})
    hypotheses: dict[str, list[tuple[float, str]]] = {}
    for name, score, text in re.findall(r"^H-(\S+)\t(\S+)\t(.*)$", result.stdout, re.MULTILINE):
        hypotheses.setdefault(name, []).append((float(score), text))
    return Outcome(status[0], error.getvalue(), hypotheses)


def fault(given: Given, generate: Callable[[list[str]], Outcome] = generate) -> str | None:
    """What is wrong with the outcome of a command line, None where nothing is."""
    ours = generate(given.arguments())
    if ours.status == REFUSED:
        lines = [line for line in ours.said.splitlines() if "error: " in line]
        single = len(lines) == 1 and "Traceback" not in ours.said and len(lines[0]) < 500
        return None if single else f"refused, but not in one sentence: {ours.said!r}"
    if ours.status == 0 and not given.exact:
        return None
    stock = generate(given.arguments(stock=True))
    if ours.status is None:
        if stock.said == ours.said:
            return None  # fairseq's command fails, whatever decodes
        return f"ended with {ours.said}"
    if stock.status != 0:
        return None  # there is nothing to compare with
    return difference(ours.hypotheses, stock.hypotheses)


def difference(
    ours: dict[str, list[tuple[float, str]]], stock: dict[str, list[tuple[float, str]]]
) -> str | None:
    """The first hypotheses that differ by more than a tie: other words of the same score are one."""
    if {k: len(v) for k, v in ours.items()} != {k: len(v) for k, v in stock.items()}:
        return f"other numbers of hypotheses: {ours} and {stock} of stock"
    for name, lists in ours.items():
        for mine, theirs in zip(lists, stock[name], strict=True):
            if not abs(mine[0] - theirs[0]) <= 1e-3:
                return f"sentence {name}: {mine} and {theirs} of stock"
    return None
