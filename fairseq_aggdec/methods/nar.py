"""``--decoding nar``: the non-autoregressive drafter alone; nobody verifies."""

from typing import Any

from fairseq_aggdec.methods.gad import nar_drafter
from fairseq_aggdec.methods.greedy import loop_generator, refuses
from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.search.acceptance import trusting


def reads(settings: Settings) -> set[str]:
    """Names what the method reads, and what it refuses since nobody verifies."""
    refused = {"acceptance", "draft_tree"}
    return refused | {"drafter_path", "draft_tokens", "int8", "no_graphs", "low_memory"}


def build(request: Request) -> Any:
    """A generator whose output is what the drafter says."""
    cfg = request.cfg
    verified = {
        f"--acceptance {cfg.acceptance}": not cfg.acceptance.lossless,
        "--draft-tree": cfg.draft_tree is not None,
        cfg.as_given("draft_tokens"): cfg.draft_tokens == "auto",
        "--int8 drafts": cfg.int8 == "drafts",
        "--print-alignment": request.option("print_alignment"),
    }
    for option, is_set in verified.items():
        if is_set:
            raise ValueError(f"{option} needs a verifier, --decoding nar has none: use gad")
    return loop_generator(request, trusting)


METHOD = Method("nar", reads, build, refuses, drafter=lambda one: nar_drafter(one, one.cfg))
