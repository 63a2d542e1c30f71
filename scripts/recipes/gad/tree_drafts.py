"""What trees of drafted tokens bring: tokens per iteration, by their number of nodes, and what they cost.

    python -m scripts.recipes.gad.tree_drafts DATA --path verifier.pt --drafter-path drafter.pt \\
        --decoding gad --gen-subset test \\
        --cpu --max-len-a 1.2 --max-len-b 10 --post-process sentencepiece --nodes 8 16 32 64 auto \\
        --limit 300 --output docs/results/tree-drafts

takes every flag of fairseq-generate; sentences are decoded one at a time. Beside every line stands how many outputs are
not those of stock fairseq with --beam 1. Processor time, of this process alone, is measured in a second pass over some
sentences, all systems in turn; its ratio to greedy decoding is what counts. --relaxed BETA,TOLERANCE adds the same with
--acceptance top-beta.

The second table says where the time goes, in batches of the sizes of --batches: milliseconds of drafts and of
verification, each of one call for the whole batch.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.records.quality import bleu
from fairseq_aggdec.records.results import write_table
from fairseq_aggdec.search.counters import Counters

CHAIN = "chain"
COLUMNS = (
    "acceptance",
    "nodes",
    "tokens / iteration",
    "drafted / iteration",
    "BLEU",
    "differ from stock",
    "processor ms / sentence",
    "x greedy",
)
PART_COLUMNS = (
    "batch",
    "nodes",
    "tokens / iteration",
    "ms / draft",
    "ms / verification",
    "ms / sentence",
    "x greedy",
)
# Options of the task that this tool sets itself.
CHOSEN = {
    "acceptance": "--relaxed says it",
    "draft_tree": "--nodes says it",
}
MEASURED = 4  # batches at least


@dataclass
class Line:
    """One system; ``milliseconds`` of the processor per sentence, ``speedup`` over greedy decoding."""

    acceptance: str
    nodes: str
    tokens: int
    iterations: int
    drafted: int
    bleu: float
    differ: int
    milliseconds: float = 0.0
    speedup: float = 0.0


@dataclass
class Parts:
    """Where the time of one system goes in batches of one size: milliseconds of a call, and of a sentence."""

    batch: int
    nodes: str
    tokens: float
    draft: float
    verify: float
    sentence: float
    speedup: float


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("trees")
    group.add_argument("--nodes", nargs="+", default=["8", "16", "32", "64", "auto"], metavar="N")
    group.add_argument("--relaxed", nargs="*", default=[], metavar="BETA,TOLERANCE")
    group.add_argument("--limit", type=int, help="sentences to decode (default: all)")
    group.add_argument("--timed", type=int, default=60, help="sentences that are timed")
    group.add_argument(
        "--batches", nargs="*", type=int, default=[1, 8, 32], help="sizes for the table of parts"
    )
    group.add_argument("--title", default="Trees of drafted tokens")
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json and OUTPUT.md")
    return parser


def generator(
    session: Session, nodes: str | None = None, relaxed: str = "", decoding: str = ""
) -> tuple[Any, Counters]:
    """A generator with trees of so many nodes; None for a chain."""
    cfg = session.task.cfg
    cfg.draft_tree = nodes
    cfg.acceptance = f"top-beta:{relaxed.replace(',', ':')}" if relaxed else "exact"
    return session.generator(decoding or str(cfg.decoding))


def decode_all(
    session: Session, made: Any, batches: Sequence[dict[str, Any]]
) -> dict[int, list[int]]:
    found = {}
    for sample in batches:
        (hypothesis,) = session.decode(made, sample)
        found[int(sample["id"][0])] = hypothesis["tokens"].tolist()
    return found


def processor_seconds(
    systems: Sequence[Callable[[dict[str, Any]], object]], batches: Sequence[dict[str, Any]]
) -> list[float]:
    """Of every system, the sentences in turn."""
    spent = [0.0] * len(systems)
    for sample in batches:
        for place, decode in enumerate(systems):
            began = time.process_time()
            decode(sample)
            spent[place] += time.process_time() - began
    return spent


def measure(args: argparse.Namespace, session: Session) -> list[Line]:
    """A line for every acceptance and size of tree."""
    batches = session.batches(1, args.limit)
    expected = decode_all(session, generator(session, decoding="stock")[0], batches)
    greedy, counters = generator(session, decoding="greedy")
    made, lines = [greedy], []
    plan = [("", "greedy"), *((r, n) for r in ("", *args.relaxed) for n in (CHAIN, *args.nodes))]
    for relaxed, nodes in plan:
        one = greedy
        if nodes != "greedy":
            one, counters = generator(session, None if nodes == CHAIN else nodes, relaxed)
            made.append(one)
        found = decode_all(session, one, batches)
        differ = sum(tokens != expected[sentence] for sentence, tokens in found.items())
        score, _ = bleu(session, found)
        name = f"top-beta ({relaxed})" if relaxed else "exact"
        lines.append(
            Line(name, nodes, counters.tokens, counters.iterations, counters.drafted, score, differ)
        )
        print(row(lines[-1]), flush=True)
    timed = batches[:: max(1, len(batches) // args.timed)]
    calls = [lambda sample, one=one: session.decode(one, sample) for one in made]
    spent = processor_seconds(calls, timed)
    for line, seconds in zip(lines, spent, strict=True):
        line.milliseconds = 1e3 * seconds / len(timed)
        line.speedup = spent[0] / seconds
    return lines


def parts(args: argparse.Namespace, session: Session, batch: int) -> list[Parts]:
    """What drafts and verification of greedy decoding and of every size of tree take, all systems in turn."""
    batches = session.batches(batch, max(args.timed, MEASURED * batch))
    # What learns from times is another thing after every sentence.
    names = ("greedy", CHAIN, *(nodes for nodes in args.nodes if nodes.isdecimal()))
    systems = []
    for name in names:
        nodes = None if name in ("greedy", CHAIN) else name
        made, _ = generator(session, nodes, decoding="greedy" if name == "greedy" else "")
        session.decode(made, batches[0])
        made.counters = Counters(
            read=time.perf_counter if session.cuda else time.process_time,
            wait=torch.cuda.synchronize if session.cuda else None,
        )
        systems.append(made)
    for sample in batches:
        for made in systems:
            session.decode(made, sample)
    found: list[Parts] = []
    for name, made in zip(names, systems, strict=True):
        counted = made.counters
        a_call = 1e3 / counted.calls
        sentence = 1e3 * sum(counted.seconds.values()) / counted.sentences
        draft, verify = (a_call * counted.seconds[part] for part in ("draft", "verify"))
        speedup = found[0].sentence / sentence if found else 1.0
        tokens = counted.mean_accepted_tokens
        found.append(Parts(batch, name, tokens, draft, verify, sentence, speedup))
        print(part_row(found[-1]), flush=True)
    return found


def row(line: Line) -> str:
    cells = [
        line.acceptance,
        line.nodes,
        f"{line.tokens / line.iterations:.2f}",
        f"{line.drafted / line.iterations:.1f}",
        f"{line.bleu:.2f}",
        str(line.differ),
        f"{line.milliseconds:.1f}",
        f"{line.speedup:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def part_row(line: Parts) -> str:
    cells = [str(line.batch), line.nodes, f"{line.tokens:.2f}"]
    cells += [f"{value:.2f}" for value in (line.draft, line.verify, line.sentence, line.speedup)]
    return "| " + " | ".join(cells) + " |"


def markdown(lines: Sequence[Line], in_parts: Sequence[Parts]) -> str:
    parts = ["| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS)]
    parts += [row(line) for line in lines]
    if in_parts:
        parts.append("\n| " + " | ".join(PART_COLUMNS) + " |\n|" + "---|" * len(PART_COLUMNS))
        parts += [part_row(line) for line in in_parts]
    return "\n".join(parts)


def main(given: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if given is None else given)
    with results.refusals():
        session = Session(build_parser(), arguments, refused=CHOSEN)
        args = session.args
        results.check_counts(args, "limit", "timed", "batches")
        results.check_place("--output", args.output, ".json", ".md")
        logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
        torch.set_num_threads(1)
        lines = measure(args, session)
        in_parts = [line for batch in args.batches for line in parts(args, session, batch)]
        table = markdown(lines, in_parts)
        print(table)
        command = machine.command("scripts.recipes.gad.tree_drafts", arguments)
        measured = {
            "systems": [asdict(line) for line in lines],
            "parts": [asdict(line) for line in in_parts],
        }
        write_table(args.output, args.title, command, table, measured)


if __name__ == "__main__":
    main()
