"""A model as a function from a batch to a batch, for engines that bring workers of their own: Ray Data, Spark.

Nothing here imports Ray. Each worker makes one :class:`Translate`, which loads the model, and calls it batch by batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from fairseq_aggdec.api.loading import from_pretrained
from fairseq_aggdec.jobs.workers import forget


class Translate:
    """Adds a column of outputs to a batch of rows.

    Args:
        path, data: checkpoint and folder of the dictionaries, as :func:`~fairseq_aggdec.from_pretrained` takes them.
        column: name of the column with the sentences.
        output: name of the new column.
        batch_size: sentences decoded together at most.
        **options: of :func:`~fairseq_aggdec.from_pretrained`, such as ``decoding="iad"`` or ``spm="spm.model"``.

    Raises:
        As :func:`~fairseq_aggdec.from_pretrained`.

    >>> folder = "checkpoints/ua_gec"
    >>> translate = Translate(f"{folder}/checkpoint.pt", folder, spm=f"{folder}/spm.model")
    >>> translate({"text": ["Це добре ."], "id": [7]})
    {'text': ['Це добре .'], 'id': [7], 'output': array(['Це добре .'], dtype=object)}
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        data: str | os.PathLike[str],
        column: str = "text",
        output: str = "output",
        batch_size: int = 64,
        **options: Any,
    ):
        self.column, self.output, self.batch_size = column, output, batch_size
        self.translator = from_pretrained(path, data, **options)

    def __call__(self, batch: Any) -> Any:
        """The batch with one more column; what was decoded before does not change it.

        Args:
            batch: columns by name, as Ray Data gives them by default, or a data frame of pandas.

        Raises:
            ValueError: there is no column of sentences. TypeError: a sentence is no string, or the batch is of another
                kind.
        """
        framed = hasattr(batch, "assign")  # pandas, which need not be installed
        if not framed and not isinstance(batch, Mapping):
            raise TypeError(
                f"a batch is a dictionary of columns or a pandas frame, no {type(batch).__name__}"
            )
        if self.column not in batch:
            names = ", ".join(map(str, batch))
            raise ValueError(f"there is no column {self.column!r} in the batch: it has {names}")
        forget(self.translator.generator)
        texts = self.translator.translate(list(batch[self.column]), self.batch_size)
        column = numpy.array(texts, dtype=object)
        return batch.assign(**{self.output: column}) if framed else {**batch, self.output: column}
