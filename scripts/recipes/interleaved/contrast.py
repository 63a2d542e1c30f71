"""How often a model finds a reference likelier than the same with one error, as Lingeval97 asks: Zhang's Figure 5.

    python -m scripts.recipes.interleaved.contrast DATA --gen-subset test --cpu --bpe sentencepiece \\
        --sentencepiece-model spm.model --model "Transformer=model.pt" --model "IBDecoder=ib.pt" \\
        --output docs/results/contrast-multi30k

Errors are made from the set's own references by ``minimal_errors.py``: German or English, as the target language says.
A model is right where the whole reference has the higher probability. Both sides are cut into subwords anew. Agreement
is told by the distance from the subject to the verb too. This is not Lingeval97, whose 97,000 pairs are of WMT.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.scoring import score_batch
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import check_place, refusals, write_table
from scripts.recipes import tables
from scripts.recipes.interleaved.minimal_errors import AGREEMENT, LANGUAGES, Pair, errors
from scripts.recipes.interleaved.pmi import OF_DECODING

BATCH = 64
FARTHEST = 5  # distances from this on are one
ALL = "all"


@dataclass
class Row:
    """How often one model was right on errors of one kind.

    Attributes:
        kind: of the error; agreement at a distance is "subject-verb agreement, distance 2".
    """

    model: str
    kind: str
    pairs: int
    right: int

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.right / max(1, self.pairs)


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("contrastive pairs")
    group.add_argument(
        "--model", action="append", required=True, metavar="NAME=FILE", dest="writers"
    )
    group.add_argument("--limit", type=int, help="sentences (default: all), of all lengths")
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json and .md")
    return parser


def text_of(session: Session, target: Tensor) -> str:
    line = session.task.target_dictionary.string(target, escape_unk=True)
    return session.codec.decode(line)


def known_words(session: Session) -> set[str]:
    """Words of the training set's targets."""
    session.task.load_dataset("train")
    targets: Any = session.task.dataset("train").tgt
    lines = (text_of(session, targets[i]) for i in range(len(targets)))
    return {word.strip(".,;:!?\"'()") for line in lines for word in line.split()}


def all_pairs(session: Session, limit: int | None) -> list[tuple[int, Pair]]:
    """Sentence and pair, in the order of length."""
    known, language = known_words(session), session.task.cfg.target_lang
    if language not in LANGUAGES:
        raise ValueError(f"errors are made in {' and '.join(LANGUAGES)} only, not in '{language}'")
    if session.codec.subwords is None:
        raise ValueError("--bpe: name the subwords of the data, to cut the errors into them")
    return [
        (sentence, pair)
        for sentence in session.sentences(limit)
        for pair in errors(text_of(session, session.dataset[sentence]["target"]), language, known)
    ]


def tokens(session: Session, text: str) -> Tensor:
    """(T,) int64 with ``</s>``."""
    line = session.codec.encode(text)
    found = session.task.target_dictionary.encode_line(line, add_if_not_exist=False)
    return found.long()


def prefers(session: Session, pairs: Sequence[tuple[int, Pair]]) -> Iterator[bool]:
    """Of each pair: is the reference likelier?"""
    task, start = session.task, session.task.target_dictionary.eos()
    for first in range(0, len(pairs), BATCH):
        some = pairs[first : first + BATCH]
        sample = session.batch([sentence for sentence, _ in some])
        # The collater sorts by length; its rows say which sentence they hold.
        places: dict[int, list[Pair]] = {}
        for sentence, pair in some:
            places.setdefault(sentence, []).append(pair)
        rows = [places[int(sentence)].pop(0) for sentence in sample["id"]]
        totals = []
        for side in ("right", "wrong"):
            targets = [tokens(session, getattr(pair, side)) for pair in rows]
            scored = score_batch(task, session.models, sample, targets, start)
            totals.append([float(one["positional_scores"].double().sum()) for one in scored])
        won = {id(pair): right > wrong for pair, right, wrong in zip(rows, *totals, strict=True)}
        yield from (won[id(pair)] for _, pair in some)


def kinds(pair: Pair) -> list[str]:
    """The rows that a pair counts in."""
    found = [ALL, pair.kind]
    if pair.distance is not None:
        far = min(pair.distance, FARTHEST)
        found.append(f"{AGREEMENT}, distance {far}{' or more' if far == FARTHEST else ''}")
    return found


def counted(name: str, pairs: Sequence[Pair], right: Sequence[bool]) -> list[Row]:
    """Rows of a model, by kind."""
    rows: dict[str, Row] = {}
    for pair, won in zip(pairs, right, strict=True):
        for kind in kinds(pair):
            row = rows.setdefault(kind, Row(name, kind, 0, 0))
            row.pairs += 1
            row.right += won
    return [rows[kind] for kind in sorted(rows, key=lambda kind: (kind != ALL, kind))]


def measured(name: str, path: str, arguments: Sequence[str]) -> list[Row]:
    session = Session(build_parser(), [*arguments, "--path", path], refused=OF_DECODING)
    pairs = all_pairs(session, session.args.limit)
    right = list(prefers(session, pairs))
    return counted(name, [pair for _, pair in pairs], right)


def markdown(rows: Sequence[Row]) -> str:
    """A line per kind, a column per model: accuracy in percent."""
    models, names = (
        list(dict.fromkeys(getattr(row, x) for row in rows)) for x in ("model", "kind")
    )
    found = {(row.model, row.kind): row for row in rows}
    lines = []
    for kind in names:
        right = [f"{found[model, kind].accuracy:.1f}" for model in models]
        lines.append([kind, found[models[0], kind].pairs, *right])
    return tables.table(["error", "pairs", *models], lines)


def parsed(item: str) -> tuple[str, str]:
    """Name and existing file of a ``--model``."""
    name, _, path = item.rpartition("=")
    if not name:
        raise SystemExit(f"error: --model {item}: give NAME=FILE")
    if not Path(path).is_file():
        raise SystemExit(f"error: --model {item}: there is no file {path}")
    return name, path


def main(arguments: Sequence[str]) -> None:
    args, _ = build_parser().parse_known_args(arguments)
    check_place("--output", args.output, ".json", ".md")
    with refusals():
        models = [parsed(item) for item in args.writers]
        rows = [row for name, path in models for row in measured(name, path, arguments)]
    table = markdown(rows)
    print(table)
    results = [asdict(row) | {"accuracy": row.accuracy} for row in rows]
    command = machine.command("scripts.recipes.interleaved.contrast", arguments)
    write_table(args.output, "References against minimal errors", command, table, results)


if __name__ == "__main__":
    main(sys.argv[1:])
