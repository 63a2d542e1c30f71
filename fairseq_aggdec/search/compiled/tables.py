"""Tables from which a search of the compiled library decides, made on the device that has the logits.

A table has the K likeliest tokens of one place of a window as the generation rules leave them, in 2 K + 3 numbers:
logits as the rules change them, best first; tokens; the logit of the first token without changes; the largest logit;
the logarithm of the sum of the exponentials above it. The log-probability of a logit x is ``x - largest - log_sum``.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu.largest import first_largest
from fairseq_aggdec.kernels.library import TableStruct, kernels
from fairseq_aggdec.windows.transfer import sent


@dataclass(frozen=True)
class TableRequest:
    """Request of a search: tables of the logits (N, V) of its window. All tensors are on the host.

    Attributes:
        most: K, where the vocabulary has as many tokens.
        pad: is never written.
        changes: (C, 3) int64, a place, a token, and the bits of the fp64 number that is added to its logit, in the
            order of the places. -inf bans the token; +inf forces it, and is the last of its place.
        wanted: (W, 2) int64, places and tokens whose logits are wanted beside, without changes.
    """

    most: int
    pad: int
    changes: Tensor
    wanted: Tensor

    @classmethod
    def of(cls, request: Any) -> TableRequest:
        """The request of a window that a search of the library asks for, valid until its tables are taken."""
        changes, wanted = (
            _numbers(request.changes, request.changed, 3),
            _numbers(request.wanted, request.wants, 2),
        )
        return cls(request.most, request.pad, changes, wanted)

    def values(self) -> Tensor:
        """(C,) fp64, by how much logits change."""
        return self.changes[:, 2].contiguous().view(torch.float64)


def changes_of(triples: list[tuple[int, int, float]]) -> Tensor:
    """(C, 3) int64 as :class:`TableRequest` has them, of places, tokens and numbers."""
    changes = torch.tensor([triple[:2] for triple in triples], dtype=torch.int64).view(-1, 2)
    values = torch.tensor([triple[2] for triple in triples], dtype=torch.float64)
    return torch.cat([changes, values.view(torch.int64).unsqueeze(1)], 1)


def _numbers(of: Any, count: int, size: int) -> Tensor:
    """(``count``, ``size``) int64 of the library's memory, not copied."""
    if not count:
        return torch.empty(0, size, dtype=torch.int64)
    memory = (ctypes.c_int64 * (count * size)).from_address(ctypes.addressof(of.contents))
    return torch.frombuffer(memory, dtype=torch.int64).view(count, size)


def tables_of(logits: Tensor, request: TableRequest) -> tuple[Tensor, Tensor]:
    """Tables (N, 2 K + 3) of logits (N, V), and the logits (W,) that are wanted beside; fp32 on the host.

    On a GPU they are made there, and one copy brings them to the host. On a CPU the compiled library makes them.
    """
    library = kernels()
    if logits.device.type != "cpu" or library is None:
        return by_operators(logits, request)
    logits = logits.float().contiguous()
    (rows, types), wanted = logits.shape, len(request.wanted)
    best = min(request.most, types)
    tables, values = logits.new_empty(rows, 2 * best + 3), logits.new_empty(wanted)
    call = TableStruct(
        *(logits.data_ptr(), rows, types, best, request.pad, torch.get_num_threads(), True),
        *(len(request.changes), request.changes.data_ptr(), wanted, request.wanted.data_ptr()),
        *(tables.data_ptr(), values.data_ptr()),
    )
    library.aggdec_tables(ctypes.addressof(call))
    return tables, values


def by_operators(logits: Tensor, request: TableRequest) -> tuple[Tensor, Tensor]:
    """:func:`tables_of` on any device, which the host waits for once, at the end."""
    logits = logits.float()
    largest = logits.amax(1, keepdim=True)
    log_sum = (logits - largest).exp_().sum(1, keepdim=True).log_()
    ruled = change_logits(logits.clone(), request)
    best = min(request.most, logits.size(1))
    if best > 1:
        values, tokens = _ranked(ruled, best)
    else:
        tokens = first_largest(ruled).unsqueeze(1)
        values = ruled.gather(1, tokens)
    forced = request.changes[request.values() == math.inf]
    if len(forced):
        places, forced_tokens, _ = sent(forced, logits.device).unbind(1)
        values[places, 0] = ruled[places, forced_tokens]
        tokens[places, 0] = forced_tokens
    first = logits.gather(1, tokens[:, :1])
    tables = torch.cat([values, tokens.float(), first, largest, log_sum], 1)
    places, others = sent(request.wanted, logits.device).unbind(1)
    wanted = logits[places, others].masked_fill(others == request.pad, -torch.inf)
    both = torch.cat([tables.flatten(), wanted]).cpu()
    return both[: tables.numel()].view(tables.shape), both[tables.numel() :]


def change_logits(logits: Tensor, request: TableRequest) -> Tensor:
    """Applies the rules to logits (N, V) fp32 in place, but for tokens that are forced."""
    logits[:, request.pad] = -torch.inf
    values = request.values()
    added = values != math.inf
    if added.any():
        places, tokens, _ = sent(request.changes[added], logits.device).unbind(1)
        by = sent(values[added].float(), logits.device)
        logits.index_put_((places, tokens), by, accumulate=True)
    return logits


def forced_logits(logits: Tensor, request: TableRequest) -> Tensor:
    """Logits (N, V) fp32 on the host as an acceptance rule in Python reads them, changed in place.

    Where a token is forced, it has 0 and all others -inf.
    """
    change_logits(logits, request)
    forced = request.changes[request.values() == math.inf]
    logits[forced[:, 0]] = -torch.inf
    logits[forced[:, 0], forced[:, 1]] = 0.0
    return logits


def _ranked(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of (N, V) and their places; of equal ones the first comes first."""
    places = logits.topk(count).indices.sort(1).values
    values, order = logits.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)
