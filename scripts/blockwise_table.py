"""BLEU and mean accepted block size of blockwise models (Table 1 and section 7.1 of Stern et al.).

    python scripts/blockwise_table.py DATA --models regular/8=a.pt both/8=b.pt --gen-subset test --output RESULTS

takes every flag of fairseq-generate. Each model decodes the set with stock fairseq --beam 1 (its head 1) and with
--decoding blockwise under every acceptance rule of the paper for text; sentences that differ from stock are counted
beside each.
"""

import json
import logging
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.compat import load_checkpoint
from fairseq_aggdec.evaluation import machine
from fairseq_aggdec.evaluation.quality import bleu
from fairseq_aggdec.evaluation.session import Session, generation_parser

STOCK = "stock --beam 1"
RULES: dict[str, dict[str, Any]] = {
    "exact": {},
    "top-2": {"acceptance": "top-k", "top_k": 2},
    "top-3": {"acceptance": "top-k", "top_k": 3},
    "minimum block 2": {"min_block_size": 2},
    "minimum block 3": {"min_block_size": 3},
}


@dataclass
class Score:
    """One model under one rule.

    Attributes:
        updates: how long it was trained.
        bleu: sacreBLEU on detokenised text.
        mean_accepted: tokens per iteration, ``</s>`` counted.
        differ: sentences whose tokens are not those of stock.
    """

    model: str
    updates: int
    rule: str
    bleu: float
    mean_accepted: float
    differ: int


def build_parser():
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("table")
    group.add_argument("--models", nargs="+", required=True, metavar="NAME=FILE")
    group.add_argument("--limit", type=int, help="sentences to decode (default: all)")
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json and OUTPUT.md")
    return parser


def decode(session: Session, decoding: str, limit: int | None) -> tuple[dict[int, Any], Any]:
    """Tokens by sentence, and the counters."""
    generator, counters = session.generator(decoding)
    found = {}
    batches = session.batches(session.cfg.dataset.batch_size or 32, limit)
    for sample in tqdm(batches, desc=decoding, leave=False, disable=None):
        hypotheses = session.decode(generator, sample)
        for sentence, hypothesis in zip(sample["id"].tolist(), hypotheses, strict=True):
            found[sentence] = hypothesis["tokens"].cpu()
    return found, counters


def scores_of(
    name: str, updates: int, session: Session, limit: int | None
) -> tuple[list[Score], str]:
    expected, _ = decode(session, "beam", limit)
    value, signature = bleu(session, expected)
    scores = [Score(name, updates, STOCK, value, 1.0, 0)]
    for rule, options in RULES.items():
        kept = {option: getattr(session.task.cfg, option) for option in options}
        for option, chosen in options.items():
            setattr(session.task.cfg, option, chosen)
        found, counters = decode(session, "blockwise", limit)
        for option, chosen in kept.items():
            setattr(session.task.cfg, option, chosen)
        differ = sum(found[i].tolist() != expected[i].tolist() for i in expected)
        value, _ = bleu(session, found)
        scores.append(Score(name, updates, rule, value, counters.mean_accepted_tokens, differ))
    return scores, signature


def write(output: Path, scores: list[Score], signature: str, sentences: int) -> str:
    """Writes both files and returns the table."""
    command = "python scripts/blockwise_table.py " + " ".join(sys.argv[1:])
    here = machine.describe()
    rows = [
        "| model / k | updates | acceptance | BLEU | mean accepted tokens | differ from stock |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {score.model} | {score.updates} | {score.rule} | {score.bleu:.2f} | {score.mean_accepted:.2f} | "
        f"{score.differ} of {sentences} |"
        for score in scores
    ]
    table = "\n".join(rows)
    record = {
        "command": command,
        "machine": here,
        "sacrebleu": signature,
        "sentences": sentences,
        "scores": [asdict(score) for score in scores],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    text = f"# Blockwise parallel decoding: quality and accepted block size\n\n`{command}`\n\n{table}\n\n"
    text += f"sacreBLEU signature: `{signature}`. {machine.sentence(here)}\n"
    output.with_suffix(".md").write_text(text)
    return table


def main() -> None:
    parser = build_parser()
    arguments = sys.argv[1:]
    args, _ = parser.parse_known_args(arguments)
    scores, signature, sentences = [], "", 0
    for item in args.models:
        name, _, path = item.partition("=")
        if not path:
            raise SystemExit(f"error: --models {item}: give NAME=FILE")
        session = Session(build_parser(), [*arguments, "--path", path])
        logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
        updates = load_checkpoint(path)["optimizer_history"][-1]["num_updates"]
        sentences = len(session.sentences(args.limit))
        found, signature = scores_of(name, updates, session, args.limit)
        scores += found
    print(write(args.output, scores, signature, sentences))


if __name__ == "__main__":
    main()
