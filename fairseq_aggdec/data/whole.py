"""Checks that files of a data set are whole: fairseq says it late, or without the name of the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairseq.data.indexed_dataset import MMapIndexedDataset

PARTS = ("src", "tgt", "dataset", "datasets")


def check_whole(dataset: Any) -> None:
    """Raises ``ValueError`` for the first mapped file in a data set that ends before its last sentence does."""
    if isinstance(dataset, MMapIndexedDataset):
        index = dataset._index
        if len(index):
            end = int(index._pointers[-1]) + int(index._sizes[-1]) * index._dtype_size
            if end > len(dataset._bin_buffer):
                raise ValueError(
                    f"{dataset._path}.bin is cut: {len(dataset._bin_buffer)} of {end} bytes"
                )
        return
    for name in PARTS:
        part = getattr(dataset, name, None)
        for one in part if isinstance(part, (list, tuple)) else [part]:
            if one is not None:
                check_whole(one)


@contextmanager
def naming_dictionary(path: str) -> Iterator[None]:
    """Names the file of a dictionary that is read within.

    Raises:
        ValueError: in place of fairseq's errors.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split(". ")[0].split())
        raise ValueError(
            f"{path} is damaged ({reason[:80]}): each line has a word and its count, and no word stands twice; copy it "
            "from the model's data folder."
        ) from error
