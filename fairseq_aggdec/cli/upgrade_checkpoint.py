"""``aggdec upgrade-checkpoint``: writes a copy of a checkpoint that holds data only."""

import argparse
import copy
import enum
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy
import torch

from fairseq_aggdec.cli.parsers import parsed
from fairseq_aggdec.records.results import write
from fairseq_aggdec.stored import progress
from fairseq_aggdec.stored.data import StoredArray
from fairseq_aggdec.stored.held_files import HeldFile
from fairseq_aggdec.stored.loading import (
    NEW_ENTRIES,
    CheckpointError,
    checked_model,
    missing_entry,
    read_stored,
    unreadable,
)
from fairseq_aggdec.stored.options import PLAIN, check_options, unwrapped

DEEPEST = 50
DROPPED = object()
DATA = (torch.Tensor, torch.Size, torch.dtype)


class StandIn:
    """Stands in for an object whose class is not data. Making one, or filling it in, calls nothing that a file
    names."""

    name: ClassVar[str]
    arguments: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any, **_: Any):
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        """Forgets it."""

    def choice(self) -> str | None:
        """The text that one of fairseq's enumerations was made of; None for everything else."""
        of_one_text = len(self.arguments) == 1 and isinstance(self.arguments[0], str)
        return self.arguments[0] if self.name.startswith("fairseq.") and of_one_text else None


def read(path: str) -> Any:
    """Reads what a checkpoint holds, with stand-ins for objects that are not data."""
    known: dict[str, type[StandIn]] = {}
    while True:
        pairs: list[Any] = [(one, name) for name, one in known.items()]
        try:
            with torch.serialization.safe_globals(pairs):
                state, names = read_stored(HeldFile(path))
        except pickle.UnpicklingError as error:
            if "is blocked" not in str(error):
                raise unreadable(path, error) from None
            raise CheckpointError(
                f"{path} names functions of the operating system, which no training run writes: do not use it."
            ) from None
        except CheckpointError as error:
            raise CheckpointError(f"{path} is refused: {error}.") from None
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged file makes the loader raise nearly anything
            raise unreadable(path, error) from None
        if not names:
            return state
        # The loader leaves out the module of builtins.
        full = {name if "." in name else f"builtins.{name}" for name in names}
        if full <= known.keys():
            raise CheckpointError(f"{path} cannot be read without {', '.join(sorted(full))}.")
        known |= {name: type("StandIn", (StandIn,), {"name": name}) for name in full - known.keys()}


def plain(value: Any, name: str, dropped: list[str]) -> Any:
    """A value as data, or :data:`DROPPED`, for which `dropped` receives a line; ``name``: where it is, in full."""
    value = unwrapped(value)
    if isinstance(value, StandIn) and (choice := value.choice()) is not None:
        return choice
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, StoredArray):
        return torch.from_numpy(numpy.asarray(value))
    if type(value) in PLAIN or isinstance(value, DATA):
        return value
    if name.count(".") > DEEPEST:
        raise CheckpointError(f"{name.split('.')[0]} contains itself, so there is no copy of it.")
    if isinstance(value, argparse.Namespace):
        options = argparse.Namespace()
        vars(options).update(plain_items(vars(value), name, dropped))
        return options
    if isinstance(value, Mapping):
        return plain_items(value, name, dropped)
    if isinstance(value, list | tuple):
        items = [plain(one, f"{name}.{place}", dropped) for place, one in enumerate(value)]
        return type(value)(one for one in items if one is not DROPPED)
    kind = type(value)
    dropped.append(f"{name}: {getattr(value, 'name', f'{kind.__module__}.{kind.__qualname__}')}")
    return DROPPED


def plain_items(items: Mapping[Any, Any], name: str, dropped: list[str]) -> dict[Any, Any]:
    """The items of a container as data; those whose key or value is none are left out."""
    kept = {}
    for key, one in items.items():
        if type(key) not in PLAIN:
            dropped.append(
                f"{name or 'the file'}: an item whose key is of type {type(key).__name__}"
            )
            continue
        value = plain(one, f"{name}.{key}" if name else str(key), dropped)
        if value is not DROPPED:
            kept[key] = value
    return kept


def upgraded(path: str) -> tuple[dict[str, Any], list[str]]:
    """The state of a checkpoint as data, with the entries that fairseq looks for, and what was left out or added."""
    state, said = read(path), list[str]()
    if not isinstance(state, Mapping) or not isinstance(state.get("model"), Mapping):
        raise CheckpointError(f"{path} was not written by fairseq: it holds no model.")
    items = plain_items(state, "", said)
    changes = [f"left out {one}" for one in said]
    while (entry := missing_entry(items)) is not None:
        if entry not in NEW_ENTRIES:
            raise CheckpointError(f"{path} does not say which model it holds: it has no options.")
        items[entry] = copy.deepcopy(NEW_ENTRIES[entry])
        items.setdefault("last_optimizer_state", None)
        changes.append(f"added {entry}")
    check_options(items, path)
    return items, changes


def main(arguments: Sequence[str] | None = None) -> None:
    args = parsed("upgrade-checkpoint", arguments)
    state, changes = upgraded(str(args.checkpoint))

    def make(partial: Path) -> None:
        progress.save(state, partial)
        checked_model(str(partial))

    write(args.output, make)
    for change in changes or ["nothing had to change"]:
        print(change)
