"""``aggdec --completion SHELL``: what a shell loads to complete the tools and their options."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_aggdec.cli import parsers
from fairseq_aggdec.startup.installing import need

FILES = ("FILE", "FOLDER", "DATA", "OUTPUT")  # metavars of options that name a file


def script(shell: str, tools: Mapping[str, str]) -> str:
    """The functions that a shell calls.

    Args:
        shell: bash, zsh, or another that shtab knows.
        tools: their names and what they do.

    Raises:
        SystemExit: shtab does not know the shell, or is missing.
    """
    need("--completion", "completion", "shtab")
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise SystemExit(f"error: --completion takes one of {', '.join(shtab.SUPPORTED_SHELLS)}")
    return str(shtab.complete(parser_of_all(tools, shtab.FILE), shell))


def parser_of_all(tools: Mapping[str, str], file: Mapping[str, Any]) -> argparse.ArgumentParser:
    """``aggdec`` with a subcommand for each tool, with the tool's own options.

    Args:
        file: what shtab has for arguments that name a file.
    """
    whole = argparse.ArgumentParser(prog="aggdec")
    subcommands = whole.add_subparsers()
    for name, purpose in tools.items():
        tool = subcommands.add_parser(name, help=purpose)
        parsers.of_tool(name).add_options(tool)
        for action in tool._actions:
            if action.type is Path or action.metavar in FILES:
                about: dict[str, Any] = vars(action)
                about["complete"] = file
    return whole
