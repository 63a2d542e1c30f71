"""The page at ``/``, and what it shows of how a sentence was decoded."""

from __future__ import annotations

from typing import Any

import torch

from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.bench.recording import recording
from fairseq_aggdec.report import beam_trace, trace
from fairseq_aggdec.report.pages import templates
from fairseq_aggdec.search.beam.generator import BeamGenerator
from fairseq_aggdec.search.greedy.generator import DraftAndVerifyGenerator


def whole(translator: Translator, keys: bool) -> str:
    """The page as HTML, which loads nothing else; ``keys``: the service asks for a key."""
    source, target = translator.languages
    page = templates().get_template("serve.html")
    return page.render(
        title="Translate",
        decoding=translator.own.decoding,
        beam=translator.own.beam,
        source=source,
        target=target,
        keys=keys,
    )


def traced(translator: Translator, sentence: str) -> dict[str, Any]:
    """How a sentence is decoded, for the page.

    Returns:
        ``text`` of the output; ``calls`` of the decoder, None where the method does not say; ``tokens``: the calls that
        one token at a time would take; ``trace``: the calls as HTML; ``tree``: of a beam search, as HTML; ``""``
        where there is none.
    """
    source = translator.tokens(sentence)
    with translator.alone():  # no other thread decodes between the search and the look at it
        generator, traces = translator.generator, list[trace.Trace]()
        if isinstance(generator, BeamGenerator):
            generator.searches = []  # a model that is left to stock fairseq has none
            generator.keeps_trees = True
            try:
                best = _decode(translator, source)
            finally:
                generator.keeps_trees = False
            words = translator.task.source_dictionary, translator.task.target_dictionary
            for search in generator.searches:
                given = source.tolist(), search, search.ranked, words
                traces = [beam_trace.trace_calls(*given), beam_trace.trace(*given)]
        elif isinstance(generator, DraftAndVerifyGenerator) and generator.verified:
            best, traces = recorded(translator, source)
        else:
            best = _decode(translator, source)
    drawn = [_drawn(*one) for one in zip(traces, ("Call by call", "Tree"), strict=False)]
    return {
        "text": best.text,
        "calls": best.steps,
        "tokens": traces[0].tokens if traces else len(best.tokens) + 1,
        "trace": drawn[0] if drawn else "",
        "tree": drawn[1] if len(drawn) > 1 else "",
    }


def _decode(translator: Translator, source: torch.Tensor) -> Any:
    ((best, *_),) = translator.decode_tokens([source], [0], 1)
    return best


def recorded(translator: Translator, source: torch.Tensor) -> tuple[Any, list[trace.Trace]]:
    """The output of a greedy method, and what was drafted and accepted in each call."""
    words = translator.task.source_dictionary, translator.task.target_dictionary
    with recording(translator.generator, words[0].pad()) as recorder:
        best = _decode(translator, source)
    return best, [trace.trace(record, *words) for record in recorder.records if record.iterations]


def _drawn(shown: trace.Trace, label: str) -> str:
    """A trace as a part of a page, what its colours mean first."""
    parts: Any = templates().get_template("trace.html").module
    drawn = parts.section(shown, label, trace.block)
    return f"{parts.legend(trace.legend([shown]))}{drawn}"
