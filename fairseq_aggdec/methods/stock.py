"""``--decoding stock``: fairseq's own generator."""

from typing import Any

from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.search.guards import block_repeats


def build(request: Request) -> Any:
    """fairseq's generator. Where ``--decoding beam`` is left to it, it blocks repeated n-grams without an extension."""
    generator = request.stock()
    if request.decoding == "beam":
        block_repeats(generator, request.option("no_repeat_ngram_size", 0))
    return generator


METHOD = Method("stock", lambda settings: set(), build)
