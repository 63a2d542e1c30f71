"""Tells how a command ends: what it refuses is one sentence on stderr and exit code 2, without a traceback."""

import argparse
import difflib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from fairseq_aggdec.data.ranks import local_rank
from fairseq_aggdec.startup import installing
from fairseq_aggdec.startup.after_fairseq import printable, quieten_hydra

REFUSED = 2
OURS = (
    "fairseq_aggdec.",
    "aggdec_images.",
)  # the package, and the user directory of its image recipe
DEBUG = "--debug"
OF_FAIRSEQ = (
    "fairseq.",
    "fairseq_cli.",
    "numpy.random",
    "sentencepiece",
)  # with what it hands options to
CHECKS_OPTIONS = (
    "fairseq.models.",
    "fairseq.search",
)  # rooms of fairseq whose ValueErrors are about options
NO_DICTIONARY = "@@ "  # what fairseq takes for the file where --replace-unk names none
UNREADABLE_PIECES = "INTERNAL: could not parse ModelProto"  # of sentencepiece
# How a sentence of fairseq begins that does not say what to do -> what to do.
ADVICE = {
    "Could not infer language pair": "name both languages with -s and -t",
    "Size of sample": "too long for the model; --truncate-source cuts sources",
    "Dataset not found": "--gen-subset names a set of the data folder, such as test",
    "Model file not found": "--path and --lm-path name files that fairseq-train wrote",
    "Sentences lengths should not exceed": "raise it, or leave --max-tokens out",
    "Unknown post_process option": "--post-process takes sentencepiece for ▁, subword_nmt for @@",
    UNREADABLE_PIECES: "--sentencepiece-model names what sentencepiece trained, such as spm.model",
    "--path required": "name the checkpoint of a model with --path",
    "--share-all-embeddings requires": "both dictionaries of the data folder must be those of the model",
}


def run(name: str, command: Callable[[list[str]], object], arguments: Sequence[str]) -> int:
    """Runs a command with its arguments but ``--debug``; its exit status, 2 where it refused.

    Raises:
        Whatever is no refusal, and with ``--debug`` everything: the interpreter shows the traceback.
    """
    debug = DEBUG in arguments
    try:
        local_rank(os.environ)
    except ValueError as error:
        return refuse(name, str(error))
    if not debug:
        quieten_hydra()
    try:
        with nullcontext() if debug else without_usage():
            status = command([argument for argument in arguments if argument != DEBUG])
    except KeyboardInterrupt:
        if debug:
            raise
        return 130
    except BrokenPipeError:  # who read the output has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0
    except SystemExit as end:
        if debug or not isinstance(end.code, str):
            raise
        return refuse(name, end.code.removeprefix("error: "))
    except Exception as error:
        sentence = None if debug else refusal(error)
        if sentence is None:
            raise
        return refuse(name, sentence)
    return status if isinstance(status, int) else 0


@contextmanager
def without_usage() -> Iterator[None]:
    """Makes what a parser of options refuses one sentence too: with fairseq's options its usage has 200 lines."""

    def error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
        wrong = re.search(r"^unrecognized arguments:.*?(--[\w-]+)", message)
        known = parser._option_string_actions if wrong else ()
        near = difflib.get_close_matches(wrong[1] if wrong else "", known, 1)
        hint = f"did you mean {near[0]}?" if near else "--help shows the options"
        raise SystemExit(f"{message} ({hint})")

    kept = argparse.ArgumentParser.error
    setattr(argparse.ArgumentParser, "error", error)  # noqa: B010  (mypy forbids to assign to a method)
    try:
        yield
    finally:
        setattr(argparse.ArgumentParser, "error", kept)  # noqa: B010


def refuse(name: str, sentence: str) -> int:
    for handler in logging.getLogger().handlers:  # what was logged stands before it
        handler.flush()
    sentence = printable(re.sub(r"\[Errno \d+\] ", "", " ".join(sentence.split())))
    advice = next((f" ({ADVICE[start]})" for start in ADVICE if sentence.startswith(start)), "")
    print(f"{name}: error: {sentence}{advice}", file=sys.stderr)
    return REFUSED


