"""``--decoding gad``: generalized aggressive decoding, drafts of a non-autoregressive model."""

from fairseq_aggdec.drafters.nar import NarDrafter, check_shared_encoder
from fairseq_aggdec.methods.greedy import loop_method
from fairseq_aggdec.methods.method import Request
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.methods.refusing import precision
from fairseq_aggdec.methods.shared.amounts import (
    drafted_nodes,
    drafted_size,
    drafts_in_int8,
    with_what_pays,
)
from fairseq_aggdec.methods.shared.loading import load_drafter
from fairseq_aggdec.search.drafter import Drafter


def nar_drafter(request: Request, cfg: Settings) -> NarDrafter:
    """The drafter of ``--drafter-path``, on the device and in the precision of the verifier; ``cfg`` says how much."""
    if not cfg.drafter_path:
        raise ValueError(
            f"--decoding {cfg.decoding} needs a drafter (--arch nar_drafter): name its checkpoint with --drafter-path"
        )
    models = request.models
    drafter = load_drafter(cfg.drafter_path, request.task)
    drafter.to(next(models[0].parameters()))  # device and precision
    if drafter.shares_encoder and len(models) == 1:
        check_shared_encoder(drafter, models[0])
    size, nodes = drafted_size(cfg, drafter), drafted_nodes(cfg, drafter)
    return NarDrafter(drafter, size, precision(cfg), drafts_in_int8(cfg), nodes)


def model_reads(settings: Settings) -> set[str]:
    """The options about drafts of a method whose model drafts."""
    return {"draft_tokens", "draft_tree", "int8", "acceptance", "call_price"}


def reads(settings: Settings) -> set[str]:
    return model_reads(settings) | {"drafter_path"}


def draft(request: Request) -> Drafter:
    return nar_drafter(request, with_what_pays(request.cfg, request.models))


METHOD = loop_method("gad", draft, reads)
