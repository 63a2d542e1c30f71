"""How much words that are written at once depend on each other: Table 3 of Zhang et al. (2020), by Eq. 13.

    python -m scripts.recipes.interleaved.pmi DATA --gen-subset test --cpu \\
        --pair "left to right=semi-autoregressive.pt,transformer.pt" \\
        --pair "from both ends=ibdecoder.pt,one-by-one.pt" --output docs/results/pmi-multi30k

A pair is a model that writes z words per step and its twin that writes the same words in the same order one by one
(trained with --one-by-one where there are several directions). Their log-perplexities on the same sentences differ by
the mean pointwise mutual information of what the first one writes without seeing it. Takes the flags of
fairseq-generate but those of decoding. The paper's own numbers are logarithms to base 10: log10(6.95 / 4.04) = 0.235.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass.configs import GenerationConfig

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import write_table
from fairseq_aggdec.search.interleaved.generator import common_geometry
from scripts.recipes import tables

BATCH = 64
OF_DECODING = {
    name: "nothing is decoded"
    for name in GenerationConfig.__dataclass_fields__
    if not name.startswith("_")
}


@dataclass
class Pair:
    """Two models on the same sentences.

    Attributes:
        step: z, words per step of the parallel one.
        parallel, one_by_one: log-perplexities per target token in nats, ``</s>`` counted.
    """

    name: str
    step: int
    parallel: float
    one_by_one: float

    @property
    def information(self) -> float:
        """Eq. 13, in nats per token."""
        return self.parallel - self.one_by_one


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("mutual information")
    group.add_argument(
        "--pair", action="append", required=True, metavar="NAME=PARALLEL,TWIN", dest="pairs"
    )
    group.add_argument("--limit", type=int, help="sentences (default: all), of all lengths")
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json and .md")
    return parser


def parsed(item: str) -> tuple[str, str, str]:
    """Name and two existing files of a ``--pair``."""
    name, _, paths = item.partition("=")
    files = paths.split(",")
    if len(files) != 2:
        raise SystemExit(f"error: --pair {item}: give NAME=PARALLEL,TWIN")
    for path in files:
        if not Path(path).is_file():
            raise SystemExit(f"error: --pair {item}: there is no file {path}")
    return name, files[0], files[1]


def check_twins(name: str, parallel: Geometry, twin: Geometry) -> None:
    """Stops unless the second geometry writes word by word in the order of the first."""
    if parallel.step == 1:
        raise SystemExit(f"error: --pair {name}: its first model writes one word per step")
    if twin.step > 1:
        raise SystemExit(
            f"error: --pair {name}: its second model writes {twin.step} words per step, not one"
        )
    order = (parallel.directions, parallel.middle_to_side)
    if order != (twin.directions, twin.middle_to_side):
        raise SystemExit(f"error: --pair {name}: its models write in different orders")


@torch.inference_mode()
def log_perplexity(model: Any, samples: Sequence[dict[str, Any]], pad: int) -> float:
    """Mean negative log-probability of the target tokens, ``</s>`` counted, in nats."""
    total, tokens = 0.0, 0
    for sample in samples:
        logits, _ = model(**sample["net_input"])  # (B, T, V)
        target = sample["target"]  # (B, T)
        own = logits.float().log_softmax(-1).gather(2, target.unsqueeze(2)).squeeze(2)
        counted = target.ne(pad)
        total -= float(own[counted].double().sum())
        tokens += int(counted.sum())
    return total / tokens


def compare(name: str, paths: Sequence[str], arguments: Sequence[str], limit: int | None) -> Pair:
    sessions = [
        Session(build_parser(), [*arguments, "--path", path], refused=OF_DECODING) for path in paths
    ]
    geometries = [common_geometry(session.models, "--pair") for session in sessions]
    check_twins(name, *geometries)
    found = [
        log_perplexity(
            session.models[0], session.batches(BATCH, limit), session.task.target_dictionary.pad()
        )
        for session in sessions
    ]
    return Pair(name, geometries[0].step, *found)


def markdown(pairs: Sequence[Pair]) -> str:
    """Table 3, a row per pair."""
    heads = ["order", "words per step", "perplexity one by one", "perplexity"]
    rows = [
        [
            *(pair.name, pair.step, math.exp(pair.one_by_one), math.exp(pair.parallel)),
            *(f"{x:.3f}" for x in (pair.information, pair.information / math.log(10))),
        ]
        for pair in pairs
    ]
    return tables.table([*heads, "PMI, nats", "PMI, base 10"], rows)


def main(arguments: Sequence[str]) -> None:
    args, _ = build_parser().parse_known_args(arguments)
    items = [parsed(item) for item in args.pairs]
    pairs = [compare(name, paths, arguments, args.limit) for name, *paths in items]
    table = markdown(pairs)
    print(table)
    results = [asdict(pair) | {"information": pair.information} for pair in pairs]
    command = machine.command("scripts.recipes.interleaved.pmi", arguments)
    title = "Mutual information of words that are written at once"
    write_table(args.output, title, command, table, results)


if __name__ == "__main__":
    main(sys.argv[1:])
