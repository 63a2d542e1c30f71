"""Batches in parts: sentences are independent of each other, and a GPU decodes up to 256 at once without the host.

fairseq makes batches by ``--max-tokens``, of 300 sentences and more. Every part keeps the padding of its batch, because
maximum lengths count it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.engine.graphs.window_graphs import ROWS, grid_end
from fairseq_aggdec.search.state import Batch

logger = logging.getLogger(__name__)

USED = 0.8  # of the memory that is free, for keys and values: activations and logits need the rest


def parts(batch: Batch, most: int) -> Iterator[tuple[int, Batch]]:
    """Parts of a batch, of at most ``most`` sentences and about as many each, with the place of the first sentence."""
    rows = len(batch.source)
    count = -(-rows // most)
    if count == 1:
        yield 0, batch
        return
    ends = [rows * part // count for part in range(count + 1)]
    for first, end in itertools.pairwise(ends):
        sample = _rows(batch.sample, rows, first, end)
        yield first, Batch(sample, batch.start, batch.prefixes[first:end])


def _rows(value: Any, rows: int, first: int, end: int) -> Any:
    """Everything in a sample that has an entry for each sentence, for some of them."""
    if isinstance(value, Tensor):
        if not value.dim() or len(value) != rows:
            return value
        return value[first:end]
    if isinstance(value, Mapping):
        return {name: _rows(one, rows, first, end) for name, one in value.items()}
    return value[first:end] if isinstance(value, list) and len(value) == rows else value


def rows_that_fit(
    rows: int, device: torch.device, decoders: list[Any], keys: int, sources: int
) -> int:
    """Number of sentences whose keys and values fit into the memory of a GPU, at most those that are decoded without
    the host.

    Args:
        rows: sentences of the batch.
        decoders: read the sentences.
        keys: of the cache of a sentence. sources: tokens of its source.
    """
    decoders = [
        one for one in decoders if one is not None
    ]  # stock decodes with those that are missing
    each = sum(one.bytes_of_a_key for one in decoders) * (grid_end(keys) + grid_end(sources))
    held = sum(one.graphs.bytes for one in decoders if one.graphs is not None)
    if rows <= ROWS[-1] and rows * each <= held:  # the usual case asks the driver nothing
        return rows
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free += held
    most = max((some for some in ROWS if some * each <= USED * free), default=ROWS[0])
    if most < min(rows, ROWS[-1]):
        logger.info(
            "batches are decoded %d sentences at a time: the KV cache of more would not fit into %.1f GiB of free "
            "memory",
            most,
            free / 2**30,
        )
    return most
