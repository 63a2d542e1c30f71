"""``aggdec``: the project's tools as one command."""

import difflib
import importlib
import sys
from collections.abc import Sequence

import fairseq_aggdec
from fairseq_aggdec.cli import completion, parsers, refusals
from fairseq_aggdec.startup.after_fairseq import set_up_log

TOOLS = {
    "audit": "is a fast method exactly what stock fairseq gives?",
    "bench": "how fast and how good are ours, stock fairseq and other engines?",
    "serve": "offer a model over HTTP: LibreTranslate's interface, JSON, and a page",
    "trace": "a page that shows how sentences were decoded, call by call",
    "distill": "replace the targets of a data folder by what a teacher writes",
    "train-drafter": "a drafter, or block heads, for a trained model",
    "lattice-tables": "tables of candidates for --decoding lattice and --shortlist",
    "average-checkpoints": "one checkpoint of the mean of several",
    "pack": "packed weights in a folder that loads in a second and that processes share",
    "convert": "a model of Hugging Face transformers as a fairseq checkpoint",
    "upgrade-checkpoint": "a copy of an old checkpoint that holds data only",
    "doctor": "what this machine and a checkpoint will use, and which method to take",
}
COMMANDS = ("generate", "interactive", "train", "validate")  # aggdec-generate and so on


def usage() -> str:
    width = max(map(len, TOOLS)) + 2
    tools = "\n".join(f"  {name:<{width}}{what}" for name, what in TOOLS.items())
    return (
        "usage: aggdec TOOL [options]      aggdec TOOL --help shows the options of a tool\n\n"
        f"{tools}\n\n"
        "  --user-dir           print the folder for fairseq's --user-dir\n"
        "  --version            print the version\n"
        "  --completion SHELL   print what bash, zsh or another shell loads to complete tools and options\n"
        "  --debug              with a tool: show the traceback of what it refuses\n\n"
        "Decoding and training: aggdec-generate, aggdec-interactive, aggdec-train, aggdec-validate, which take the\n"
        "options of fairseq-generate and its relatives."
    )


def main() -> int:
    """The console script."""
    arguments = sys.argv[1:]
    first = arguments[0] if arguments else "--help"
    if first in (*parsers.HELP, "help"):
        return _say(usage()) or (0 if arguments else refusals.REFUSED)
    if first == "--user-dir":
        return _say(fairseq_aggdec.__path__[0])
    if first == "--version":
        return _say(f"fairseq_aggdec {fairseq_aggdec.__version__}")
    if first == "--completion":
        shell = "".join(arguments[1:2])
        return refusals.run("aggdec", lambda words: print(completion.script(shell, TOOLS)), [])
    return run_tool(first, arguments[1:])


def _say(text: str) -> int:
    return refusals.run("aggdec", lambda words: print(text, flush=True), [])


def no_such_tool(name: str) -> str:
    """Suggests what to run instead of a tool that there is not."""
    if name in COMMANDS:
        return f"this is a command of its own: aggdec-{name} (with a hyphen)"
    if name == "translate":
        return "for a data set take aggdec-generate, for lines as they come aggdec-interactive"
    near = difflib.get_close_matches(name.replace("_", "-"), [*TOOLS, *COMMANDS], 1)
    if near:
        meant = f"aggdec-{near[0]}" if near[0] in COMMANDS else f"aggdec {near[0]}"
        return f"there is no such tool: did you mean {meant}?"
    return f"there is no such tool, choose from {', '.join(TOOLS)}"


def module_of(name: str) -> str:
    """The module of a tool."""
    return f"fairseq_aggdec.cli.{name.replace('-', '_')}"


def run_tool(name: str, arguments: Sequence[str] | None = None) -> int:
    """Runs a tool as ``aggdec NAME`` does, with the arguments of this process by default; its exit status."""
    command = f"aggdec {name}"
    if name not in TOOLS:
        return refusals.refuse(command, no_such_tool(name))

    words = sys.argv[1:] if arguments is None else arguments
    if refusals.DEBUG not in words:
        set_up_log()

    def tool(words: list[str]) -> object:
        if parsers.answer(name, words):
            return None
        words = ["--help" if word == parsers.HELP_ALL else word for word in words]
        # In sys.argv too: results name the command that made them.
        if any(word.split("=")[0] == "--path" for word in words):
            from fairseq_aggdec.packed.folder import checkpoints

            words = checkpoints(words)
        sys.argv = [command, *words]
        return importlib.import_module(module_of(name)).main()

    return refusals.run(command, tool, words)


if __name__ == "__main__":
    sys.exit(main())
