"""``aggdec-generate``, ``-interactive``, ``-train``, ``-validate``: fairseq's commands with plugin and task set.

``--user-dir`` and ``--task`` may still be given, and then count.
"""

import argparse
import io
import logging
import os
import sys
from functools import partial
from importlib import import_module
from typing import Any

import fairseq_aggdec
from fairseq_aggdec.cli import parsers, refusals
from fairseq_aggdec.data.ranks import IGNORED, local_rank

logger = logging.getLogger(__name__)

TASK = "translation_aggdec"
DEFAULTS = ["--user-dir", fairseq_aggdec.__path__[0], "--task", TASK]
EXAMPLES = {
    "aggdec-generate": "aggdec-generate data-bin --path model.pt --gen-subset test",
    "aggdec-interactive": "aggdec-interactive data-bin --path model.pt < sentences.txt",
    "aggdec-train": "aggdec-train data-bin --arch nar_drafter --criterion glancing_loss --save-dir drafter",
    "aggdec-validate": "aggdec-validate data-bin --path model.pt --valid-subset valid",
}


def generate() -> int:
    """``aggdec-generate``: decodes a data set; with ``--input-file``, a text of any size."""
    return refusals.run("aggdec-generate", _generate, sys.argv[1:])


def _generate(arguments: list[str]) -> None:
    from fairseq_aggdec.bulk import command as translate_file
    from fairseq_aggdec.packed.folder import checkpoints

    if translate_file.is_wanted(arguments):
        _adopt_tasks(arguments)
        translate_file.main(checkpoints(arguments, precision=True))
    else:
        _decode("aggdec-generate", arguments)


def interactive() -> int:
    """``aggdec-interactive``: decodes lines as they come; each answer is written at once, through a pipe too."""
    if sys.stdin is None and "--input" not in " ".join(sys.argv):
        sentence = "the standard input is closed: give lines there, or a file with --input"
        return refusals.refuse("aggdec-interactive", sentence)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    kept = "surrogateescape"  # without a locale Python keeps what is not UTF-8
    if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.errors == kept:
        sys.stdin.reconfigure(errors="strict")
    return _run("aggdec-interactive")


def _run(name: str) -> int:
    return refusals.run(name, partial(_decode, name), sys.argv[1:])


def _decode(name: str, arguments: list[str]) -> None:
    """Runs fairseq's command of that name."""
    command: Any = import_module(f"fairseq_cli.{name.removeprefix('aggdec-')}").cli_main
    import torch

    on_cpu = "--cpu" in arguments or not torch.cuda.is_available()
    if on_cpu and (rank := local_rank(os.environ)):
        logger.info(IGNORED, rank)
    # In front: what is given comes behind and counts. fairseq reads them from here, in processes of its own too.
    if "--path" in " ".join(arguments):
        from fairseq_aggdec.packed.folder import checkpoints

        arguments = checkpoints(arguments, precision=name != "aggdec-validate")
    sys.argv = [name, *DEFAULTS, *arguments]
    if {*parsers.HELP} & {*arguments}:
        print(help_of(name))
        return
    sys.argv = ["--help" if word == parsers.HELP_ALL else word for word in sys.argv]
    _adopt_tasks(arguments)
    command()


def help_of(name: str) -> str:
    """The options that the plugin adds to a command, behind an example."""
    from fairseq_aggdec.__main__ import help_text

    kinds = ("--task", "--arch", "--criterion") if name == "aggdec-train" else ("--task",)
    parts = [
        f"usage: {name} DATA [options]\n\n    {EXAMPLES[name]}\n",
        f"Every option of {name.replace('aggdec', 'fairseq')} works too: {name} {parsers.HELP_ALL} lists them.\n",
        help_text(kinds),
    ]
    if name == "aggdec-generate":
        from fairseq_aggdec.bulk import command as translate_file

        parts.append(translate_file.help_text())
    return "\n".join(parts).rstrip()


train = partial(_run, "aggdec-train")  # a model, a drafter, heads or a scorer
validate = partial(_run, "aggdec-validate")  # a checkpoint on a validation set


def _adopt_tasks(arguments: list[str]) -> None:
    """Every task decodes with the plugin, those of a ``--user-dir`` of the user's own too."""
    from fairseq.utils import import_user_module

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--user-dir")
    known, _ = parser.parse_known_args(arguments)
    import_user_module(known)  # fairseq does that once only
    fairseq_aggdec.adopt()
