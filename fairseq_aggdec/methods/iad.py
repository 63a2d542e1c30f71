"""``--decoding iad``: input-guided aggressive decoding, which copies its drafts from a text.

The text is the source, or the lines of a file (``--draft-from``). It is drafted whole, and
after a bifurcation drafting goes on where a suffix of the output occurs in it (Algorithm 1 of Ge et al.).
"""

from typing import Any

from fairseq_aggdec.drafters.copy.input_copy import CopyDrafter, InputCopyDrafter
from fairseq_aggdec.methods.greedy import loop_method
from fairseq_aggdec.methods.method import Request
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.methods.shared.amounts import copied_length
from fairseq_aggdec.search.drafter import Drafter, EmptyDrafter


def reads(settings: Settings) -> set[str]:
    """The options about drafts that have an effect."""
    kind = settings.draft_from
    if kind == "none":
        return {"draft_from"}
    return {"draft_from", "draft_file", "draft_tokens", "acceptance", "iad_match", "call_price"}


def copy_drafter(request: Request) -> CopyDrafter | None:
    """Copies the text that ``--draft-from`` names; None where the sources are no text and nobody asked for copies."""
    cfg, task = request.cfg, request.task
    kind, match, target = cfg.draft_from, cfg.iad_match, task.target_dictionary
    if cfg.draft_file and kind != "file":
        raise ValueError(f"--draft-file {cfg.draft_file} is read with --draft-from file only")
    drafter: CopyDrafter
    if kind == "file":
        if not cfg.draft_file:
            raise ValueError("--draft-from file: name the file with --draft-file")
        from fairseq_aggdec.methods.shared.texts import FileDrafter

        sizes = {len(dataset) for dataset in task.datasets.values()}
        drafter = FileDrafter(cfg.draft_file, target, match, sizes)
    elif (source := source_dictionary(task)) is not None:
        eos, symbols = getattr(request.stock(), "eos", None), getattr(task, "symbols", None)
        drafter = InputCopyDrafter(source, target, match, eos, symbols)
        task.symbols = drafter.symbols  # for the next generator
    elif kind == "source" or request.decoding == "iad":
        raise ValueError(
            f"--task {task.kind} has no text to copy drafts from: use --decoding beam or greedy"
        )
    else:
        return None
    drafter.limit_drafts(copied_length(cfg))
    return drafter


def source_dictionary(task: Any) -> Any:
    """Source dictionary of a task whose sources are text, else None."""
    try:
        return task.source_dictionary
    except NotImplementedError:
        return None


def draft(request: Request) -> Drafter:
    """Copies the text that ``--draft-from`` names; nothing with ``none``."""
    if request.cfg.draft_from == "none":
        return EmptyDrafter()
    return copy_drafter(request) or EmptyDrafter()


METHOD = loop_method("iad", draft, reads)
