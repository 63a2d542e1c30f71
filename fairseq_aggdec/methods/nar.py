"""``--decoding nar``: the non-autoregressive drafter alone; nobody verifies."""

from __future__ import annotations

from typing import Any

from fairseq_aggdec.drafters.draft_only import DraftOnlyGenerator
from fairseq_aggdec.methods.gad import nar_drafter
from fairseq_aggdec.methods.greedy import loop_generator, refusing
from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.search.drafter import Drafter


def draft(request: Request) -> Drafter:
    return nar_drafter(request, request.cfg, "nar")


def reads(settings: Settings) -> set[str]:
    """What it reads, and what it refuses since nobody verifies."""
    refused = {"acceptance", "draft_tree", "draft_vocabulary"}
    return refused | {"drafter_path", "draft_tokens", "int8", "no_graphs", "low_memory"}


def build(request: Request) -> Any:
    """A generator whose output is what the drafter says."""
    if request.option("print_alignment"):
        raise ValueError("--print-alignment does not go with --decoding nar: use gad")
    return loop_generator("nar", draft, request, DraftOnlyGenerator)


METHOD = Method("nar", reads, build, refusing("nar"), drafter=draft)
