"""What the papers' methods cost on a GPU: stages of the profile "papers". Base size, random weights, nothing trained.

Rows say nothing of quality. Their times are those of trained models of the same sizes whose outputs have as many
tokens and, of heads, whose drafts are right as often.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench import memory, systems
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.lattice.alignment.corpus import Sentences
from fairseq_aggdec.lattice.candidates import CandidateModel, Special, Weights
from fairseq_aggdec.lattice.counting import TOP, AlignedPairs, Counter
from fairseq_aggdec.lattice.length import LengthModel
from scripts import random_models
from scripts.random_models import SHARED
from scripts.recipes.gad import replay
from scripts.recipes.gpu.each_kernel import every_kernel
from scripts.recipes.gpu.plan import PRECISIONS, Plan, Rows, Stage, tried
from scripts.recipes.gpu.speed import CHAIN, DRAFTED, LENGTH, built, record, timed

SIZES = (1, 8, 32)
SHOWN = ("fp16", "fp32")
SENTENCES = 6  # of a cell of small batches: stock takes most of the time
BEAMS = (4, 1)
GEOMETRIES = ((1, 1), (2, 1), (2, 2), (4, 1))
SCORERS = ((1, 64), (1, 32), (1, 128), (2, 64), (4, 64), (6, 64))  # layers and candidates
BLOCKS = (2, 4, 6, 8, 10)
PLUS = ["--acceptance", "top-beta:5:3.0"]


class Models:
    """Models of base size over one dictionary and one set of sources, made when they are first needed.

    Args:
        plan: what is asked.
        precision: a key of :data:`PRECISIONS`.
    """

    def __init__(self, plan: Plan, precision: str):
        self.plan, self.precision, self.flags = plan, precision, PRECISIONS[precision]
        self.size = "tiny" if plan.rehearse else "base"
        self.folder = plan.folder / "papers"

    @functools.cached_property
    def transformer(self) -> Session:
        """The verifier of all rows."""
        records = [record(index) for index in range(max(SIZES))]
        return self._session(random_models.prepare(self.folder, self.size, records))

    def other(self, name: str, arch: str, *flags: str, more: Sequence[str] = ()) -> Session:
        """A model of another architecture.

        Args:
            name: of its file. more: options of decoding.
        """
        assert self.transformer is not None  # the dictionaries are written
        path = self.folder / f"{name}.pt"
        if not path.exists():
            sizes = random_models.SIZES[self.size].flags()
            random_models.write_checkpoint(path, self.folder, arch, *sizes, SHARED, *flags)
        return self._session([*random_models.data_arguments(self.folder, path), *more])

    def _session(self, arguments: Sequence[str]) -> Session:
        lengths = ["--min-len", str(LENGTH), "--max-len-a", "0", "--max-len-b", str(LENGTH)]
        return self.plan.session([*arguments, *lengths], *self.flags)

    def cells(self, running: Sequence[System]) -> Rows:
        """Rows of systems by batch size; the first is what the others are compared with."""
        for size in self.plan.few(SIZES, 2):
            batches = self.transformer.batches(size, self.plan.sentences(size, SENTENCES))
            yield from timed(self.plan, running, batches, precision=self.precision, batch=size)


def in_precisions(plan: Plan) -> Iterator[Models]:
    """Half precision first: what a stage that is cut short has."""
    yield from (Models(plan, precision) for precision in (["fp32"] if plan.rehearse else SHOWN))


def interleaved(plan: Plan) -> Rows:
    """Zhang et al., Table 1: stock beam search, and models by directions and words per direction."""
    for models in in_precisions(plan):
        written = {
            (h, c): models.other(
                f"{h}x{c}",
                "interleaved_transformer",
                f"--directions={h}",
                f"--words-per-direction={c}",
            )
            for h, c in GEOMETRIES
        }
        for beam in plan.few(BEAMS):
            running = [systems.build(f"beam{beam}", models.transformer)]
            running += [
                systems.of_session(f"({h}, {c}), beam {beam}", session, "interleaved", beam)
                for (h, c), session in written.items()
            ]
            yield from models.cells(running)


def tables(folder: Path, session: Session) -> str:
    """A folder of tables that know :data:`TOP` translations of every type: as many candidates as may be asked for."""
    if not folder.exists():
        dictionaries = session.task.source_dictionary, session.task.target_dictionary
        special, types = dictionaries[1].nspecial, len(dictionaries[1])
        rounds = [np.random.default_rng(seed).permutation(types - special) for seed in range(TOP)]
        words = (np.concatenate(rounds) + special).astype(np.int32)
        words = words[: len(words) // LENGTH * LENGTH]
        others = np.random.default_rng(TOP).permutation(words)
        lengths = np.full(len(words) // LENGTH, LENGTH)
        places = np.tile(np.arange(LENGTH, dtype=np.int32), len(lengths))
        counter = Counter(types, None)
        sides = Sentences(words, lengths), Sentences(others, lengths)
        counter.add(AlignedPairs(*sides, np.stack([places, places], 1), lengths))
        CandidateModel(
            **counter.tables(),
            max_offset=counter.reach,
            length=LengthModel(1.0, 0.0),
            weights=Weights(0.5, 0.5),
            special=Special.of(dictionaries[1]),
        ).save(folder, *dictionaries, {})
    return str(folder)


def lattice(plan: Plan) -> Rows:
    """Deng and Rush, Tables 1 and 3: stock beam 5, and scorers by layers and candidates."""
    for models in in_precisions(plan):
        folder = tables(models.folder / "tables", models.transformer)
        running = [systems.build("beam5", models.transformer)]
        for layers, count in plan.few(SCORERS, 2):
            options = ["--lattice", folder, "--variant", f"lattice-candidates={count}"]
            options += ["--variant", "lattice-least-probability=0"]
            flag = f"--decoder-layers={layers}"
            session = models.other(f"scorer-{layers}", "lattice_transformer", flag, more=options)
            name = f"scorer of {layers}, N = {count}"
            running.append(systems.of_session(name, session, "lattice", 1))
        yield from models.cells(running)


def heads(plan: Plan) -> Rows:
    """Stern et al., Figure 4: greedy, and dense heads by block size. Half of each block is replayed as right."""
    for models in in_precisions(plan):
        running = [systems.build("greedy", models.transformer)]
        for block in plan.few(BLOCKS, 4):
            records = [record(i, True, block - 1, block // 2) for i in range(max(SIZES))]
            width = str(4 * random_models.SIZES[models.size].dim)
            layout = ["--head-layout", "dense", "--head-hidden-dim", width]
            session = models.other(
                f"heads-{block}", "blockwise_transformer", *layout, f"--block-size={block}"
            )
            system = built("blockwise", session, replay.replay_drafter(session, records))
            system.name = f"k = {block}, {block // 2 + 1} tokens an iteration"
            running.append(system)
        yield from models.cells(running)


def peaks(plan: Plan) -> Rows:
    """Ge et al., Table 16: peak memory of stock, GAD and GAD++ (5, 3.0)."""
    models = next(in_precisions(plan))
    base = models.transformer
    shared = ["--share-verifier-encoder", str(models.folder / f"{models.size}.pt")]
    shared += ["--share-decoder-input-output-embed", f"--block-size={DRAFTED}"]
    drafter = models.folder / "drafter.pt"
    flags = [*random_models.SIZES[models.size].flags(), *shared, "--decoder-layers", "1"]
    random_models.write_checkpoint(drafter, models.folder, CHAIN[1], *flags, *CHAIN[2:])
    given = ["--drafter-path", str(drafter), "--draft-tokens", str(DRAFTED)]
    path = models.folder / f"{models.size}.pt"
    drafting = [*random_models.data_arguments(models.folder, path), *given]
    sessions = {"GAD": models._session(drafting), "GAD++": models._session([*drafting, *PLUS])}
    running = [systems.build(name, base) for name in ("beam1", "beam5")]
    running += [systems.of_session(name, one, "gad", 1) for name, one in sessions.items()]
    for size in plan.few(SIZES, 2):
        batches = base.batches(size, plan.sentences(size, SENTENCES))
        for system in running:
            yield tried(
                lambda system=system, batches=batches: {"MiB": memory.peak_of(system, batches)},  # type: ignore[misc]
                system=systems.label(system.name),
                batch=size,
            )


STAGES: dict[str, Stage] = {
    "every kernel": Stage(every_kernel, 30),
    "interleaved models": Stage(interleaved, 80),
    "lattices": Stage(lattice, 60),
    "block heads": Stage(heads, 45),
    "memory at base size": Stage(peaks, 15),
}
