"""The options of each tool, a module per tool. Nothing here imports PyTorch or fairseq.

So ``aggdec TOOL --help`` and a wrong option are answered at once. The docstring of a module is the description that
``--help`` shows, and its ``add_options`` declares the tool's own options. Tools that decode also take every option of
``fairseq-generate``; ``--help-all`` shows those too.
"""

import argparse
import importlib
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from fairseq_aggdec.cli.parsers import files

DECODING = ("audit", "bench", "distill", "trace")  # tools that take the options of fairseq-generate
HELP, HELP_ALL = ("-h", "--help"), "--help-all"


def of_tool(name: str) -> ModuleType:
    """The module of this room that has the options of ``aggdec NAME``."""
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of the tool's own options."""
    options = of_tool(name)
    parser = argparse.ArgumentParser(
        prog=f"aggdec {name}",
        description=options.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_options(parser)
    places = [one for one in parser._actions if not one.option_strings]
    words = (
        f"[{one.metavar or one.dest}]" if one.nargs == "?" else one.metavar or one.dest
        for one in places
    )
    parser.usage = " ".join(["aggdec", name, *map(str, words), "[options]"])
    if name in DECODING:
        parser.usage = f"aggdec {name} DATA --path MODEL [options]"
        parser.epilog = f"DATA and every option of fairseq-generate work too: aggdec {name} {HELP_ALL} lists them."
    return parser


def parsed(name: str, words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a tool, by default of this process; files that they name are looked for.

    Raises:
        SystemExit, FileNotFoundError: an option is wrong or missing, or a file is not there.
    """
    args = parser_of(name).parse_args(words)
    check = getattr(of_tool(name), "check", None)
    if check is not None:
        check(args)
    return args


def whole_parser(name: str) -> argparse.ArgumentParser:
    """The parser of a tool that decodes, with every option of ``fairseq-generate``; imports fairseq."""
    from fairseq_aggdec.api.session import generation_parser

    options = of_tool(name)
    parser = generation_parser(options.__doc__)
    options.add_options(parser)
    return parser


def answer(name: str, words: Sequence[str]) -> bool:
    """Answers a command line that needs no model: ``--help``, or an option that is wrong.

    Returns:
        Whether the help was shown, so that nothing is left to do.

    Raises:
        SystemExit, FileNotFoundError: an option of the tool is wrong or missing, or a file that it names is not there.
    """
    if HELP_ALL in words:
        if name not in DECODING:
            raise SystemExit(f"error: aggdec {name} --help shows all of its options")
        return False
    parser = parser_of(name)
    if any(word in HELP for word in words):
        parser.print_help()
        return True
    if name in DECODING:
        parser.parse_known_args(words)
        if path := files.given_path(words):
            files.refuse_no_model(path)
    else:
        parsed(name, words)
    return False


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
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or value == math.inf or (above and value == least):
            raise argparse.ArgumentTypeError(f"{text}: it must be {noun} {bounds}")
        return value

    return read
