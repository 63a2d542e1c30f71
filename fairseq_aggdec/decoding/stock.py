"""Stock fairseq's own search in a generator of ours, for models that only it decodes with as they say."""

import functools
from collections.abc import Callable
from typing import Any

from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.sequence_generator import SequenceGenerator

from fairseq_aggdec.decoding.finite import check_best
from fairseq_aggdec.decoding.member import LeftToStock

Generate = Callable[..., list[list[dict[str, Any]]]]


def or_stock(generate: Generate) -> Generate:
    """Makes of a generator's ``_generate`` one that leaves a batch to stock fairseq where a model asks for it."""

    @functools.wraps(generate)
    def found(self: Any, sample: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return generate(self, sample, *args, **kwargs)
        except LeftToStock:  # the reason was logged
            return _as_stock(self, sample, *args, **kwargs)

    return found


def _as_stock(generator: Any, sample: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """What stock fairseq finds with the generator's options; arguments as for ``SequenceGenerator._generate``."""
    size = generator.no_repeat_ngram_size
    generator.repeat_ngram_blocker = NGramRepeatBlock(size) if size > 0 else None
    found = SequenceGenerator._generate(generator, sample, *args, **kwargs)
    check_best(found)
    for hypothesis in (hypothesis for ranked in found for hypothesis in ranked):
        hypothesis |= {"steps": len(hypothesis["tokens"]), "history": []}  # a call for each token
    return found
