"""Spliced sources: the beginning of one training sentence and the end of another, for a verifier to translate.

    python -m fairseq_aggdec.data.spliced_sources DATA --output SPLICED

writes a copy of the data folder DATA with one more part of its training set, ``train1``, that has sources only: as many
sentences as the set has. A drafter that also learns what the verifier writes for these guesses better on text that it
was not trained on; ``SPLICED=1 scripts/train_drafter.sh`` does both. Sentences are cut where a word begins: of pieces
as of sentencepiece, of units as of subword-nmt, otherwise of symbols.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from fairseq_aggdec.data.distillation import DistillationError
from fairseq_aggdec.data.distilled_folder import TEXT, DataFolder, copy_the_rest, write_side

PIECE, UNIT = (
    "\u2581",
    "@@",
)  # a word's first piece begins with the one; all units but its last end with the other


def word_marks(dictionary: Dictionary) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether a symbol may be the first, and whether it may be the last of a word: (V,) each."""
    symbols = [dictionary[token] for token in range(len(dictionary))]
    pieces = any(symbol.startswith(PIECE) for symbol in symbols)
    first = np.array([not pieces or symbol.startswith(PIECE) for symbol in symbols])
    return first, np.array([not symbol.endswith(UNIT) for symbol in symbols])


def cuts(tokens: NDArray[np.int64], marks: tuple[NDArray[np.bool_], ...]) -> NDArray[np.int64]:
    """Positions, of a sentence's (T,) tokens with ``</s>``, at which a word begins, without the first word's."""
    first, last = marks
    return 1 + np.flatnonzero(first[tokens[1:-1]] & last[tokens[:-2]])


def splice(
    one: NDArray[np.int64],
    other: NDArray[np.int64],
    marks: tuple[NDArray[np.bool_], ...],
    rng: random.Random,
) -> NDArray[np.int64]:
    """What stands before a cut of one sentence, and what follows the cut of the other that is as far in it.

    Args:
        one, other: (T,) tokens with ``</s>``.
        marks: of :func:`word_marks`.
        rng: chooses the cut.

    Returns:
        (T',) tokens with ``</s>``; ``one`` where a sentence is a single word.
    """
    mine, theirs = cuts(one, marks), cuts(other, marks)
    if not len(mine) or not len(theirs):
        return one
    cut = rng.choice(mine.tolist())
    as_far = np.abs(theirs - cut * len(other) / len(one)).argmin()
    return np.concatenate([one[:cut], other[theirs[as_far] :]])


def spliced(sentences: Any, dictionary: Dictionary, rng: random.Random) -> Iterator[Tensor]:
    """Every sentence of a set, in order, spliced with another that is drawn: (T,) int64 with ``</s>``."""
    marks = word_marks(dictionary)
    for number in range(len(sentences)):
        other = sentences[rng.randrange(len(sentences))]
        yield torch.from_numpy(splice(sentences[number].numpy(), other.numpy(), marks, rng))


def write(data: DataFolder, subset: str, output: Path, seed: int) -> tuple[str, int]:
    """Copies DATA and adds a part with spliced sources; its name and the number of its sentences.

    Raises:
        DistillationError: DATA lacks the set, or OUTPUT is there already.
    """
    prefix = data.prefix(subset)
    if output.exists():
        raise DistillationError(f"--output {output} exists already: name a new folder")
    part = next(
        name
        for name in (f"{subset}{number}" for number in range(1, 1_000))
        if not any(data.path.glob(f"{name}.*"))
    )
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / TEXT).mkdir(parents=True)
    copy_the_rest(data, partial, [])
    dictionary = Dictionary.load(str(data.dictionaries()[0]))
    sentences = data.side(subset, data.source, dictionary)
    name = f"{part}.{prefix.rstrip('.').rpartition('.')[2]}"
    made = spliced(sentences, dictionary, random.Random(seed))
    progress = tqdm(made, total=len(sentences), desc=part, unit="sentence", leave=False)
    write_side(partial, name, data.source, dictionary, progress)
    partial.rename(output)
    return part, len(sentences)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of fairseq-preprocess")
    parser.add_argument("--output", type=Path, required=True, help="data folder to make")
    parser.add_argument("--subset", default="train", help="set to splice (default: train)")
    parser.add_argument("--source-lang", "-s", help="default: as the names of DATA's files say")
    parser.add_argument("--target-lang", "-t")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    if not args.data.is_dir():
        raise SystemExit(f"error: the folder {args.data} does not exist")
    found = data_utils.infer_language_pair(str(args.data))
    source, target = args.source_lang or found[0], args.target_lang or found[1]
    if source is None or target is None:
        raise SystemExit(
            f"error: --source-lang, --target-lang: {args.data} does not tell the languages"
        )
    try:
        data = DataFolder(args.data, source, target)
        part, sentences = write(data, args.subset, args.output, args.seed)
    except DistillationError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"{args.output}: {part} has {sentences:,} spliced sources")


if __name__ == "__main__":
    main()
