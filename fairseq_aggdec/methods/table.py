"""The table of methods. A new method is one file and one line here."""

from __future__ import annotations

from typing import Any

from fairseq_aggdec.methods import (
    beam,
    blockwise,
    gad,
    greedy,
    iad,
    interleaved,
    lattice,
    nar,
    stock,
)
from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.search.drafter import Drafter

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD
    for module in (beam, stock, greedy, iad, gad, nar, blockwise, interleaved, lattice)
}


def build_generator(request: Request, prepare: bool = True) -> Any:
    """The generator of ``--decoding``, or of what the method becomes with these options and models.

    Args:
        prepare: pack the weights now, so that the first answer takes no longer than later ones. Training builds its
            generator before the models have their device, and changes them.

    Raises:
        FileNotFoundError, CheckpointError, ValueError: what does not fit, in one sentence.
    """
    method = METHODS["stock" if request.option("score_reference") else str(request.cfg.decoding)]
    while other := method.becomes(request):
        method = METHODS[other]
    method.refuses(request)
    generator = method.build(request)
    if prepare and method.name != "stock":
        generator.prepare()
    return generator


def build_drafter(name: str, request: Request) -> Drafter:
    """The drafter of a method that has one."""
    build = METHODS[name].drafter
    assert build is not None, f"--decoding {name} has no drafter"
    return build(request)
