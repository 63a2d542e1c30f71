"""How an engine is made to decode the cases of :mod:`tests.rule_cases`, and drafts for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fairseq_aggdec.search import engines
from fairseq_aggdec.search.drafter import DeviceDrafter
from fairseq_aggdec.search.engines import BEAM, BoardEngine, EngineRequest
from fairseq_aggdec.windows.draft import Draft
from tests.rule_cases import EOS, UNK, WRONG_WORD


def not_asked(*asked: Any) -> Iterator[str]:
    yield "not asked"


def wherever_it_can(engine: Any, request: EngineRequest) -> Iterator[str]:
    """Gaps of a board that decodes without a GPU."""
    if request.search == BEAM:
        return
    if not isinstance(request.drafter, DeviceDrafter) or request.size_on_device is None:
        yield "drafts of the host"


@contextmanager
def on_board() -> Iterator[None]:
    """The board decodes, though there is no GPU."""
    with mock.patch.object(BoardEngine, "gaps", wherever_it_can):
        yield


@contextmanager
def in_library() -> Iterator[None]:
    """The compiled library decodes each batch in one call."""
    with mock.patch.object(BoardEngine, "gaps", not_asked):
        yield


@contextmanager
def by_windows() -> Iterator[None]:
    """It searches, and PyTorch reads its windows."""
    with in_library(), mock.patch.object(engines, "_unread_by_library", not_asked):
        yield


class Prompter(DeviceDrafter):
    """Drafts given texts from where an output is, on the host and on a device, whatever was written before.

    Args:
        texts: of the sentences.
        size: tokens of a draft.
    """

    def __init__(self, texts: Sequence[Sequence[int]], size: int = 4):
        longest = max(map(len, texts))
        self.texts = [[*text, *[WRONG_WORD] * (longest - len(text) + size)] for text in texts]
        self.size = size

    def _from(self, row: int, place: int) -> list[int]:
        return self.texts[row][place : place + self.size]

    def draft(self, state: Any) -> Draft:
        return Draft(
            [self._from(row.index, row.position)[: row.end - row.position] for row in state.rows]
        )

    def start_on_device(self, state: Any) -> int | None:
        nobody = [0] * len(self.texts[0])
        self.on_device = torch.tensor([*self.texts, nobody], device=state.device)
        return self.size

    def block(self, board: Any, owners: Tensor, rows: Any, shape: Any) -> Tensor:
        places = rows.base.unsqueeze(1) + torch.arange(shape.width - 1, device=owners.device)
        texts = self.on_device[owners.clamp(max=len(self.texts))]
        return texts.gather(1, places.clamp(max=texts.size(1) - 1))


def half_right(outputs: Sequence[Sequence[int]]) -> Prompter:
    """Drafts of which about half stand: wrong words, unknown ones and ends stand between the right ones."""
    wrong = {2: WRONG_WORD, 5: EOS, 7: UNK}
    return Prompter(
        [[wrong.get(place % 9, word) for place, word in enumerate(own)] for own in outputs]
    )
