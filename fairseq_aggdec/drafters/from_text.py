"""Drafting from a text that is at hand: what another model wrote, or the lines of a file (``--draft-from``).

The text takes the place of the source in Algorithm 1 of Ge et al. (section 3.1): it is drafted whole, and after a
bifurcation drafting goes on where a suffix of the output occurs in it once. The output stays the verifier's.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_aggdec.data.lines import read_lines
from fairseq_aggdec.decoding.counters import Counters
from fairseq_aggdec.decoding.interleaved import build_interleaved_generator
from fairseq_aggdec.decoding.state import DecodeState
from fairseq_aggdec.decoding.support import can_read
from fairseq_aggdec.decoding.verifier import Verifier, follow
from fairseq_aggdec.drafters.input_copy import CopyDrafter
from fairseq_aggdec.drafters.loading import load_writer
from fairseq_aggdec.lattice.decoding import build_lattice_generator

Build = Callable[[Any, Any, Sequence[Any], Any, dict[str, Any], str], Any]

WRITERS: dict[str, Build] = {
    "interleaved": build_interleaved_generator,
    "lattice": build_lattice_generator,
}


class WriterDrafter(CopyDrafter):
    """Drafts what another generator's best hypotheses say.

    Args:
        generator: with fairseq's contract.
        model: the generator's; a source that is too long for it has no draft.
        eos, match, device_type: as :class:`CopyDrafter` takes them.
    """

    def __init__(self, generator: Any, model: Any, eos: int, match: str, device_type: str):
        super().__init__(eos, match, device_type)
        self.generator, self.model = generator, model

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        follow(self.model, verifier)
        super().start(sample, verifier, state)

    def copied(self, sample: Mapping) -> list[list[int]]:
        rows, length = sample["net_input"]["src_tokens"].shape
        if not can_read(self.model.encoder, length):
            return [[] for _ in range(rows)]
        found = self.generator.generate(None, sample)
        return [hypotheses[0]["tokens"][:-1].tolist() for hypotheses in found]


class FileDrafter(CopyDrafter):
    """Drafts the lines of a file, by the sentences' numbers in their set.

    Args:
        path: of the file.
        dictionary: of the target.
        match, device_type: as :class:`CopyDrafter` takes them.

    Raises:
        FileNotFoundError: there is no such file.
    """

    def __init__(self, path: str, dictionary: Dictionary, match: str, device_type: str):
        super().__init__(dictionary.eos(), match, device_type)
        if not Path(path).is_file():
            raise FileNotFoundError(f"--draft-file {path} does not exist.")
        self.path, self.dictionary = path, dictionary
        self.lines = read_lines(path)

    def copied(self, sample: Mapping) -> list[list[int]]:
        if "id" not in sample:
            raise ValueError(
                "--draft-from file: fairseq-interactive does not number its sentences, use fairseq-generate"
            )
        numbers = sample["id"].tolist()
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
    parameter = next(verifier.parameters())
    common = str(cfg.iad_match), parameter.device.type
    if kind == "file":
        if not cfg.draft_file:
            raise ValueError("--draft-from file: name the file with --draft-file")
        return FileDrafter(cfg.draft_file, target, *common)
    if not cfg.drafter_path:
        raise ValueError(
            f"--draft-from {kind}: name the checkpoint of a model (--arch {kind}_transformer) with --drafter-path"
        )
    model = load_writer(cfg.drafter_path, task).to(parameter)
    limits = {
        name: getattr(args, name) for name in ("max_len_a", "max_len_b") if hasattr(args, name)
    }
    generator = WRITERS[kind](cfg, task, [model], Namespace(beam=1, **limits), {}, "--drafter-path")
    generator.counters = Counters()  # what the drafter does is not what the summary counts
    return WriterDrafter(generator, model, target.eos(), *common)
