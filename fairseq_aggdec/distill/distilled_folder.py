"""Data folders whose targets are a teacher's outputs.

Follows :mod:`fairseq_aggdec.distill.distillation`, which reads the outputs. Token ids are copied and
never encoded anew, so an unknown word of the source stays the unknown word it was.
"""

import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset
from torch import Tensor

from fairseq_aggdec.distill.distillation import (
    DistillationError,
    Filter,
    Output,
    count_reasons,
)
from fairseq_aggdec.distill.shards import Distilled

logger = logging.getLogger(__name__)

TEXT = "text"  # sub-folder of the text files


@dataclass(frozen=True)
class DataFolder:
    """A folder as ``fairseq-preprocess`` writes it; ``impl`` is its ``--dataset-impl``, None: as the files are."""

    path: Path
    source: str
    target: str
    impl: str | None = None

    @property
    def languages(self) -> tuple[str, str]:
        return self.source, self.target

    def prefix(self, subset: str) -> str:
        """Path of a set up to the language; either order of the languages will do, as in fairseq."""
        for pair in (f"{self.source}-{self.target}", f"{self.target}-{self.source}"):
            path = str(self.path / f"{subset}.{pair}.")
            if indexed_dataset.dataset_exists(path + self.source, self.impl):
                return path
        name = f"{subset}.{self.source}-{self.target}.{self.source}"
        raise DistillationError(f"{self.path} has no {name}: check DATA and SUBSET")

    def files(self, subset: str) -> list[Path]:
        """Both sides of a set and both dictionaries."""
        prefix = self.prefix(subset)
        endings = [language + end for language in self.languages for end in ("", ".bin", ".idx")]
        files = [Path(prefix + ending) for ending in endings]
        return [path for path in files if path.exists()] + self.dictionaries()

    def dictionaries(self) -> list[Path]:
        return [self.path / f"dict.{language}.txt" for language in self.languages]

    def side(self, subset: str, language: str, dictionary: Dictionary) -> Any:
        """One language of a set, as it was binarised; None without such a file."""
        return data_utils.load_indexed_dataset(
            self.prefix(subset) + language, dictionary, self.impl
        )

    def files_beside(self, subsets: Sequence[str]) -> Iterator[Path]:
        """Files of the sets that keep their references.

        Parts ``train1``, ``train2`` ... are not among them where ``train`` is distilled: fairseq-train
        would add them, with their references, to the distilled ones.
        """
        for pair in sorted({f"{self.source}-{self.target}", f"{self.target}-{self.source}"}):
            for path in sorted(self.path.glob(f"*.{pair}.*")):
                subset = path.name.split(".")[0]
                if subset in subsets:
                    continue
                if "train" in subsets and re.fullmatch(r"train\d+", subset):
                    logger.warning("%s is left out: add it to --subsets", path.name)
                else:
                    yield path


def copy_the_rest(data: DataFolder, output: Path, subsets: Sequence[str]) -> None:
    """Copies dictionaries and the sets that are not distilled."""
    for path in [*data.dictionaries(), *data.files_beside(subsets)]:
        shutil.copyfile(path, output / path.name)


def write_subset(
    data: DataFolder,
    output: Path,
    distilled: Distilled,
    rule: Filter,
    dictionaries: tuple[Dictionary, Dictionary],
) -> dict[str, Any]:
    """Writes the pairs that are kept, binarised and as text, and a list of those that are dropped.

    Args:
        output: the new folder, with its sub-folder :data:`TEXT`.

    Returns:
        counts and mean lengths, ready for JSON.

    Raises:
        DistillationError: nothing is kept.
    """
    subset = distilled.header["subset"]
    sources = data.side(subset, data.source, dictionaries[0])
    references = data.side(subset, data.target, dictionaries[1])
    reasons = [
        rule.reason(int(size) - 1, written)
        for size, written in zip(sources.sizes, distilled.outputs, strict=True)
    ]
    pairs = [
        (number, with_end(written, dictionaries[1].eos()))
        for number, (reason, written) in enumerate(zip(reasons, distilled.outputs, strict=True))
        if reason is None and written is not None
    ]
    if not pairs:
        counts = ", ".join(
            f"{count} {reason}" for reason, count in count_reasons(reasons).items() if count
        )
        raise DistillationError(
            f"{subset}: no pair is left of {len(reasons)} (dropped: {counts}); see --keep-cut, --max-length-ratio"
        )
    kept, targets = [number for number, _ in pairs], [target for _, target in pairs]
    name = f"{subset}.{data.source}-{data.target}"
    write_side(output, name, data.source, dictionaries[0], (sources[number] for number in kept))
    write_side(output, name, data.target, dictionaries[1], targets)
    write_dropped(
        output / TEXT / f"{subset}.dropped.tsv", reasons, distilled.outputs, dictionaries[1]
    )
    return {
        "sentences": len(distilled.outputs),
        "kept": len(kept),
        "dropped": count_reasons(reasons),
        "mean_length": {
            "source": mean_length(sources.sizes[kept]),
            "distilled": mean_length([len(target) for target in targets]),
            "reference": None if references is None else mean_length(references.sizes[kept]),
        },
    }


def with_end(written: Output, end: int) -> Tensor:
    """The output as fairseq binarises a sentence: (T,) int64, ``</s>`` last."""
    return torch.from_numpy(np.append(written.tokens, end).astype(np.int64))


def write_side(
    output: Path, name: str, language: str, dictionary: Dictionary, sentences: Iterable[Tensor]
) -> None:
    """Writes one language of a set: ``NAME.LANGUAGE.bin``, ``.idx`` and ``text/SUBSET.LANGUAGE``.

    Args:
        name: ``SUBSET.SOURCE-TARGET``.
        sentences: token ids (T,) with ``</s>``.
    """
    path = str(output / f"{name}.{language}")
    text = output / TEXT / f"{name.split('.')[0]}.{language}"
    builder = indexed_dataset.make_builder(
        indexed_dataset.data_file_path(path), "mmap", len(dictionary)
    )
    with text.open("w", encoding="utf-8") as file:
        for tokens in sentences:
            builder.add_item(tokens)
            file.write(symbols(dictionary, tokens.tolist()[:-1]) + "\n")
    builder.finalize(indexed_dataset.index_file_path(path))


def write_dropped(
    path: Path,
    reasons: Sequence[str | None],
    outputs: Sequence[Output | None],
    dictionary: Dictionary,
) -> None:
    """Writes sentence number, reason and output of every pair that is dropped, tabs between them."""
    with path.open("w", encoding="utf-8") as file:
        for number, (reason, written) in enumerate(zip(reasons, outputs, strict=True)):
            if reason is not None:
                tokens = [] if written is None else written.tokens.tolist()
                file.write(f"{number}\t{reason}\t{symbols(dictionary, tokens)}\n")


def symbols(dictionary: Dictionary, tokens: Iterable[int]) -> str:
    """Dictionary symbols with blanks between them: what fairseq-preprocess would read back as these ids."""
    return " ".join(dictionary[token] for token in tokens)


def mean_length(sizes: Any) -> float | None:
    """Mean number of symbols, ``</s>`` not counted though it is in ``sizes``; None of nothing."""
    return round(float(np.mean(sizes)) - 1, 2) if len(sizes) else None
