"""The systems that the benchmark compares, by name; a new method is one more name."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

import fairseq_aggdec
from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.evaluation.recording import Record
from fairseq_aggdec.evaluation.recording_drafters import RecordingDrafter, ReplayDrafter
from fairseq_aggdec.evaluation.replay import force_length
from fairseq_aggdec.evaluation.session import Session
from fairseq_aggdec.evaluation.timing import System

STOCK_BEAMS = {"beam5": 5, "beam4": 4, "beam1": 1}
OUR_BEAMS = {"search5": 5, "search4": 4, "search10": 10, "undrafted5": 5}
# Compute type and beam.
CTRANSLATE2 = {
    "ct2-float32": ("float32", 1),
    "ct2-int8": ("int8", 1),
    "ct2-float32-beam5": ("float32", 5),
    "ct2-int8-beam5": ("int8", 5),
}
OTHERS = (*STOCK_BEAMS, *CTRANSLATE2)  # not ours: no counters
LABELS = {
    "beam5": "fairseq beam 5",
    "beam4": "fairseq beam 4",
    "beam1": "fairseq beam 1",
    "search5": "ours, beam 5",
    "search4": "ours, beam 4",
    "search10": "ours, beam 10",
    "undrafted5": "ours, beam 5, nothing drafted",
    "ct2-float32": "CTranslate2 float32, greedy",
    "ct2-int8": "CTranslate2 int8, greedy, 1 thread",
    "ct2-float32-beam5": "CTranslate2 float32, beam 5",
    "ct2-int8-beam5": "CTranslate2 int8, beam 5, 1 thread",
    "greedy": "ours, greedy",
    "iad": "ours, IAD",
    "blockwise": "ours, blockwise",
    "gad": "ours, GAD",
}


def build(
    name: str,
    session: Session,
    lengths: Mapping[int, int] | None = None,
    drafter: ReplayDrafter | None = None,
) -> System:
    """A system on the session's models.

    Args:
        name: ``beam5``, ``beam4`` or ``beam1`` (stock), ``search5`` and its like (ours with this beam), ``undrafted5``
            (which evaluates only what the search waits for), one of :data:`CTRANSLATE2`, else a ``--decoding`` of the
            task.
        lengths: sentence -> tokens that must be written, for replays (one sentence at a time).
        drafter: takes the place of the method's own (greedy has none), for replays; one that is a model runs as well.
    """
    if name in CTRANSLATE2:
        return ctranslate2_system(name, session, lengths)
    counters = None
    if name in STOCK_BEAMS:
        generator, _ = session.generator("stock", STOCK_BEAMS[name])
    elif name in OUR_BEAMS:
        generator, counters = session.generator("beam", OUR_BEAMS[name])
        if name.startswith("undrafted"):
            generator.ahead, generator.texts = False, None
    else:
        generator, counters = session.generator(name)
        if drafter is not None and name != "greedy":
            model_drafts = isinstance(generator.drafter, (NarDrafter, BlockwiseHeadsDrafter))
            generator.drafter = (
                drafter.at_the_pace_of(generator.drafter) if model_drafts else drafter
            )

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        if lengths is not None:
            force_length(generator, lengths[only(sample)])
        found = session.decode(generator, sample)
        return [hypothesis["tokens"].tolist() for hypothesis in found]

    return System(name, decode, counters)


def only(sample: Mapping[str, Any]) -> int:
    """The index of the one sentence of a sample."""
    return sample["id"].item()


def record(name: str, session: Session, batches: Sequence[dict[str, Any]]) -> list[Record]:
    """Decodes with a method of ours and returns what it did, in the order of the data set."""
    generator, _ = session.generator(name)
    recorder = RecordingDrafter(generator.drafter, session.task.source_dictionary.pad())
    generator.drafter, generator.accept = recorder, recorder.watched(generator.accept)
    for sample in batches:
        session.decode(generator, sample)
    return sorted(recorder.records, key=lambda record: record.sentence)


def ctranslate2_system(
    name: str, session: Session, lengths: Mapping[int, int] | None = None
) -> System:
    """CTranslate2's search on the same checkpoint.

    float32 gets as many threads as torch has now. int8 gets one: with two it has been seen ten times slower.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise SystemExit(
            f"error: --systems {name} needs CTranslate2: pip install 'fairseq_aggdec[benchmark]'"
        ) from error
    task, (compute_type, beam) = session.task, CTRANSLATE2[name]
    with tempfile.TemporaryDirectory(prefix="ct2-") as folder:
        checkpoint, converted = Path(folder, "fairseq.pt"), str(Path(folder, "converted"))
        write_for_ctranslate2(session, checkpoint)
        ctranslate2.converters.FairseqConverter(
            str(checkpoint),
            task.cfg.data,
            source_lang=task.cfg.source_lang,
            target_lang=task.cfg.target_lang,
            user_dir=fairseq_aggdec.__path__[0],
        ).convert(converted)
        checkpoint.unlink()
        translator = ctranslate2.Translator(
            converted,
            device="cuda" if session.cuda else "cpu",
            compute_type=compute_type,
            intra_threads=1 if compute_type == "int8" else torch.get_num_threads(),
            inter_threads=1,
        )
    generation = session.cfg.generation
    source, target = task.source_dictionary, task.target_dictionary
    special = {source.pad(), source.eos()}

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        rows = sample["net_input"]["src_tokens"].tolist()
        words = [[source[token] for token in row if token not in special] for row in rows]
        limit = int(generation.max_len_a * len(rows[0]) + generation.max_len_b)
        floor = generation.min_len
        if lengths is not None:
            limit = floor = lengths[only(sample)]
        found = translator.translate_batch(
            words, beam_size=beam, max_decoding_length=limit, min_decoding_length=floor
        )
        return [
            [*(target.index(word) for word in result.hypotheses[0]), target.eos()]
            for result in found
        ]

    return System(name, decode)


def write_for_ctranslate2(session: Session, path: Path) -> None:
    """The session's model as the converter reads it: options of model and task flat in one Namespace."""
    if len(session.models) > 1:
        raise SystemExit("error: CTranslate2 decodes with one model, --path names several")
    options: dict[str, Any] = {}
    for part in (session.saved.task, session.saved.model):
        plain = OmegaConf.to_container(part) if isinstance(part, DictConfig) else vars(part)
        assert isinstance(plain, dict)
        options.pop("_name", None)
        options.update({str(name): value for name, value in plain.items()})
    options["task"] = "translation"
    parameters = {
        name: value.float().cpu() if value.is_floating_point() else value.cpu()
        for name, value in session.models[0].state_dict().items()
    }
    torch.save({"args": Namespace(**options), "model": parameters}, path)
