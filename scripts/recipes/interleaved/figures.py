"""Figures 2 to 4 of Zhang et al. (2020): speed-up by batch size and beam, by source length, by words per direction.

    python -m scripts.recipes.interleaved.figures DATA --path transformer.pt --gen-subset test --variant dedup=2 \\
        --model "IBDecoder=ib.pt" --model "IBDecoder + SA=sa.pt" --post-process sentencepiece \\
        --output docs/results/interleaved-figures-multi30k

At every batch size and beam all systems are timed in turn, in one process: stock fairseq, the same Transformer on our
engine, and the models. Plots show speed-ups over our engine, so that only the way of writing differs; the tables
have both. Takes every flag of fairseq-generate; --beam (4) is that of Figures 3 and 4, which are at batch size 1,
and --variant dedup=N adds rows with repeated n-grams written once to Figure 4. Only decoding is timed.
"""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench import lengths
from fairseq_aggdec.bench.timing import Measurement, System, measure
from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.methods.options.reading import joined, read_settings, read_variants
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.quality import bleu, texts
from fairseq_aggdec.records.results import write_table
from fairseq_aggdec.search.interleaved.generator import common_geometry
from scripts.recipes import paper_plots, tables
from scripts.recipes.interleaved.otem import scored
from scripts.recipes.paper_plots import ENGINE, STOCK

BASELINES = (ENGINE, STOCK)
Row = dict[str, Any]
TITLE = "Interleaved decoding by batch, beam, source length and words per step"


@dataclass
class Model:
    """One model and how it decodes.

    Attributes:
        dedup: longest n-gram of which a repetition is left out, 0 for none.
    """

    name: str
    session: Session
    decoding: str
    geometry: Geometry
    dedup: int = 0

    def system(self, beam: int) -> System:
        """Ready to be timed with this beam."""
        cfg = self.session.task.cfg
        cfg.variant = joined(read_variants(cfg.variant or "") | {"dedup": self.dedup})
        generator, counters = self.session.generator(self.decoding, beam)

        def decode(sample: dict[str, Any]) -> list[list[int]]:
            found = self.session.decode(generator, sample)
            return [hypothesis["tokens"].tolist() for hypothesis in found]

        return System(self.name, decode, None if self.decoding == "stock" else counters)


# Key of the result -> heading of its table, and column -> key of its rows; speed-ups over both baselines come last.
FIGURES = {
    "batch": (
        "Batch size and beam (Figure 2)",
        {
            "system": "system",
            "beam": "beam",
            "batch size": "batch_size",
            "steps / sentence": "steps",
            "ms / sentence": "milliseconds",
        },
    ),
    "length": (
        "Source length (Figure 3)",
        {"system": "system", "source tokens": "tokens", "sentences": "sentences", "BLEU": "bleu"},
    ),
    "words": (
        "Words per direction (Figure 4)",
        {
            "system": "system",
            "h": "directions",
            "c": "words_per_direction",
            "dedup": "dedup",
            "BLEU": "bleu",
            "OTEM": "otem",
            "UTEM": "utem",
        },
    ),
}

# -- measuring


def over(seconds: Mapping[str, float], name: str) -> dict[str, float]:
    """Speed-up of one system over the baselines."""
    return {base: seconds[base] / seconds[name] for base in BASELINES}


def timed(
    models: Sequence[Model], beam: int, batch_size: int, limit: int | None, repeats: int
) -> tuple[dict[str, Measurement], list[Row]]:
    """All models in turn on the first one's sentences, and a row of Figure 2 for each."""
    systems = [model.system(beam) for model in models]
    batches = models[0].session.batches(batch_size, limit)
    found = {m.name: m for m in measure(systems, batches, repeats=repeats)}
    totals = {name: measured.total for name, measured in found.items()}
    rows: list[Row] = [
        {
            "system": name,
            "beam": beam,
            "batch_size": batch_size,
            "sentences": len(measured.outputs),
            "steps": steps_of(measured),
            "seconds": measured.total,
            "milliseconds": 1e3 * measured.total / len(measured.outputs),
            "speedup": over(totals, name),
        }
        for name, measured in found.items()
    ]
    return found, rows


def steps_of(measured: Measurement) -> float:
    """Iterations per sentence, where outputs have all tokens that were counted; stock has one per token."""
    return measured.tokens / (measured.mean_accepted or 1) / len(measured.outputs)


def by_length(
    models: Sequence[Model], found: Mapping[str, Measurement], count: int, limit: int | None
) -> list[Row]:
    """Figure 3, from sentences that were decoded one at a time; lengths are in tokens without ``</s>``."""
    session = models[0].session
    sentences = session.sentences(limit)
    tokens = [len(session.dataset[sentence]["source"]) - 1 for sentence in sentences]
    rows: list[Row] = []
    for part in lengths.bins(tokens, count):
        for model in models:
            span = lengths.span(found, model.name, BASELINES, tokens, part)
            outputs = {sentences[i]: found[model.name].outputs[sentences[i]] for i in part}
            quality = bleu(model.session, outputs)[0]
            rows.append(
                {"system": model.name, "tokens": span.tokens, **asdict(span), "bleu": quality}
            )
    return rows


