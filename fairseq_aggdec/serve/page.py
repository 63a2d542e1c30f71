"""The page at ``/``, and what it shows of how a sentence was decoded."""

from __future__ import annotations

from typing import Any

import torch

from fairseq_aggdec.api.calls import Call
from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.bench.recording import recording
from fairseq_aggdec.report import beam_trace, trace
from fairseq_aggdec.report.pages import templates
from fairseq_aggdec.search.beam.generator import BeamGenerator
from fairseq_aggdec.search.greedy.generator import DraftAndVerifyGenerator

TRACED = 5  # sentences of a request that the page shows call by call


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
        languages=list(translator.language_support.all or ()),
        traced=TRACED,
        keys=keys,
    )


def traced(translator: Translator, sentence: str, call: Call) -> dict[str, Any]:
    """Shows how a sentence is decoded in the languages of a call, for the page.

    Returns:
        ``text`` of the output; ``calls`` of the decoder, None where the method does not say; ``tokens``: the calls that
        one token at a time would take; ``trace``: the calls as HTML; ``tree``: of a beam search, as HTML; ``""``
        where there is none.
    """
    source, languages = translator.tokens(sentence, call.source_lang), translator.language_support
    words = (
        languages.words("source", call.source_lang),
        languages.words("target", call.target_lang),
    )
    with translator.alone():  # no other thread decodes between the search and the look at it
        with languages.of(call):
            generator, traces = translator.generator_for(call), list[trace.Trace]()
        if isinstance(generator, BeamGenerator):
            generator.searches = []  # a model that is left to stock fairseq has none
            generator.keeps_trees = True
            try:
                best = _decode(translator, source, call)
            finally:
                generator.keeps_trees = False
            for search in generator.searches:
                given = source.tolist(), search, search.ranked, words
                traces = [beam_trace.trace_calls(*given), beam_trace.trace(*given)]
        elif isinstance(generator, DraftAndVerifyGenerator) and generator.verified:
            with recording(generator, words[0].pad()) as recorder:
                best = _decode(translator, source, call)
            traces = [trace.trace(one, *words) for one in recorder.records if one.iterations]
        else:
            best = _decode(translator, source, call)
    drawn = [_drawn(*one) for one in zip(traces, ("Call by call", "Tree"), strict=False)]
    return {
        "text": best.text,
        "calls": best.steps,
        "tokens": traces[0].tokens if traces else len(best.tokens) + 1,
        "trace": drawn[0] if drawn else "",
        "tree": drawn[1] if len(drawn) > 1 else "",
    }


def _decode(translator: Translator, source: torch.Tensor, call: Call) -> Any:
    ((best, *_),) = translator.decode_tokens([source], [0], 1, call)
    return best


def _drawn(shown: trace.Trace, label: str) -> str:
    """A trace as a part of a page, what its colours mean first."""
    parts: Any = templates().get_template("trace.html").module
    drawn = parts.section(shown, label, trace.block)
    return f"{parts.legend(trace.legend([shown]))}{drawn}"
