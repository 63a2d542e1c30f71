"""Drafting from a text that is at hand: what another model wrote, or the lines of a file (``--draft-from``).

The text takes the place of the source in Algorithm 1 of Ge et al. (section 3.1): it is drafted whole, and after a
bifurcation drafting goes on where a suffix of the output occurs in it once. The output stays the verifier's.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_aggdec.data.lines import read_lines
from fairseq_aggdec.drafters.copy.input_copy import CopyDrafter
from fairseq_aggdec.drafters.lattice_tree import LONGEST, LatticeTreeDrafter
from fairseq_aggdec.engine.plain.support import can_read
from fairseq_aggdec.engine.verifier import Verifier, follow
from fairseq_aggdec.lattice.generator import LatticeGenerator
from fairseq_aggdec.methods.draft_options import choosing, drafted_nodes
from fairseq_aggdec.methods.interleaved import build_interleaved_generator
from fairseq_aggdec.methods.lattice import build_lattice_generator
from fairseq_aggdec.methods.loading import load_writer
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError, explained
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.transfer import on_host, read

logger = logging.getLogger(__name__)

Build = Callable[[Any, Any, Sequence[Any], Any, dict[str, Any], str], Any]

WRITERS: dict[str, Build] = {
    "interleaved": build_interleaved_generator,
    "lattice": build_lattice_generator,
}


class WriterDrafter(CopyDrafter):
    """Drafts what another generator's best hypotheses say; nothing more once its scores were not finite numbers.

    Args:
        generator: with fairseq's contract.
        model: the generator's; a source that is too long for it has no draft.
        eos, match: as :class:`CopyDrafter` takes them.
    """

    def __init__(self, generator: Any, model: Any, eos: int, match: str):
        super().__init__(eos, match)
        self.generator, self.model = generator, model
        self.broken = False

    def prepare(self, verifier: Verifier) -> None:
        """Packs the weights of the writer now instead of before the first draft."""
        self.generator.prepare()

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        follow(self.model, verifier)
        super().start(sample, verifier, state)

    def texts_of(self, sample: Mapping, verifier: Verifier) -> Sequence[Sequence[int]]:
        follow(self.model, verifier)
        return super().texts_of(sample, verifier)

    def copied(self, sample: Mapping) -> list[list[int]]:
        rows, length = sample["net_input"]["src_tokens"].shape
        nothing: list[list[int]] = [[] for _ in range(rows)]
        if self.broken or not can_read(self.model.encoder, length):
            return nothing
        try:
            found = self.generator.generate(None, sample)
        except NonFiniteError as error:
            self.broken = True
            what = explained(error.row, sample, [self.model], ["the drafter of --drafter-path"])
            logger.warning("%s: nothing is drafted from now on, decoding is one by one", what)
            return nothing
        best = read([hypotheses[0]["tokens"] for hypotheses in found])
        return [tokens[:-1].tolist() for tokens in best]


class FileDrafter(CopyDrafter):
    """Drafts the lines of a file, by the sentences' numbers in their set.

    Args:
        path: of the file.
        dictionary: of the target.
        match: as :class:`CopyDrafter` takes it.
        sizes: sentences of the sets that are loaded, one of which the file is for; empty: not known.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no text, or has another number of lines than any set has sentences.
    """

    def __init__(self, path: str, dictionary: Dictionary, match: str, sizes: Collection[int] = ()):
        super().__init__(dictionary.eos(), match)
        if not Path(path).is_file():
            raise FileNotFoundError(f"--draft-file {path} does not exist.")
        self.path, self.dictionary = path, dictionary
        try:
            self.lines = read_lines(path)
        except UnicodeDecodeError as error:
            raise ValueError(f"--draft-file {path} is no UTF-8 text ({error.reason})") from None
        if sizes and len(self.lines) not in sizes:
            raise ValueError(
                f"--draft-file {path} has {len(self.lines)} lines, and the set {' or '.join(map(str, sizes))} "
                "sentences: give one line per sentence"
            )

    def reads(self, sample: Mapping) -> list[Any]:
        """What is read of a batch on the device beside its source."""
        return [sample["id"]] if "id" in sample else []

    def copied(self, sample: Mapping) -> list[list[int]]:
        if "id" not in sample:
            raise ValueError(
                "--draft-from file: fairseq-interactive does not number its sentences, use fairseq-generate"
            )
        numbers = on_host(sample["id"]).tolist()
        if max(numbers) >= len(self.lines):
            raise ValueError(
                f"--draft-file {self.path} has {len(self.lines)} lines, and the set a sentence {max(numbers) + 1}: "
                "give one line per sentence"
            )
        return [
            self.dictionary.encode_line(
                self.lines[number], add_if_not_exist=False, append_eos=False
            ).tolist()
            for number in numbers
        ]


def build_text_drafter(cfg: Any, task: Any, verifier: Any, args: Namespace) -> CopyDrafter:
    """The drafter of ``--draft-from`` ``file``, ``interleaved`` or ``lattice``.

    Args:
        cfg: decoding options.
        task: has the dictionaries.
        verifier: the model whose output counts.
        args: fairseq's generation options; the length limits hold for the drafts too.

    Raises:
        FileNotFoundError, CheckpointError, ValueError: an option is missing or does not fit, in one sentence.
    """
    kind, target = str(cfg.draft_from), task.target_dictionary
    if cfg.draft_file and kind != "file":
        raise ValueError(f"--draft-file {cfg.draft_file} is read with --draft-from file only")
    match = str(cfg.iad_match)
    if kind == "file":
        if not cfg.draft_file:
            raise ValueError("--draft-from file: name the file with --draft-file")
        sizes = {len(dataset) for dataset in task.datasets.values()}
        return FileDrafter(cfg.draft_file, target, match, sizes)
    if not cfg.drafter_path:
        raise ValueError(
            f"--draft-from {kind}: name the checkpoint of a model (--arch {kind}_transformer) with --drafter-path"
        )
    model = load_writer(cfg.drafter_path, task).to(next(verifier.parameters()))
    limits = {
        name: getattr(args, name) for name in ("max_len_a", "max_len_b") if hasattr(args, name)
    }
    generator = WRITERS[kind](cfg, task, [model], Namespace(beam=1, **limits), {}, "--drafter-path")
    generator.counters = Counters()  # what the drafter does is not what the summary counts
    return WriterDrafter(generator, model, target.eos(), match)


def branching(drafter: CopyDrafter, cfg: Any) -> CopyDrafter | LatticeTreeDrafter:
    """The drafter that drafts trees of a text, or of the lattice that the text is the best path of, where
    ``--draft-nodes`` asks for some; else the same."""
    nodes = drafted_nodes(cfg) if str(cfg.decoding) == "iad" else None
    if nodes and isinstance(drafter, WriterDrafter):
        generator = drafter.generator
        if isinstance(generator, LatticeGenerator):
            return LatticeTreeDrafter(generator, drafter.model, choosing(cfg, LONGEST), nodes)
    drafter.branch(nodes)
    return drafter