def by_words(models: Sequence[Model], found: Mapping[str, Measurement]) -> list[Row]:
    """Figure 4, with how much a model says too often (OTEM) or leaves out (UTEM), in percent."""
    totals = {name: measured.total for name, measured in found.items()}
    rows: list[Row] = []
    for model in models:
        session, outputs = model.session, found[model.name].outputs
        wanted = {sentence: session.dataset[sentence]["target"] for sentence in outputs}
        counted = scored(model.name, texts(session, outputs), texts(session, wanted))
        rows.append(
            {
                "system": model.name,
                "directions": model.geometry.directions,
                "words_per_direction": model.geometry.words_per_direction,
                "dedup": model.dedup,
                "bleu": bleu(session, outputs)[0],
                "otem": counted.otem,
                "utem": counted.utem,
                "speedup": over(totals, model.name),
            }
        )
    return rows


def markdown(results: Mapping[str, Sequence[Row]]) -> str:
    """The tables of all figures."""
    parts = []
    for name, (title, columns) in FIGURES.items():
        heads = [*columns, *(f"x {base}" for base in BASELINES)]
        rows = (
            [*(r[key] for key in columns.values()), *r["speedup"].values()] for r in results[name]
        )
        parts.append(f"**{title}**\n\n{tables.table(heads, rows)}")
    return "\n\n".join(parts)


# -- command line


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    parser.set_defaults(beam=4)
    group = parser.add_argument_group("figures")
    group.add_argument(
        "--model", action="append", required=True, metavar="NAME=FILE", dest="writers"
    )
    group.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    group.add_argument("--beams", type=int, nargs="+", default=[1, 4, 8])
    group.add_argument("--bins", type=int, default=10, help="of source length (default: 10)")
    group.add_argument("--threads", type=int, default=1)
    group.add_argument("--limit", type=int, help="sentences (default: all), of all lengths")
    group.add_argument("--repeats", type=int, default=1, help="times each batch is decoded")
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json, .md and plots")
    return parser


def check(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Name and file of each ``--model``; stops at the first option that cannot be."""
    for option in ("batch_sizes", "beams", "bins", "threads", "repeats"):
        given = getattr(args, option)
        least = min(given) if isinstance(given, list) else given
        if least < 1:
            raise SystemExit(f"error: --{option.replace('_', '-')} {least}: it must be at least 1")
    pairs = []
    for item in args.writers:
        name, equals, path = item.partition("=")
        if not equals:
            raise SystemExit(f"error: --model {item}: give NAME=FILE")
        if not Path(path).is_file():
            raise SystemExit(f"error: --model {item}: there is no file {path}")
        pairs.append((name, path))
    if len({*BASELINES, *(name for name, _ in pairs)}) < len(pairs) + len(BASELINES):
        raise SystemExit("error: --model: two systems have the same name")
    return pairs


def load(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[Model], list[Model]]:
    """The options, all models, and those of them again that leave out repetitions."""
    args, _ = build_parser().parse_known_args(arguments)
    pairs = check(args)
    session = Session(build_parser(), arguments, reads=["beam"])
    geometry = common_geometry(session.models)
    if geometry != Geometry():
        raise SystemExit("error: --path: the Transformer of the comparison writes word by word")
    dedup = read_settings(session.task.cfg).dedup
    models = [
        Model(STOCK, session, "stock", geometry),
        Model(ENGINE, session, "interleaved", geometry),
    ]
    distinct = []
    for name, path in pairs:
        own = Session(build_parser(), [*arguments, "--path", path], reads=["beam"])
        shape = common_geometry(own.models, "--model")
        models.append(Model(name, own, "interleaved", shape))
        if dedup:
            distinct.append(Model(f"{name}, dedup", own, "interleaved", shape, dedup))
    return args, models, distinct


def main(arguments: Sequence[str]) -> None:
    args, models, distinct = load(arguments)
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    torch.set_num_threads(args.threads)
    beam, limit, repeats = models[0].session.cfg.generation.beam, args.limit, args.repeats
    everybody = [*models, *distinct]
    found, cells = timed(everybody, beam, 1, limit, repeats)
    names = {model.name for model in models}
    cells = [cell for cell in cells if cell["system"] in names]
    wanted = dict.fromkeys((width, size) for width in args.beams for size in args.batch_sizes)
    for width, size in wanted:
        if (width, size) != (beam, 1):
            cells += timed(models, width, size, limit, repeats)[1]
    cells.sort(key=lambda cell: (cell["beam"], cell["batch_size"]))
    by_tokens, words = by_length(models, found, args.bins, limit), by_words(everybody, found)
    results = {"batch": cells, "length": by_tokens, "words": words}
    text = markdown(results)
    command = machine.command("scripts.recipes.interleaved.figures", arguments)
    signature = bleu(models[0].session, found[STOCK].outputs)[1]
    extra = {"sacrebleu": signature, "threads": args.threads, "repeats": repeats}
    text += f"\nsacreBLEU signature: `{signature}`"
    record = write_table(args.output, TITLE, command, text, results, extra)
    paper_plots.draw(args.output, record)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
