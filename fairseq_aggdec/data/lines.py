"""Text files, a sentence a line."""

from pathlib import Path


def read_lines(path: Path | str) -> list[str]:
    """The lines of a file, as fairseq-preprocess reads them; ``str.splitlines`` knows more ends of lines."""
    with open(path, encoding="utf-8") as file:
        return [line.removesuffix("\n") for line in file]
