"""Batches of a beam search that the compiled library decodes alone: those in which nothing is evaluated ahead."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.options.hypotheses import Hypothesis, hypothesis, in_fp32
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.search.compiled.reader import CompiledReader, readable_decoder
from fairseq_aggdec.search.compiled.searches import BeamOptionsStruct, Outputs, WholeSearch, words
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError


def search_of(
    options: Options, limits: Limits, start: int, prefixes: Sequence[Sequence[int]]
) -> WholeSearch:
    """The search of a batch.

    Args:
        start: the start symbol.
        prefixes: output tokens forced by the caller, per sentence.
    """
    call = BeamOptionsStruct(len(prefixes), options.beam_size, options.eos, options.pad, start)
    call.threads, call.limit, call.floor = torch.get_num_threads(), limits.longest, limits.floor
    forced = words([token for prefix in prefixes for token in prefix])
    call.prefix_size, call.prefixes = len(prefixes[0]), ctypes.addressof(forced)
    lengths = words(limits.ends)
    if limits.exact:
        call.lengths = ctypes.addressof(lengths)
    return WholeSearch("beam", call)


def decode(
    verifier: Verifier,
    options: Options,
    limits: Limits,
    start: int,
    prefixes: Sequence[Sequence[int]],
    counters: Counters,
) -> Outputs | None:
    """The endings of all sentences in the order of finishing; None where the library cannot decode the batch alone.

    Raises:
        NonFiniteError: the model gave no numbers where the search needs them.
    """
    decoder = readable_decoder(verifier)
    if decoder is None or options.unk_penalty or options.no_repeat_ngram_size > 0:
        return None
    search = search_of(options, limits, start, prefixes)
    with counters.clock("verify"):
        CompiledReader(decoder, verifier.temperature).run(search)
    outputs = Outputs(search, len(prefixes), limits.ends if limits.exact else None)
    found = outputs.found
    if found.broken >= 0:
        raise NonFiniteError(found.broken)
    counters.calls += found.calls
    counters.sentences += len(prefixes)
    counters.iterations += found.iterations
    counters.nodes += found.nodes
    counters.nodes_used += found.used
    counters.emitted[1] += found.iterations
    return outputs


def hypotheses(outputs: Outputs, options: Options) -> list[list[Hypothesis]]:
    """The hypotheses of every sentence, in the order of finishing."""
    found: list[list[Hypothesis]] = [[] for _ in outputs.rounds]
    each = zip(outputs.owners, outputs.tokens(), outputs.scores(), outputs.totals, strict=True)
    for owner, tokens, scores, total in each:
        score = options.score(total, len(tokens))
        if outputs.lengths is not None and len(tokens) - 1 > outputs.lengths[owner]:
            score = -torch.inf
        found[owner].append(hypothesis(tokens, scores, in_fp32(score), outputs.rounds[owner]))
    return found
