"""The systems that the benchmark compares, by name; a new method is one more name."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

import fairseq_aggdec
from fairseq_aggdec.evaluation.session import Session
from fairseq_aggdec.evaluation.timing import System

STOCK_BEAMS = {"beam5": 5, "beam4": 4, "beam1": 1}
CTRANSLATE2 = {"ct2-float32": "float32", "ct2-int8": "int8"}
LABELS = {
    "beam5": "fairseq beam 5",
    "beam4": "fairseq beam 4",
    "beam1": "fairseq beam 1",
    "ct2-float32": "CTranslate2 float32, greedy",
    "ct2-int8": "CTranslate2 int8, greedy",
    "greedy": "ours, greedy",
    "iad": "ours, IAD",
}


def build(name: str, session: Session) -> System:
    """A system on the session's models.

    Args:
        name: ``beam5``, ``beam4`` or ``beam1`` (stock), ``ct2-float32`` or ``ct2-int8``, else a ``--decoding`` of the
            task.
    """
    if name in CTRANSLATE2:
        return ctranslate2_system(name, session)
    if name in STOCK_BEAMS:
        generator, _ = session.generator("beam", STOCK_BEAMS[name])
        return System(name, lambda sample: _tokens(session, generator, sample))
    generator, counters = session.generator(name)
    return System(
        name,
        lambda sample: _tokens(session, generator, sample),
        lambda: (counters.tokens, counters.iterations),
    )


def _tokens(session: Session, generator: Any, sample: dict[str, Any]) -> list[list[int]]:
    return [hypothesis["tokens"].tolist() for hypothesis in session.decode(generator, sample)]


def ctranslate2_system(name: str, session: Session) -> System:
    """CTranslate2's greedy search on the same checkpoint, as many threads as torch has now."""
    try:
        import ctranslate2
    except ImportError as error:
        raise SystemExit(
            f"error: --systems {name} needs CTranslate2: pip install 'fairseq_aggdec[benchmark]'"
        ) from error
    folder = tempfile.mkdtemp(prefix="ct2-")
    task = session.task
    ctranslate2.converters.FairseqConverter(
        session.cfg.common_eval.path,
        task.cfg.data,
        source_lang=task.cfg.source_lang,
        target_lang=task.cfg.target_lang,
        user_dir=fairseq_aggdec.__path__[0],
    ).convert(folder, force=True)
    translator = ctranslate2.Translator(
        folder,
        device="cuda" if session.cuda else "cpu",
        compute_type=CTRANSLATE2[name],
        intra_threads=torch.get_num_threads(),
        inter_threads=1,
    )
    generation = session.cfg.generation
    source, target = task.source_dictionary, task.target_dictionary

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        rows = sample["net_input"]["src_tokens"].tolist()
        special = {source.pad(), source.eos()}
        words = [[source[token] for token in row if token not in special] for row in rows]
        limit = int(generation.max_len_a * len(rows[0]) + generation.max_len_b)
        found = translator.translate_batch(
            words, beam_size=1, max_decoding_length=limit, min_decoding_length=generation.min_len
        )
        return [
            [*(target.index(word) for word in result.hypotheses[0]), target.eos()]
            for result in found
        ]

    return System(name, decode)
