"""Interleaved search of whole batches in the compiled library."""

from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.search.beam.library import beam_options
from fairseq_aggdec.search.compiled.rules import rule_options
from fairseq_aggdec.search.compiled.searches import (
    InterleavedOptionsStruct,
    Outputs,
    WholeSearch,
)
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.search.interleaved.search import SentenceResult
from fairseq_aggdec.search.rules import Rules


def search_of(
    options: Options,
    geometry: Geometry,
    limits: Limits,
    start: int,
    all_agree: bool = False,
    any_ending: bool = False,
) -> WholeSearch:
    """The search of a batch.

    Args:
        options: generation options; the others as of an
            :class:`~fairseq_aggdec.search.interleaved.search.InterleavedSearch`.
    """
    count, strict = len(limits.ends), limits.ends if limits.exact else [0] * len(limits.ends)
    ends = limits.ends if limits.exact else [limits.longest] * count
    ruled = rule_options(Rules.of(options), ends, [limits.floor] * count, strict, [[]] * count)
    call = InterleavedOptionsStruct(
        beam_options(options, limits, ruled, start),
        geometry.step,
        1 if geometry.vanilla_mask else geometry.step,
        geometry.directions if geometry.independent else 1,
        *(all_agree, any_ending),
    )
    return WholeSearch("interleaved", call)


def results_of(search: WholeSearch, sentences: int) -> tuple[int, list[SentenceResult]]:
    """Calls of the decoder, and what a search has found for each sentence that has come to its end.

    Raises:
        NonFiniteError: the model gave no numbers.
    """
    outputs = Outputs(search, sentences)
    if outputs.result.broken >= 0:
        raise NonFiniteError(outputs.result.broken)
    results = [SentenceResult(steps=steps) for steps in outputs.rounds]
    written = zip(outputs.tokens(), outputs.scores(), strict=True)
    for owner, one in zip(outputs.owners, written, strict=True):
        results[owner].hypotheses.append(one)
    return outputs.result.calls, results
