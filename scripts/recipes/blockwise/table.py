"""BLEU, mean accepted block size and speed of blockwise models (Stern et al., Table 1, section 7.1, Figure 4).

    python -m scripts.recipes.blockwise.table DATA --models regular/1=base.pt regular/8=a.pt both/8=b.pt \\
        --gen-subset test --output docs/results/blockwise-multi30k

takes every flag of fairseq-generate. Each model decodes the set with stock fairseq --beam 1 (its head 1) and with
--decoding blockwise under every acceptance rule of the paper for text; sentences that differ from stock are counted
beside each. A model without block heads is the k = 1 of its setting. Then some sentences are timed one at a time
against our own greedy decoding of the same model, all in turn.

The results of a model are written as soon as they are there.
"""

import argparse
import copy
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench import systems
from fairseq_aggdec.bench.timing import System, measure
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.methods.shared.amounts import blockwise_size
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.quality import bleu, sacre_bleu
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.stored.loading import load_checkpoint
from scripts.recipes.blockwise.results import EXACT, STOCK, Results, Score, Speed
from scripts.recipes.text_scores import compound_bleu

RULES: dict[str, dict[str, Any]] = {
    EXACT: {},
    "top-2": {"acceptance": "top-k:2"},
    "top-3": {"acceptance": "top-k:3"},
    "minimum block 2": {"acceptance": "min:2"},
    "minimum block 3": {"acceptance": "min:3"},
}

COMPOUND = "compound"

# -- measuring


@contextmanager
def rule_set(session: Session, rule: str) -> Iterator[None]:
    """The task's options under an acceptance rule."""
    cfg = session.task.cfg
    kept = {option: getattr(cfg, option) for option in RULES[rule]}
    try:
        for option, chosen in RULES[rule].items():
            setattr(cfg, option, chosen)
        yield
    finally:
        for option, chosen in kept.items():
            setattr(cfg, option, chosen)


def decode(session: Session, decoding: str, limit: int | None) -> tuple[dict[int, Any], Counters]:
    """Tokens by sentence, and the counters."""
    generator, counters = session.generator(decoding)
    found = {}
    batches = session.batches(session.cfg.dataset.batch_size or 32, limit)
    for sample in tqdm(batches, desc=decoding, leave=False, disable=None):
        hypotheses = session.decode(generator, sample)
        for sentence, hypothesis in zip(sample["id"].tolist(), hypotheses, strict=True):
            found[sentence] = hypothesis["tokens"].cpu()
    return found, counters


def updates_of(path: str) -> int | None:
    history = load_checkpoint(path).get("optimizer_history") or []
    return history[-1]["num_updates"] if history else None


class Model:
    """One checkpoint, measured under every rule.

    Args:
        name: SETTING/K.
        path: the checkpoint.
        session: with the model loaded.
        args: the options of this script.
    """

    def __init__(self, name: str, path: str, session: Session, args: argparse.Namespace):
        self.name, self.session, self.args = name, session, args
        self.updates = updates_of(path)
        self.headed = isinstance(session.models[0].decoder, HeadedDecoder)

    @property
    def rules(self) -> list[str]:
        """Rules for the model's blocks: none that asks for more tokens than these have."""
        if not self.headed:
            return []
        cfg = copy.copy(self.session.task.cfg)
        cfg.decoding = "blockwise"  # which says what --draft-tokens means
        size = blockwise_size(read_settings(cfg), self.session.models)
        least = {
            rule: read_settings(chosen).acceptance.min_block_size for rule, chosen in RULES.items()
        }
        return [rule for rule, tokens in least.items() if tokens <= size]

    def scores(self) -> list[Score]:
        """Quality and accepted tokens under all rules, stock first."""
        expected, _ = decode(self.session, "stock", self.args.limit)
        return [self._score(rule, expected) for rule in (STOCK, *self.rules)]

    def _score(self, rule: str, expected: Mapping[int, Any]) -> Score:
        found, mean, block = expected, 1.0, 1.0
        if rule != STOCK:
            with rule_set(self.session, rule):
                found, counters = decode(self.session, "blockwise", self.args.limit)
            mean = counters.mean_accepted_tokens
            # Steps of Stern et al. begin behind the first call, which gains one token: it has no features yet.
            sentences = counters.sentences
            block = (counters.tokens - sentences) / max(1, counters.iterations - sentences)
        differ = sum(found[i].tolist() != expected[i].tolist() for i in expected)
        score = compound_bleu if self.args.bleu == COMPOUND else sacre_bleu
        value, signature = bleu(self.session, found, score)
        accepted = (mean, block)
        return Score(self.name, self.updates, rule, value, *accepted, differ, len(found), signature)

    def speeds(self) -> list[Speed]:
        """Speeds under all rules, which are timed in turn."""
        session, args = self.session, self.args
        if not self.headed or args.time_sentences == 0:
            return []
        compared = [systems.build("greedy", session)]
        for rule in self.rules:
            with rule_set(session, rule):
                built = systems.build("blockwise", session)
            compared.append(System(rule, built.decode, built.counters))
        batches = session.batches(1, args.time_sentences)
        greedy, *found = measure(compared, batches, repeats=args.repeats)
        return [
            Speed(
                self.name,
                m.name,
                m.mean_accepted or 1.0,
                1e3 * m.total / len(batches),
                greedy.total / m.total,
            )
            for m in found
        ]


# -- command line


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("table")
    group.add_argument("--models", nargs="+", required=True, metavar="SETTING/K=FILE")
    group.add_argument(
        "--bleu",
        choices=("sacrebleu", COMPOUND),
        default="sacrebleu",
        help="sacrebleu: on text; compound: on Moses tokens with compounds split, for data that were tokenised by "
        "Moses, as in the paper (default: %(default)s)",
    )
    group.add_argument("--limit", type=int, help="sentences to decode (default: all)")
    group.add_argument(
        "--time-sentences",
        type=int,
        default=50,
        metavar="N",
        help="sentences to time, of all lengths; 0: no times (default: %(default)s)",
    )
    group.add_argument("--repeats", type=int, default=3, help="times each one is timed")
    group.add_argument("--threads", type=int, help="of PyTorch (default: its own choice)")
    group.add_argument(
        "--output", type=Path, required=True, help="OUTPUT.json, .md and -speedup.svg"
    )
    return parser


def models_of(items: Sequence[str]) -> dict[str, str]:
    """Name -> file of ``--models``, checked before anything is decoded."""
    models: dict[str, str] = {}
    for item in items:
        name, _, path = item.partition("=")
        if not path:
            raise SystemExit(f"error: --models {item}: give SETTING/K=FILE")
        if name in models:
            raise SystemExit(f"error: --models: two models are called {name}")
        if not Path(path).is_file():
            raise SystemExit(f"error: --models {item}: there is no such file")
        models[name] = path
    return models


def main(arguments: Sequence[str]) -> None:
    args, _ = build_parser().parse_known_args(arguments)
    models = models_of(args.models)
    if args.time_sentences < 0 or args.repeats < 1:
        raise SystemExit("error: --time-sentences must be at least 0 and --repeats at least 1")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    results = Results(args.output, machine.command("scripts.recipes.blockwise.table", arguments))
    for name, path in models.items():
        session = Session(build_parser(), [*arguments, "--path", path], reads=["batch_size"])
        logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
        model = Model(name, path, session, args)
        results.scores += model.scores()
        results.speeds += model.speeds()
        shown = results.write()
    print(shown)


if __name__ == "__main__":
    main(sys.argv[1:])
