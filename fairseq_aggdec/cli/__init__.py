"""The commands: ``aggdec-generate`` and its relatives, and ``aggdec`` with the project's tools.

They log as fairseq's own commands do: ``import fairseq`` may set up the root logger.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

from fairseq_aggdec import after_fairseq, waiting

after_fairseq.may_set_up_root_logger = True
waiting.set_up_threads()  # before a command loads PyTorch


def tool_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of ``aggdec NAME``, whose description is shown as it is written."""
    return argparse.ArgumentParser(
        prog=f"aggdec {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def number(
    least: float, most: float = math.inf, kind: type = int, above: bool = False
) -> Callable[[str], Any]:
    """The type of an option that takes a number in these bounds, or one above the lower."""
    noun = "a whole number" if kind is int else "a number"
    bounds = f"{'above' if above else 'of at least'} {least}"
    if most != math.inf:
        bounds = f"from {least} to {most}"

    def read(text: str) -> Any:
        try:
            found = kind(text)
        except ValueError:
            found = math.nan
        if not least <= found <= most or found == math.inf or (above and found == least):
            raise argparse.ArgumentTypeError(f"{text}: it must be {noun} {bounds}")
        return found

    return read
