"""Spliced sources: the beginning of one training sentence and the end of another, for a verifier to translate.

    python -m scripts.spliced_sources data-bin --output data-spliced
    aggdec train-drafter data-spliced --path model.pt \\
        --distill-flags "--max-len-a 1.2 --max-len-b 10 --subsets train train1"

The copy of the data folder has one more part of its training set, ``train1``, that has sources only: as many sentences
as the set has. A drafter that also learns what the verifier writes for these guesses better on text that it was not
trained on. Sentences are cut where a word begins: of pieces as of sentencepiece, of units as of subword-nmt, otherwise
of symbols.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset
from tqdm import tqdm

from fairseq_aggdec.distill.distillation import DistillationError
from fairseq_aggdec.distill.distilled_folder import TEXT, DataFolder, copy_the_rest, write_side

# A word's first piece begins with the one; all of its units but the last end with the other.
PIECE, UNIT = "\u2581", "@@"
FEW = 0.05  # share of symbols with a mark that are there by chance


def word_marks(dictionary: Dictionary) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tells whether a symbol may be the first, and whether it may be the last of a word: (V,) each."""
    symbols = [dictionary[token] for token in range(len(dictionary))]
    first = np.array([symbol.startswith(PIECE) for symbol in symbols])
    last = np.array([not symbol.endswith(UNIT) for symbol in symbols])
    # A text may hold either mark by chance, and sentencepiece of characters has no other symbol with it.
    pieces = PIECE in symbols or first.mean() > FEW
    if not pieces or first.sum() < np.logical_not(last).sum():
        first[:] = True
    return first, last


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
    """Joins the words before a cut of one sentence and those after the cut of the other that is as far in it.

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


def spliced(
    sentences: ConcatDataset[Tensor], dictionary: Dictionary, rng: random.Random
) -> Iterator[Tensor]:
    """Every sentence of a set, in order, spliced with another that is drawn: (T,) int64 with ``</s>``."""
    marks = word_marks(dictionary)
    for number in range(len(sentences)):
        other = sentences[rng.randrange(len(sentences))]
        yield torch.from_numpy(splice(sentences[number].numpy(), other.numpy(), marks, rng))


def parts(data: DataFolder, subset: str) -> Iterator[str]:
    """The names of a set's parts, as fairseq-train puts them together: ``train``, ``train1`` ... while there is one."""
    yield subset
    for number in itertools.count(1):
        try:
            data.prefix(f"{subset}{number}")
        except DistillationError:
            return
        yield f"{subset}{number}"


def read(data: DataFolder, part: str, dictionary: Dictionary) -> Dataset[Tensor]:
    """The sources of a part.

    Raises:
        DistillationError: there are none, or their files are damaged.
    """
    try:
        sentences = data.side(part, data.source, dictionary)
        if getattr(sentences, "supports_prefetch", False):
            sentences.prefetch(range(len(sentences)))
        if not len(sentences):
            raise ValueError("no sentence")
    except (EOFError, ValueError, struct.error) as error:
        raise DistillationError(
            f"the set {part} of {data.path} is empty or damaged ({error}): binarise it anew"
        ) from None
    found: Dataset[Tensor] = sentences
    return found


def write_spliced(data: DataFolder, subset: str, output: Path, seed: int = 1) -> None:
    """Copies DATA and adds a part with spliced sources.

    Raises:
        DistillationError: DATA lacks the set or a dictionary, or it is empty or damaged.
    """
    prefix = data.prefix(subset)
    for path in data.dictionaries():
        if not path.exists():
            raise DistillationError(f"{data.path} has no {path.name}: check DATA")
    dictionary = Dictionary.load(str(data.dictionaries()[0]))
    names = list(parts(data, subset))
    sentences: ConcatDataset[Tensor] = ConcatDataset(
        [read(data, name, dictionary) for name in names]
    )
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / TEXT).mkdir(parents=True)
    copy_the_rest(data, partial, [])
    part = f"{subset}{len(names)}"
    name = f"{part}.{prefix.rstrip('.').rpartition('.')[2]}"
    made = spliced(sentences, dictionary, random.Random(seed))
    progress = tqdm(
        made, total=len(sentences), desc=part, unit="sentence", leave=False, disable=None
    )
    write_side(partial, name, data.source, dictionary, progress)
    partial.rename(output)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of fairseq-preprocess")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--source-lang", metavar="LANGUAGE", help="default: as the files say")
    parser.add_argument("--target-lang", metavar="LANGUAGE")
    parser.add_argument("--seed", type=int, default=1, help="of the pairs that are drawn (1)")
    args = parser.parse_args()
    if args.output.exists():
        parser.error(f"--output {args.output} is there already")
    there = data_utils.infer_language_pair(str(args.data))
    source, target = args.source_lang or there[0], args.target_lang or there[1]
    if not source or not target:
        parser.error(f"{args.data} does not tell the languages: give --source-lang, --target-lang")
    try:
        write_spliced(DataFolder(args.data, source, target), "train", args.output, args.seed)
    except DistillationError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
