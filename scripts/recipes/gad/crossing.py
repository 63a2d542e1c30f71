"""Picture of where drafts begin to pay: speed over greedy against tokens an iteration, measured and by the price.

    python -m scripts.recipes.gad.crossing DATA --path model.pt --drafters good.pt worse.pt --gen-subset test --cpu \\
        --limit 200 --output docs/results/gad-crossing

Sentences are decoded one at a time by greedy search, by ``gad`` as it comes, and with trees of each size of --trees
from each drafter, in fp32 and in 8 bits. The sentences of all drafters are put in order by the tokens that an iteration
gained them, and cut into --bins parts: each is a point. The curve says what the measured price of a call (the log's
``--call-price``) promises for the mean sentence, with n words, t of them an iteration, and a tree of k tokens:

    speed = (encoder + n call(1)) / (encoder + source of the drafter + n / t (call(1 + k) + draft + k slot))

Takes every flag of fairseq-generate.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench.systems import Entry, load
from fairseq_aggdec.bench.timing import Measurement, System, measure
from fairseq_aggdec.budget.price import CallPrice
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.report.colours import SERIES, light
from scripts.recipes import flags, paper_plots, tables
from scripts.recipes.svg import MARKERS, sheet

PRECISIONS = {"fp32": ("--int8", "drafts"), "8 bits": ("--int8",)}
GREEDY, AUTO = "greedy", "gad"
TITLE = "Where drafts begin to pay"


@dataclass(frozen=True)
class Sentence:
    """Of the mean sentence: its words, and the milliseconds that its source takes the verifier and the drafter."""

    words: float
    encoder: float
    drafter: float


@dataclass(frozen=True)
class Point:
    """Sentences of like gain: tokens an iteration, speed over greedy, measured and by the price."""

    precision: str
    tree: int
    gained: float
    measured: float
    by_price: float


def iteration(price: CallPrice, tree: int) -> float:
    """Milliseconds of an iteration that drafts a tree of so many tokens for one sentence."""
    return price.drafting(1, tree, tree)


def promised(price: CallPrice, sentence: Sentence, tree: int, gained: float) -> float:
    """Speed over greedy by the price, of the module's equation."""
    greedy = sentence.encoder + sentence.words * price.call(1)
    start = sentence.encoder + sentence.drafter
    return greedy / (start + sentence.words / gained * iteration(price, tree))


def crossing(price: CallPrice, sentence: Sentence, tree: int) -> float:
    """Tokens an iteration at which drafting is as fast as greedy search, by the price; infinite where none suffice."""
    left = sentence.words * price.call(1) - sentence.drafter
    return sentence.words * iteration(price, tree) / left if left > 0 else float("inf")


