"""Options of a script that also takes every flag of fairseq-generate."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from fairseq_aggdec.api.session import generation_parser


def split(
    description: str | None,
    add_options: Callable[[argparse.ArgumentParser], None],
    given: Sequence[str],
) -> tuple[argparse.Namespace, list[str]]:
    """The script's own options, and the flags that are left for fairseq-generate.

    Ends for ``--help``, and with a sentence where an option is missing or wrong.
    """
    whole = generation_parser(description)
    add_options(whole)
    whole.parse_known_args(given)
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(own)
    return own.parse_known_args(given)
