"""Files and options of the tools: results that are whole or not there, places checked before hours of work, refusals.

A result is written beside its place and renamed, so a full disk or a kill leaves the older one as it was.
"""

import json
import math
import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairseq_aggdec.records import machine
from fairseq_aggdec.stored.loading import CheckpointError

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "results"


def named(output: Path, ending: str) -> Path:
    """``OUTPUT`` with an ending behind its whole name: ``v1.2`` is no name with the ending ``.2``."""
    return output.with_name(output.name + ending)


def write_text(path: Path, text: str) -> None:
    """Writes a file, UTF-8, that is there when it is whole; its folder is made."""
    write(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write(path: Path, make: Callable[[Path], object]) -> None:
    """Has ``make`` write a file of another name beside ``path``, with the same ending, and renames that.

    Raises:
        OSError: it cannot be written; nothing is left behind, and an older file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}.partial.{path.name}")
    try:
        make(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_table(
    output: Path,
    title: str,
    command: str,
    table: str,
    result: object,
    extra: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Writes OUTPUT.json and OUTPUT.md of any measurement, with machine, versions and commit; what is in the JSON."""
    record = {"title": title, "command": command, "machine": machine.describe(), **(extra or {})}
    record["results"] = result
    text = json.dumps(finite(record), indent=1, ensure_ascii=False)
    write_text(named(output, ".json"), text + "\n")
    write_text(named(output, ".md"), page(record, table))
    return record


def page(record: Mapping[str, Any], table: str) -> str:
    """A result in Markdown: title, command, machine, table."""
    on = machine.sentence(record["machine"])
    return f"# {record['title']}\n\n`{record['command']}`\n\n{on}\n\n{table.rstrip()}\n"


def check_place(option: str, path: Path | None, *endings: str) -> None:
    """Refuses a file that could not be written in the end, or be published then; makes nothing.

    Args:
        option: that named it.
        path: of the file; None: nothing was asked for.
        endings: of the files, where ``path`` is only the beginning of their names.

    Raises:
        SystemExit: with the reason.
    """
    if path is None:
        return
    if path.absolute().is_relative_to(PUBLISHED) and machine.commit().endswith("+"):
        raise SystemExit(
            f"error: {option} {path}: docs/results takes results of committed code only; commit your changes, or write "
            "elsewhere"
        )
    try:
        for file in [named(path, ending) for ending in endings] or [path]:
            if file.is_dir():
                raise IsADirectoryError(f"{file} is a folder")
        folder = path.parent
        while not os.path.lexists(folder):
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SystemExit(
            f"error: {option} {path} cannot be written: {error.strerror or error}"
        ) from None


def finite(value: Any) -> Any:
    """A record as JSON has it: null for infinite numbers and for what is no number.

    >>> finite({"margin": float("inf"), "scores": (1.5, float("nan"))})
    {'margin': None, 'scores': [1.5, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def check_counts(args: Namespace, *options: str) -> None:
    """Refuses numbers of options that count something and are below 1; None is not given.

    Raises:
        SystemExit: names the option.
    """
    for option in options:
        value = getattr(args, option)
        for number in value if isinstance(value, list) else [value]:
            if number is not None and number < 1:
                raise SystemExit(
                    f"error: --{option.replace('_', '-')} {number}: it must be at least 1"
                )


@contextmanager
def refusals() -> Iterator[None]:
    """Makes what the user can mend end a tool with one sentence instead of a traceback."""
    try:
        yield
    except (CheckpointError, OSError, ValueError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            said = f"{error.filename}: {error.strerror}"
        reason = " ".join(said.split()) or type(error).__name__
        raise SystemExit(f"error: {reason}") from error


def cell(text: str) -> str:
    """Text as a cell of a Markdown table."""
    return text.replace("|", r"\|").replace("\n", " ")