def parts(gains: Sequence[tuple[int, int, float, float]], bins: int) -> list[tuple[float, float]]:
    """Sentences in order of what an iteration gained, in parts of like size.

    Args:
        gains: of each sentence the tokens, the iterations, and the seconds of greedy search and of drafting.

    Returns:
        Of each part the tokens an iteration, and the speed over greedy.
    """
    ordered = sorted(gains, key=lambda one: one[0] / one[1])
    bins = min(bins, len(ordered))
    edges = [i * len(ordered) // bins for i in range(bins + 1)]
    found = []
    for first, last in itertools.pairwise(edges):
        tokens, iterations, greedy, drafting = map(sum, zip(*ordered[first:last], strict=True))
        found.append((tokens / iterations, greedy / drafting))
    return found


# -- measuring


def systems_of(
    args: argparse.Namespace, arguments: Sequence[str]
) -> tuple[Session, dict[str, System]]:
    """All systems: ``PRECISION/greedy``, ``PRECISION/gad``, ``PRECISION/TREE/NUMBER OF DRAFTER``."""
    found, session = {}, None
    for precision, in_precision in PRECISIONS.items():
        whole = in_precision if precision != "fp32" else ()
        wanted = {GREEDY: ("--decoding", "greedy", *whole)}
        drafted = ("--decoding", "gad", *in_precision)
        wanted[AUTO] = (*drafted, "--drafter-path", args.drafters[0], "--draft-tree", "auto")
        for tree, (number, path) in itertools.product(args.trees, enumerate(args.drafters)):
            options = (*drafted, "--drafter-path", path, "--draft-tree", str(tree))
            wanted[f"{tree}/{number}"] = options
        for name, options in wanted.items():
            session, system = load(Entry(f"{precision}/{name}", None, options), arguments)
            found[system.name] = system
    assert session is not None
    return session, found


def mean_sentence(greedy: System, drafting: System, measured: Measurement) -> Sentence:
    """The mean sentence of a precision; ``drafting``: a system that drafts for each, and so reads each source."""
    assert greedy.counters is not None and drafting.counters is not None
    source = drafting.drafter.encoder_seconds / drafting.counters.sentences
    encoder = greedy.counters.seconds["encoder"] / greedy.counters.sentences
    return Sentence(measured.tokens / len(measured.outputs), 1e3 * encoder, 1e3 * source)


def warm_up(systems: Mapping[str, System], batch: dict[str, Any]) -> None:
    """Decodes a batch that no mean counts: with the first one a drafter compares its encoder with the verifier's."""
    for system in systems.values():
        system.decode(batch)
        assert system.counters is not None
        system.drafter.encoder_seconds = 0.0
        system.counters.sentences, system.counters.seconds["encoder"] = 0, 0.0


def points_of(
    args: argparse.Namespace,
    batches: Sequence[Mapping[str, Any]],
    systems: Mapping[str, System],
    found: Mapping[str, Measurement],
    precision: str,
) -> tuple[list[Point], dict[str, Any]]:
    """Points of a precision, and what its curve is made of."""
    greedy = found[f"{precision}/{GREEDY}"]
    auto = systems[f"{precision}/{AUTO}"]
    drafting = systems[f"{precision}/{args.trees[0]}/0"]
    sentence = mean_sentence(systems[f"{precision}/{GREEDY}"], drafting, greedy)
    price = auto.drafter.draft_length.price  # type: ignore[attr-defined]
    names = [int(batch["id"]) for batch in batches]
    points = []
    for tree in args.trees:
        gains = []
        for number in range(len(args.drafters)):
            name = f"{precision}/{tree}/{number}"
            other = found[name]
            assert other.outputs == greedy.outputs, name
            gains += [
                (len(other.outputs[one]), systems[name].steps[one], before, after)
                for one, before, after in zip(names, greedy.seconds, other.seconds, strict=True)
            ]
        points += [
            Point(precision, tree, gained, speed, promised(price, sentence, tree, gained))
            for gained, speed in parts(gains, args.bins)
        ]
    about = {
        "price": str(price),
        "sentence": asdict(sentence),
        "crossing": {str(tree): crossing(price, sentence, tree) for tree in args.trees},
        "gad": {
            "gained": found[auto.name].mean_accepted,
            "speed": greedy.total / found[auto.name].total,
        },
    }
    return points, about


# -- showing


def markdown(points: Sequence[Point], about: Mapping[str, Mapping[str, Any]]) -> str:
    """What was measured and what the price says, and where it says that drafts begin to pay."""
    shown = []
    for precision, found in about.items():
        sentence = found["sentence"]
        crossings = ", ".join(f"{k} from {tokens:.2f}" for k, tokens in found["crossing"].items())
        shown.append(
            f"**{precision}**: `--call-price {found['price']}`, in ms; {sentence['words']:.1f} tokens a sentence, "
            f"encoder {sentence['encoder']:.2f} ms, source of the drafter {sentence['drafter']:.2f} ms. By the price "
            f"trees of so many tokens pay from so many tokens an iteration on: {crossings}. `gad` as it comes: "
            f"{found['gad']['gained']:.2f} tokens an iteration, {found['gad']['speed']:.2f} times greedy."
        )
    heads = ["", "tree", "tokens / iteration", "x greedy", "by the price"]
    rows = [
        (p.precision, p.tree, f"{p.gained:.2f}", f"{p.measured:.2f}", f"{p.by_price:.2f}")
        for p in points
    ]
    return "\n\n".join([*shown, tables.table(heads, rows)])


def draw(record: Mapping[str, Any], path: Path) -> Path:
    """The picture, from the JSON of the result alone."""
    label = paper_plots.label(record, sentences=record["sentences"], threads=1)
    note = "points: measured; lines: by the price of calls; dashed: as fast as greedy"
    with sheet(path, label.with_note(note)) as figure:
        row = figure.subplots(1, len(record["results"]), sharey=True, squeeze=False)[0]
        for axes, (precision, found) in zip(row, record["results"].items(), strict=True):
            draw_panel(axes, found)
            axes.set_title(precision)
            axes.set_xlabel("tokens an iteration")
        row[0].set_ylabel("speed over greedy")
        row[0].set_ylim(bottom=0)
        row[0].legend(title="tokens of a tree", loc="upper left")
    return path


def draw_panel(axes: Any, found: Mapping[str, Any]) -> None:
    """Points and lines of a precision, one colour for each size of trees."""
    price, sentence = CallPrice(**found["curve"]), Sentence(**found["sentence"])
    for number, tree in enumerate(sorted({point["tree"] for point in found["points"]})):
        own = [point for point in found["points"] if point["tree"] == tree]
        look = {"color": light(SERIES[number]), "marker": MARKERS[number]}
        places = [point["gained"] for point in own]
        axes.plot(places, [point["measured"] for point in own], linestyle="", label=tree, **look)
        ends = [1.0, max(places)]
        steps = [ends[0] + (ends[1] - ends[0]) * i / 40 for i in range(41)]
        speeds = [promised(price, sentence, tree, gained) for gained in steps]
        axes.plot(steps, speeds, linewidth=1, **(look | {"marker": ""}))
    axes.axhline(1, color=light("muted"), linestyle="--", marker="", linewidth=1)


# -- command line


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's own options."""
    group = parser.add_argument_group("crossing")
    group.add_argument(
        "--drafters", nargs="+", required=True, metavar="FILE", help="the first one is the best"
    )
    group.add_argument("--trees", type=int, nargs="+", default=[2, 4, 7], help="2 4 7")
    group.add_argument("--bins", type=int, default=8, help="points of each tree; 8")
    group.add_argument("--limit", type=int, help="sentences (default: all), of all lengths")
    group.add_argument("--repeats", type=int, default=2, help="times each sentence is decoded; 2")
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json, .md and .svg")


def main(given: Sequence[str]) -> None:
    args, arguments = flags.split(__doc__, add_options, given)
    results.check_counts(args, "bins", "limit", "repeats", "trees")
    if len(args.trees) > len(SERIES):
        raise SystemExit(f"error: --trees: at most {len(SERIES)}, one colour each")
    results.check_place("--output", args.output, ".json", ".md", ".svg")
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    session, systems = systems_of(args, arguments)
    batches = session.batches(1, args.limit)
    warm_up(systems, batches[0])
    found = {
        one.name: one for one in measure(list(systems.values()), batches, repeats=args.repeats)
    }
    points, about, record = [], {}, {}
    for precision in PRECISIONS:
        own, about[precision] = points_of(args, batches, systems, found, precision)
        price = systems[f"{precision}/{AUTO}"].drafter.draft_length.price  # type: ignore[attr-defined]
        record[precision] = about[precision] | {
            "points": [asdict(point) for point in own],
            "curve": asdict(price),
        }
        points += own
    text = markdown(points, about)
    command = machine.command("scripts.recipes.gad.crossing", given)
    written = results.write_table(
        args.output, TITLE, command, text, record, {"sentences": len(batches)}
    )
    draw(written, results.named(args.output, ".svg"))
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
