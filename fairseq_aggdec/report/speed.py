"""A method beside stock fairseq on the same sentences, one at a time: how long, where the time goes, the same text?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench import table
from fairseq_aggdec.bench.systems import label, of_session
from fairseq_aggdec.bench.timing import measure


def against_stock(
    session: Session, method: str, beam: int, batches: Sequence[dict[str, Any]]
) -> list[table.Line]:
    """Times stock with this beam, with beam 1 our greedy, and a ``--decoding``, in turn, on batches of one sentence."""
    stock = f"fairseq beam {beam}"
    wanted = {stock: "stock", "ours, greedy": "greedy"}
    wanted[f"ours, beam {beam}" if method == "beam" else label(method)] = method
    if beam > 1:
        del wanted["ours, greedy"]
    systems = [of_session(name, session, how, beam) for name, how in wanted.items()]
    return table.lines(systems, measure(systems, batches), 1, torch.get_num_threads(), [stock])
