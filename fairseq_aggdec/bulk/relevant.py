"""Properties that outputs depend on, for the header of a job: options that can change one, files by what is in them."""

import argparse
import contextlib
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.jobs.job import BulkError
from fairseq_aggdec.methods.config import DecodingConfig
from fairseq_aggdec.methods.options.kinds import kind_of
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.methods.shared.candidates import tables_folder
from fairseq_aggdec.packed.files import CHECKPOINT
from fairseq_aggdec.packed.folder import is_folder
from fairseq_aggdec.stored.held_files import stamp_of

MAX_TOKENS = 12000  # fairseq-generate's, where neither --max-tokens nor --batch-size is given
RELEVANT = {
    "common": ("seed", "fp16", "bf16"),
    "dataset": ("max_tokens", "batch_size"),
}
DECODING = {one.name for one in fields(DecodingConfig)} - {"bf16"}
FILES = ("_path", "_file")
NAMING = ("task", "common_eval", "tokenizer", "bpe")  # sections with names of files to be read
IRRELEVANT = {
    "_name",
    "data",
    "model_overrides",  # refused
    "model_paths",
    "no_seed_provided",
    "print_alignment",
    "print_step",
}


def sections(cfg: DictConfig) -> dict[str, Any]:
    """The sections of a configuration as dictionaries; of a task with a parser of its own, the options in that."""
    by_name: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)  # type: ignore[assignment]
    if isinstance(task := by_name["task"], argparse.Namespace):
        parser = argparse.ArgumentParser(add_help=False)
        TASK_REGISTRY[task.task].add_args(parser)
        names = [action.dest for action in parser._actions]
        chosen = {name: value for name, value in vars(task).items() if name in names}
        by_name["task"] = json.loads(
            json.dumps(chosen)
        )  # as a header is read again: without tuples
    return {name: section or {} for name, section in by_name.items()}


def digest(paths: Sequence[Path]) -> str:
    """SHA-256 of the files' contents."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(sha256(path).digest())
    return whole.hexdigest()


def sha256(path: Path) -> Any:
    """The hash object of a file's contents, read in parts."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest


class FilesBefore:
    """Files that the options name, taken before they are loaded: what is digested afterwards was loaded.

    A file counts as another one when its place on the disk, its size or a time of change is another.
    """

    def __init__(self, cfg: DictConfig):
        """Every file that an option names, and those in folders that one names, and one folder deeper."""
        self.seen: dict[Path, tuple[int, ...]] = {}
        plain = sections(cfg)
        values = [value for name in NAMING for value in plain[name].values()]
        for value in (value for value in values if isinstance(value, str) and value):
            for place in map(Path, utils.split_paths(value)):
                inside = [*place.glob("*"), *place.glob("*/*")] if place.is_dir() else []
                for file in (place, *inside):
                    with contextlib.suppress(OSError):  # another worker's, which is gone
                        self.seen[file] = stamp_of(file.stat())

    def digest(self, paths: Sequence[Path]) -> str:
        """Digest of one of the files, as of :func:`digest`.

        Raises:
            BulkError: a file is not the one that was there.
        """
        digests = digest(paths)
        for path in paths:
            if self.seen.get(path) != stamp_of(path.stat()):
                raise BulkError(
                    f"{path} was replaced while it was being loaded: outputs would be of two models, so start again"
                )
        return digests

    def by_content(self, value: Any) -> Any:
        """The digest of a file, where a value names one; a packed folder counts by its checkpoint."""
        if not isinstance(value, str) or not value:
            return value
        path = Path(value, CHECKPOINT) if is_folder(value) else Path(value)
        return self.digest([path]) if path.is_file() else value


def refuse_clocked_drafts(cfg: DictConfig) -> None:
    """Drafts as long as those before have paid change no output, but where acceptance is relaxed or rounding decides.

    Raises:
        BulkError: names the two options that do not go together.
    """
    settings = read_settings(cfg.task)
    drafts = kind_of(settings.decoding).model_drafts
    clocked = {
        "--draft-tokens auto": drafts and settings.draft_tokens == "auto",
        "--draft-tree auto": drafts and settings.draft_tree == "auto",
    }
    lossy = {
        "--acceptance": not settings.acceptance.lossless,
        "--fp16": cfg.common.fp16,
        "--bf16": getattr(cfg.common, "bf16", False),
    }
    for timed, option in itertools.product(clocked, lossy):
        if clocked[timed] and lossy[option]:
            raise BulkError(
                f"{option} does not go with {timed}, which drafts as long as that has paid: the outputs would depend "
                "on what was decoded before"
            )


def relevant_options(session: Session, files: FilesBefore) -> dict[str, Any]:
    """Options that can change an output, by name; a file counts by what is in it, and so do the tables of a lattice."""
    cfg = session.cfg
    plain = sections(cfg)
    task = {name: value for name, value in plain["task"].items() if name not in DECODING}
    options = {**plain["generation"], **task, **read_settings(cfg.task).options()}
    for section, names in RELEVANT.items():
        options |= {name: plain[section][name] for name in names}
    options |= {
        name: files.by_content(value) for name, value in options.items() if name.endswith(FILES)
    }
    if options["decoding"] == "lattice" or options["shortlist"]:
        folder = tables_folder(session.task.cfg)
        options["lattice"] = files.digest(
            sorted(path for path in folder.iterdir() if path.is_file())
        )
    rest = {name: value for name, value in sorted(options.items()) if name not in IRRELEVANT}
    return {"decoding": options["decoding"]} | rest  # the first that a refusal names


def text_options(session: Session, files: FilesBefore) -> dict[str, Any]:
    """Options by which text becomes tokens, and tokens text."""
    plain = sections(session.cfg)
    options = {"post_process": plain["common_eval"]["post_process"]}
    for section in ("tokenizer", "bpe"):
        settings = dict(plain[section])
        options[section] = settings.pop("_name", None)
        options |= {name: files.by_content(value) for name, value in settings.items()}
    return options
