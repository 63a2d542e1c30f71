"""``--decoding blockwise``: the extra heads of the model itself draft."""

from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.methods.gad import model_reads
from fairseq_aggdec.methods.greedy import loop_method
from fairseq_aggdec.methods.method import Request
from fairseq_aggdec.methods.shared.amounts import (
    blockwise_size,
    choosing,
    drafted_nodes,
    drafts_in_int8,
    with_what_pays,
)
from fairseq_aggdec.search.drafter import Drafter


def draft(request: Request) -> Drafter:
    models = request.models
    cfg = with_what_pays(request.cfg, models)
    size = choosing(cfg, blockwise_size(cfg, models) - 1, models[0])
    return BlockwiseHeadsDrafter(size, drafts_in_int8(cfg), drafted_nodes(cfg, models[0]))


METHOD = loop_method("blockwise", draft, model_reads)
