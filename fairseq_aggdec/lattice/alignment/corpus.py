"""Sentence pairs of a folder made by fairseq-preprocess, many at a time as flat arrays."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary, data_utils

CHUNK = 100_000  # sentence pairs


@dataclass(frozen=True)
class Sentences:
    """P sentences.

    Attributes:
        tokens: ids without ``</s>``, sentence after sentence, int32.
        lengths: (P,) int64, their sum is the size of ``tokens``.
    """

    tokens: np.ndarray
    lengths: np.ndarray

    @classmethod
    def join(cls, parts: Iterable[Sentences]) -> Sentences:
        tokens, lengths = zip(*((part.tokens, part.lengths) for part in parts), strict=True)
        return cls(np.concatenate(tokens), np.concatenate(lengths))

    def select(self, chosen: np.ndarray) -> Sentences:
        """The sentences where ``chosen`` (P,) bool is true."""
        return Sentences(self.tokens[np.repeat(chosen, self.lengths)], self.lengths[chosen])

    def __iter__(self) -> Iterator[np.ndarray]:
        ends = np.cumsum(self.lengths)
        return (self.tokens[end - size : end] for end, size in zip(ends, self.lengths, strict=True))


class BinarisedPairs:
    """A set of sentence pairs.

    Args:
        data: folder.
        split: ``train``, ``valid``, ...
        source, target: languages; None finds them out from the file names.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the languages cannot be found out, or the two sides have different numbers of sentences.
    """

    def __init__(
        self, data: Path, split: str, source: str | None = None, target: str | None = None
    ):
        if source is None or target is None:
            source, target = _languages(data)
        self.data, self.split, self.languages = data, split, (source, target)
        self.dictionaries = (_dictionary(data, source), _dictionary(data, target))
        self._sides = [
            self._open(language, dictionary)
            for language, dictionary in zip(self.languages, self.dictionaries, strict=True)
        ]
        sizes = [len(side) for side in self._sides]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{data}: {split} has {sizes[0]} source but {sizes[1]} target sentences"
            )

    def _open(self, language: str, dictionary: Dictionary) -> Any:
        # One folder serves both directions of a pair, as in fairseq.
        for pair in (self.languages, self.languages[::-1]):
            prefix = self.data / f"{self.split}.{'-'.join(pair)}.{language}"
            try:
                dataset = data_utils.load_indexed_dataset(str(prefix), dictionary)
            except (EOFError, ValueError, struct.error) as error:
                raise ValueError(f"{prefix} is empty or damaged ({error})") from error
            if dataset is not None:
                return dataset
        missing = f"{self.split}.{'-'.join(self.languages)}.{language}.idx"
        raise FileNotFoundError(f"{self.data / missing} does not exist")

    def __len__(self) -> int:
        return len(self._sides[0])

    @property
    def folder(self) -> Path:
        """Folder of the tables of this data."""
        return self.data / f"lattice.{'-'.join(self.languages)}"

    def read(self, start: int, stop: int) -> tuple[Sentences, Sentences]:
        """Source and target of the pairs from ``start`` to before ``stop``."""
        eos = self.dictionaries[0].eos()
        source, target = (_flat(side, start, stop, eos) for side in self._sides)
        return source, target

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[Sentences, Sentences]]:
        """All pairs in order, ``size`` at a time."""
        for start in range(0, len(self), size):
            yield self.read(start, min(start + size, len(self)))


def _flat(dataset: Any, start: int, stop: int, eos: int) -> Sentences:
    sentences = [dataset[index].numpy() for index in range(start, stop)]
    tokens = np.concatenate([*sentences, np.empty(0, np.int64)]).astype(np.int32)
    sentence = np.repeat(np.arange(len(sentences)), [len(tokens) for tokens in sentences])
    kept = tokens != eos
    return Sentences(tokens[kept], np.bincount(sentence[kept], minlength=len(sentences)))


def _languages(data: Path) -> tuple[str, str]:
    if not data.is_dir():
        raise FileNotFoundError(f"{data} is not a folder")
    source, target = data_utils.infer_language_pair(str(data))
    if source is None or target is None:
        raise ValueError(
            f"the languages of {data} are not clear; name --source-lang and --target-lang"
        )
    return source, target


def _dictionary(data: Path, language: str) -> Dictionary:
    path = data / f"dict.{language}.txt"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    return Dictionary.load(str(path))
