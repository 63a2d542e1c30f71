"""The contents of ``packed.json``, of which every value is checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fairseq_aggdec.kernels.layout import Layout
from fairseq_aggdec.packed.files import CHECKPOINT, VERSION, WEIGHTS, parsed, sound

KINDS = ("fp32", "int8", "bf16")
# Beside the others: file -> its digest, and its stamp when it had that digest.
COMPARED = "compared.json"
NAMES = ("version", "kind", "files", "layout", "instructions")
OTHER = "its contents are not those that were written"


@dataclass(frozen=True)
class Contents:
    """Values of ``packed.json``, each of which was checked.

    Attributes:
        kind: of :data:`KINDS`. files: name -> digest.
        layout: of the packed weights; None where another version of this package wrote them.
        instructions: for which they were packed.
    """

    kind: str
    files: Mapping[str, str]
    layout: Layout | None
    instructions: str

    @classmethod
    def of(cls, text: bytes) -> Contents:
        """Raises :class:`DamagedError` for a value that does not belong there."""
        about = parsed(text)
        sound(about.pop("digest", None) == digest_of(about), OTHER)
        values: list[Any] = [about.get(name) for name in NAMES]
        version, kind, files, layout, instructions = values
        sound(type(version) is int and kind in KINDS, "its kind is unknown")
        sound(type(files) is dict and all(map(_is_name, files)), "it names no files")
        sound(all(type(one) is str for one in files.values()), "a digest is no text")
        current = version == VERSION
        sound({CHECKPOINT, WEIGHTS} <= files.keys(), "it names too few files")
        if not current:
            files = {name: wanted for name, wanted in files.items() if name != WEIGHTS}
            return cls(kind, files, None, f"version {version}")
        names = [one.name for one in fields(Layout)]
        sound(type(layout) is dict and [*layout] == names, "its layout is unknown")
        sound(all(type(one) is int for one in layout.values()), "its layout is unknown")
        sound(type(instructions) is str, "its instructions are unknown")
        return cls(kind, files, Layout(**layout), instructions)


def _is_name(name: str) -> bool:
    """Tells whether a text names a file in a folder, and nothing outside."""
    return name not in ("", ".", "..") and not set(name) & {"/", "\0"}


def digest_of(about: Mapping[str, Any]) -> str:
    """Digest of what the file says, without this digest."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
