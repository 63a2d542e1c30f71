"""The systems that ``aggdec bench`` compares, by name or by their options."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench.engines import (
    CTRANSLATE2,
    ENGINES,
    ctranslate2_system,
    hugging_face_system,
)
from fairseq_aggdec.bench.recording import Record, recording
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.search.drafter import EmptyDrafter
from fairseq_aggdec.search.greedy.generator import DraftAndVerifyGenerator

# Stock's beam search, ours, ours that evaluates only what the search waits for -> its label.
BEAMS = {
    "beam": "fairseq beam {}",
    "search": "ours, beam {}",
    "undrafted": "ours, beam {}, nothing drafted",
}
# With a beam of 1 the search is greedy, and drafts.
BEAM = re.compile(rf"(?!undrafted1$)({'|'.join(BEAMS)})(1|4|5|10)")
OURS = ("search5", "greedy", "iad")
GROUPS = {
    "stock": ("beam5", "beam1"),
    "ctranslate2": ("ct2-float32-beam5", "ct2-float32"),
    "huggingface": ("hf-beam5", "hf"),
}
# Ending of a system's name -> what is added to its command line.
PRECISIONS = {"-bf16": ["--bf16"], "-int8": ["--int8"]}
LABELS = {"greedy": "greedy", "iad": "IAD", "blockwise": "blockwise", "gad": "GAD"}


@dataclass(frozen=True)
class Entry:
    """A system that a command line asks for.

    Attributes:
        name: in tables and records.
        system: a name for :func:`build`; None: the options alone say what is measured (``--system NAME=OPTIONS``).
        options: added to the command line.
    """

    name: str
    system: str | None = None
    options: tuple[str, ...] = ()

    @property
    def external(self) -> bool:
        """Tells whether another engine decodes."""
        return self.system in ENGINES


def split(name: str) -> tuple[str, list[str]]:
    """Splits a name into what :func:`build` calls the system, and what its precision adds to the command line:
    ``iad-int8``."""
    for ending, flags in PRECISIONS.items():
        if name.endswith(ending) and name not in ENGINES:
            return name.removesuffix(ending), flags
    return name, []


def label(name: str) -> str:
    """Names a system in a table."""
    system, flags = split(name)
    if system in ENGINES:
        text = ENGINES[system].label
    elif beam := BEAM.fullmatch(system):
        text = BEAMS[beam[1]].format(beam[2])
    else:
        text = f"ours, {LABELS[system]}" if system in LABELS else system
    return ", ".join([text, *flags])


def expanded(names: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Names of systems, groups replaced by their members.

    Args:
        names: systems and :data:`GROUPS`, in any number of words with commas; ``all`` is everything in every precision.
        more: methods of ours for which the command line has a model.
    """
    ours = [*OURS, *more]
    precise = [name + ending for name in ours for ending in ("", *PRECISIONS)]
    engines = [n for n, e in ENGINES.items() if e.form != "float16"]
    groups = GROUPS | {
        "ours": tuple(ours),
        "all": (*GROUPS["stock"], *precise, *engines),
    }
    words = [name for word in names for name in word.split(",") if name]
    return list(dict.fromkeys(x for name in words for x in groups.get(name, (name,))))


def beam_of(name: str) -> int:
    """The beam of a system's search, 1 where it is greedy."""
    system, _ = split(name)
    if system in ENGINES:
        return ENGINES[system].beam
    match = BEAM.fullmatch(system)
    return int(match[2]) if match else 1


def load(
    entry: Entry, arguments: Sequence[str], session: Session | None = None, alone: bool = False
) -> tuple[Session, System]:
    """A system, and the session that it decodes with.

    Args:
        arguments: options of fairseq-generate for all systems.
        session: made of ``arguments`` and the options of ``entry``; None: it is loaded.
        alone: nothing else decodes in this process.
    """
    by_options = entry.system is None
    if session is None:
        reads = ["batch_size", *(["beam"] if by_options else [])]
        words = [*arguments, *entry.options]
        session = Session(generation_parser(None), words, always_draft=by_options, reads=reads)
    if entry.system is not None:
        system = build(entry.system, session, alone)
        system.name, system.models = entry.name, _path(arguments)
        system.beam = beam_of(entry.system)
        return session, system
    beam = int(session.cfg.generation.beam)
    system = of_session(entry.name, session, str(session.task.cfg.decoding), beam)
    system.models = str(session.cfg.common_eval.path)
    return session, system


def _path(arguments: Sequence[str]) -> str:
    """``--path`` of a command line: by it a system is compared, even if it reads another checkpoint (block heads)."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--path", default="")
    return str(parser.parse_known_args(arguments)[0].path)


def of_session(name: str, session: Session, decoding: str, beam: int) -> System:
    """The session's task with this ``--decoding``."""
    generator, counters = session.generator(decoding, beam)
    stock = decoding == "stock"

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        decoded = session.decode(generator, sample)
        steps = [hypothesis.get("steps", len(hypothesis["tokens"])) for hypothesis in decoded]
        system.steps.update(zip(sample["id"].tolist(), steps, strict=True))
        return [hypothesis["tokens"].tolist() for hypothesis in decoded]

    system = System(
        name,
        decode,
        None if stock else counters,
        generator.drafter if isinstance(generator, DraftAndVerifyGenerator) else EmptyDrafter(),
        beam,
        stock,
        precision=session.precision,
        generator=generator,
    )
    return system


def build(name: str, session: Session, alone: bool = False) -> System:
    """A system on the session's models.

    Args:
        name: ``beam5``, ``beam4`` or ``beam1`` (stock), ``search5`` and its like (ours with this beam), ``undrafted5``
            (which evaluates only what the search waits for), one of :data:`ENGINES`, else a ``--decoding`` of the task.
        alone: nothing else decodes in this process.
    """
    session.warned = True  # the options are for all systems: some have no effect with some of them
    if name in ENGINES and ENGINES[name].library == CTRANSLATE2:
        return ctranslate2_system(name, session, alone)
    if name in ENGINES:
        return hugging_face_system(name, session)
    decoding = name
    if match := BEAM.fullmatch(name):
        decoding = "stock" if match[1] == "beam" else "beam"
    system = of_session(name, session, decoding, beam_of(name))
    if name.startswith("undrafted"):
        system.generator.ahead, system.generator.texts = False, None
    return system


def record(name: str, session: Session, batches: Sequence[dict[str, Any]]) -> list[Record]:
    """Decodes with a method of ours and returns what it did, in the order of the data set."""
    generator, _ = session.generator(name)
    with recording(generator, session.task.source_dictionary.pad()) as recorder:
        for sample in batches:
            session.decode(generator, sample)
    return sorted(recorder.records, key=lambda record: record.sentence)
