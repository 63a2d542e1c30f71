"""``--decoding blockwise``: the extra heads of the model itself draft."""

from __future__ import annotations

from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.methods.gad import after_copies, model_reads
from fairseq_aggdec.methods.greedy import loop_method
from fairseq_aggdec.methods.method import Request
from fairseq_aggdec.methods.shared.amounts import (
    blockwise_size,
    choosing,
    drafted_nodes,
    on_gpu,
    proposing,
    with_what_pays,
)
from fairseq_aggdec.search.drafter import Drafter


def draft(request: Request) -> Drafter:
    models = request.models
    cfg, gpu = with_what_pays(request.cfg, models), on_gpu(models[0])
    size = choosing(cfg, blockwise_size(cfg, models) - 1, models[0])
    drafter = BlockwiseHeadsDrafter(size, proposing(cfg), drafted_nodes(cfg, gpu))
    return after_copies(request, drafter)


METHOD = loop_method("blockwise", draft, model_reads)
