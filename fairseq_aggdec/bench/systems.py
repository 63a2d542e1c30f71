"""The systems that the benchmark compares, by name; a new method is one more name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench import engines
from fairseq_aggdec.bench.engines import CTRANSLATE2, HUGGING_FACE
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.bench.recording_drafters import RecordingDrafter, ReplayDrafter
from fairseq_aggdec.bench.replay import force_length
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.nar import NarDrafter

STOCK_BEAMS = {"beam5": 5, "beam4": 4, "beam1": 1}
OUR_BEAMS = {"search5": 5, "search4": 4, "search10": 10, "undrafted5": 5}
OTHERS = (*STOCK_BEAMS, *CTRANSLATE2, *HUGGING_FACE)  # not ours: no counters
# Ending of a system's name -> what is added to its command line.
PRECISIONS = {"-bf16": ["--bf16"], "-int8": ["--int8"]}
LABELS = {
    "beam5": "fairseq beam 5",
    "beam4": "fairseq beam 4",
    "beam1": "fairseq beam 1",
    "search5": "ours, beam 5",
    "search4": "ours, beam 4",
    "search10": "ours, beam 10",
    "undrafted5": "ours, beam 5, nothing drafted",
    "greedy": "ours, greedy",
    "iad": "ours, IAD",
    "blockwise": "ours, blockwise",
    "gad": "ours, GAD",
    **engines.LABELS,
}


def split(name: str) -> tuple[str, list[str]]:
    """What :func:`build` calls a system, and what its precision adds to the command line: ``iad-int8``."""
    for ending, flags in PRECISIONS.items():
        if name.endswith(ending) and name not in OTHERS:
            return name.removesuffix(ending), flags
    return name, []


def label(name: str) -> str:
    """What a table calls a system."""
    system, flags = split(name)
    return ", ".join([LABELS.get(system, system), *flags])


def beam_of(name: str) -> int:
    """The beam of a system's search, 1 where it is greedy."""
    known = STOCK_BEAMS | OUR_BEAMS | HUGGING_FACE | {ct2: e.beam for ct2, e in CTRANSLATE2.items()}
    return known.get(split(name)[0], 1)


def build(
    name: str,
    session: Session,
    lengths: Mapping[int, int] | None = None,
    drafter: ReplayDrafter | None = None,
    alone: bool = False,
) -> System:
    """A system on the session's models.

    Args:
        name: ``beam5``, ``beam4`` or ``beam1`` (stock), ``search5`` and its like (ours with this beam), ``undrafted5``
            (which evaluates only what the search waits for), one of :data:`CTRANSLATE2` or :data:`HUGGING_FACE`, else
            a ``--decoding`` of the task.
        lengths: sentence -> tokens that must be written, for replays (one sentence at a time).
        drafter: takes the place of the method's own (greedy has none), for replays; one that is a model runs as well.
        alone: nothing else decodes in this process.
    """
    if name in CTRANSLATE2:
        return engines.ctranslate2_system(name, session, lengths, alone)
    if name in HUGGING_FACE:
        return engines.hugging_face_system(name, session)
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
            force_length(generator, lengths[engines.only(sample)])
        found = session.decode(generator, sample)
        return [hypothesis["tokens"].tolist() for hypothesis in found]

    return System(name, decode, counters)


def record(name: str, session: Session, batches: Sequence[dict[str, Any]]) -> list[Record]:
    """Decodes with a method of ours and returns what it did, in the order of the data set."""
    generator, _ = session.generator(name)
    recorder = RecordingDrafter(generator.drafter, session.task.source_dictionary.pad())
    generator.drafter, generator.accept = recorder, recorder.watched(generator.accept)
    for sample in batches:
        session.decode(generator, sample)
    return sorted(recorder.records, key=lambda record: record.sentence)