def refusal(error: Exception) -> str | None:
    """The sentence of an error that the user can mend; None for a fault, whose traceback is wanted.

    Refusals are what our own code raises as ``ValueError`` or ``MemoryError`` or about a checkpoint, files that are not
    there, and what fairseq's commands assert about their options.
    """
    text = str(error).strip()
    if isinstance(error, UnicodeError):
        return wrong_encoding(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.split(".")[0]
        known = module in installing.DISTRIBUTIONS
        return f"this needs {error.name}: {installing.advice(module)}" if known else None
    if isinstance(error, OSError):
        return of_a_file(error, text)
    if isinstance(error, loaded("fairseq_aggdec.stored.options", "CheckpointError")):
        return text
    if isinstance(error, loaded("omegaconf", "MissingMandatoryValue")):
        # --bpe and --tokenizer have options of their own.
        missing = str(getattr(error, "full_key", "")).rpartition(".")[2].replace("_", "-")
        return f"--{missing} is missing (--help shows the options)"
    module = innermost_module(error.__traceback__)
    if module == "fairseq.options" and not text:  # it says nothing of what it has against the model
        return "--arch is missing: it names the kind of model (--help shows the options)"
    if module == "ast":  # of all options only that one is read as Python by fairseq's commands
        return "--model-overrides: give a Python dictionary, such as {'max_source_positions': 512}"
    ours = module.startswith(OURS)
    if isinstance(error, ValueError | MemoryError) and ours and text:
        return text
    stated = isinstance(error, AssertionError) or type(error) in (Exception, ImportError)
    stated = stated or (isinstance(error, ValueError) and module.startswith(CHECKS_OPTIONS))
    stated = stated or text.startswith(("Unknown post_process", "Seed must", UNREADABLE_PIECES))
    if stated and text and (ours or module.startswith(OF_FAIRSEQ)):
        return text
    return None


def loaded(module: str, name: str) -> type | tuple[()]:
    """A class of a module, which is not loaded for the question: what is not loaded has raised nothing."""
    kind: type | tuple[()] = getattr(sys.modules.get(module), name, ())
    return kind


def of_a_file(error: OSError, text: str) -> str:
    """The sentence of the system; where a dictionary is not there, with the dictionaries that the folder has."""
    path = Path(str(error.filename))
    if isinstance(error, FileNotFoundError):
        if error.filename == NO_DICTIONARY:
            return "--replace-unk of an interactive command needs the file of a dictionary of words: --replace-unk FILE"
        if " " not in text:
            return f"there is no {text}"
        others = ", ".join(sorted(other.name for other in path.parent.glob("dict.*.txt")))
        if path.match("dict.*.txt") and others:
            return (
                f"there is no {path}, but {others}: name the languages of the data with -s and -t"
            )
        if path.match("dict.*.txt"):
            return (
                f"there is no {path}: name the folder that fairseq-preprocess wrote, or copy the model's dictionaries "
                "into it"
            )
    return text


def wrong_encoding(error: UnicodeError) -> str | None:
    """The sentence about input that is not UTF-8, or a terminal that cannot show what was written."""
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return (
            f"the input is not text in {error.encoding.upper()}: byte 0x{byte:02X}, {error.reason}; convert it first "
            "(iconv -t utf-8)"
        )
    if isinstance(error, UnicodeEncodeError):
        if "surrogate" in error.reason:  # how Python keeps bytes that it could not decode
            return "the input is not text in UTF-8: convert it first (iconv -t utf-8)"
        return f"the output cannot be written in {error.encoding}: set PYTHONIOENCODING=utf-8"
    return None


def innermost_module(trace: TracebackType | None) -> str:
    """Name of the module that raised."""
    frames = list(traceback.walk_tb(trace))
    return str(frames[-1][0].f_globals.get("__name__", "")) if frames else ""
