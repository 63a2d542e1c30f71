"""``python -m fairseq_aggdec``: every option of the plugin, with its default.

``fairseq-generate --help`` and ``fairseq-train --help`` end before fairseq asks a task, an architecture or a criterion
for its options, so none of those is in them.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

import fairseq_aggdec

PACKAGE = fairseq_aggdec.__name__


class WithDefaults(argparse.HelpFormatter):
    """Names the default after a help text that does not."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        silent = action.default in (None, False, argparse.SUPPRESS)
        return (
            text if silent or not text or "(default" in text else f"{text} (default: %(default)s)"
        )


REGISTRIES = {
    "--task": TASK_REGISTRY,
    "--arch": MODEL_REGISTRY,
    "--criterion": CRITERION_REGISTRY,
}
USAGE = f"""usage: fairseq-train|fairseq-generate DATA --user-dir {PACKAGE} --task NAME [options]

Options that the plugin adds to those of fairseq."""


def help_text(kinds: Iterable[str] = REGISTRIES) -> str:
    """The options of every task, architecture and criterion of the plugin, a section each.

    An option that means the same in several of them stands in the first.

    Args:
        kinds: keys of :data:`REGISTRIES`, those whose options are shown.
    """
    printed: set[tuple[str, str | None]] = set()
    parts = []
    for kind, registry in ((kind, REGISTRIES[kind]) for kind in kinds):
        for name, registered in ours(registry):
            formatter = WithDefaults(prog="")
            formatter.start_section(f"{kind} {name}")
            for action in added_options(registered):
                key = action.option_strings[0], action.help
                if key not in printed:
                    formatter.add_argument(action)
                    printed.add(key)
            formatter.end_section()
            parts.append(formatter.format_help())
    return "\n".join(parts)


def ours(registry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The plugin's entries of a registry of fairseq."""
    for name, registered in sorted(registry.items()):
        if registered.__module__.startswith(f"{PACKAGE}."):
            yield name, registered


def added_options(registered: Any) -> list[argparse.Action]:
    """Options of a task, model or criterion which the class of fairseq that it extends has not."""
    stock = next(c for c in registered.__mro__ if not c.__module__.startswith(f"{PACKAGE}."))
    known = {option for action in options(stock) for option in action.option_strings}
    return [action for action in options(registered) if not known & set(action.option_strings)]


def options(registered: Any) -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    registered.add_args(parser)
    return [action for action in parser._actions if action.option_strings]


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--help"], ["-h"]):
        raise SystemExit(
            f"error: python -m {PACKAGE} takes no arguments; it prints the options of the plugin"
        )
    print(f"{USAGE}\n\n{help_text()}", end="")
