"""``--decoding iad``: input-guided aggressive decoding, which copies its drafts from a text.

The text is the source, what another model wrote, or the lines of a file (``--draft-from``). It is drafted whole, and
after a bifurcation drafting goes on where a suffix of the output occurs in it (Algorithm 1 of Ge et al.).
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any

from fairseq_aggdec.drafters.copy.input_copy import CopyDrafter, InputCopyDrafter
from fairseq_aggdec.methods.greedy import loop_method
from fairseq_aggdec.methods.method import Request
from fairseq_aggdec.methods.options.settings import OF_INTERLEAVED, OF_LATTICE, Settings
from fairseq_aggdec.methods.shared.amounts import copied_length
from fairseq_aggdec.methods.shared.loading import load_writer
from fairseq_aggdec.methods.table import method_of
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import Drafter, EmptyDrafter
from fairseq_aggdec.search.errors import refusal

# --draft-from -> the options that the text comes from.
TEXT_READS: dict[str, set[str]] = {
    "file": {"draft_file"},
    "interleaved": {"drafter_path", *OF_INTERLEAVED},
    "lattice": {"drafter_path", *OF_LATTICE},
}


def reads(settings: Settings) -> set[str]:
    """The options about drafts that have an effect."""
    kind = settings.draft_from
    if kind == "none":
        return {"draft_from"}
    found = {"draft_from", "draft_file", "draft_tokens", "acceptance", "iad_match"}
    return found | TEXT_READS.get(kind, set())


def copy_drafter(request: Request) -> CopyDrafter | None:
    """Copies the text that ``--draft-from`` names; None where the sources are no text and nobody asked for copies."""
    cfg, task = request.cfg, request.task
    kind, match, target = cfg.draft_from, cfg.iad_match, task.target_dictionary
    if cfg.draft_file and kind != "file":
        raise ValueError(f"--draft-file {cfg.draft_file} is read with --draft-from file only")
    drafter: CopyDrafter
    if kind in ("interleaved", "lattice"):
        drafter = _writer_drafter(request)
    elif kind == "file":
        if not cfg.draft_file:
            raise ValueError("--draft-from file: name the file with --draft-file")
        from fairseq_aggdec.methods.shared.texts import FileDrafter

        sizes = {len(dataset) for dataset in task.datasets.values()}
        drafter = FileDrafter(cfg.draft_file, target, match, sizes)
    elif (source := source_dictionary(task)) is not None:
        eos, symbols = getattr(request.stock(), "eos", None), getattr(task, "symbols", None)
        drafter = InputCopyDrafter(source, target, match, eos, symbols)
        task.symbols = drafter.symbols  # for the next generator
    elif kind == "source" or request.asked == "iad":
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


def _writer_drafter(request: Request) -> CopyDrafter:
    """Copies what the model of ``--drafter-path`` writes. The length limits of the output hold for its texts too."""
    cfg, task, kind = request.cfg, request.task, request.cfg.draft_from
    if not cfg.drafter_path:
        raise ValueError(
            f"--draft-from {kind}: name the checkpoint of a model (--arch {kind}_transformer) with --drafter-path"
        )
    model = load_writer(cfg.drafter_path, task).to(next(request.models[0].parameters()))
    names = ("max_len_a", "max_len_b")
    limits = {name: request.option(name) for name in names if hasattr(request.args, name)}
    args = Namespace(beam=1, **limits)
    generator = method_of(kind).build(
        replace(request, models=[model], args=args, extra={}, named="--drafter-path")
    )
    generator.counters = Counters()  # what the drafter does is not what the summary counts
    from fairseq_aggdec.methods.shared.texts import WriterDrafter

    return WriterDrafter(generator, model, task.target_dictionary.eos(), cfg.iad_match)


def draft(request: Request) -> Drafter:
    """Copies the text that ``--draft-from`` names; nothing with ``none``."""
    kind = request.cfg.draft_from
    if kind == "none":
        return EmptyDrafter()
    if kind == "heads":
        raise ValueError(refusal("--draft-from heads", "iad", "use blockwise, or beam"))
    return copy_drafter(request) or EmptyDrafter()


METHOD = loop_method("iad", draft, reads)
