"""Command line of ``aggdec bench``: its own options, the systems, and what it refuses."""

import argparse
import re
import shlex
from argparse import Namespace
from collections.abc import Sequence

from fairseq_aggdec.api.session import DEFAULT_DECODING
from fairseq_aggdec.bench import systems
from fairseq_aggdec.bench.engines import ENGINES
from fairseq_aggdec.bench.systems import Entry
from fairseq_aggdec.methods.options.kinds import KINDS
from fairseq_aggdec.records import results

# System -> the tool's option for its own model, and the option of fairseq-generate that takes it.
OF_ITS_OWN = {"blockwise": ("heads", "--path")}


def split(item: str) -> tuple[str, list[str]]:
    """Name, which may have "=" in it, and options of a system."""
    match = re.fullmatch(r"(.+?)=(\s*(?:--.*)?)", item, re.DOTALL)
    if match is None:
        raise SystemExit(f"error: --system {item!r}: give NAME=OPTIONS")
    return match[1], shlex.split(match[2])


def entries(args: Namespace, arguments: Sequence[str]) -> tuple[list[Entry], dict[str, str]]:
    """The systems that are asked for, and by name why some cannot be measured."""
    by_options = [
        Entry(name, None, tuple(options)) for name, options in map(split, args.by_options)
    ]
    names = args.systems or ([] if by_options else ["stock", "ours"])
    drafter = any(x.partition("=")[0] == "--drafter-path" for x in arguments)
    models = {"gad": drafter, "blockwise": args.heads}
    names = systems.expanded(names, [name for name, model in models.items() if model])
    absent: dict[str, str] = {}
    named: list[Entry] = []
    for name in names:
        system, flags = systems.split(name)
        needed = OF_ITS_OWN.get(system)
        if not needed:
            named.append(Entry(name, system, tuple(flags)))
        elif path := getattr(args, needed[0]):
            named.append(Entry(name, system, (*flags, needed[1], path)))
        else:
            absent[name] = f"it needs --{needed[0]}"
    return [*named, *by_options], absent


def check(args: Namespace, entries: Sequence[Entry], arguments: Sequence[str] = ()) -> None:
    """Refuses what cannot be measured or written, before anything is loaded; ``arguments`` are of all systems."""
    for entry in entries:
        check_stock(entry, arguments)
    results.check_counts(args, "limit", "repeats", "batch_sizes", "threads", "by_length")
    results.check_place("--output", args.output, ".json", ".md")
    _check_names(args, entries)
    if args.by_length and 1 not in args.batch_sizes:
        raise SystemExit("error: --by-length needs batch size 1: larger batches mix lengths")
    if args.gec is not None and len(args.gec) < 2:
        raise SystemExit("error: --gec: name the source and the corrections of one annotator")


def check_stock(entry: Entry, arguments: Sequence[str]) -> None:
    """Refuses a system that is called stock or fairseq and is decoded by a method of ours."""
    if entry.system is not None or not re.search(r"\b(stock|fairseq)\b", entry.name):
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--decoding", default=DEFAULT_DECODING)
    decoding = parser.parse_known_args([*arguments, *entry.options])[0].decoding
    if decoding != "stock":
        raise SystemExit(
            f"error: --system {entry.name!r} is decoded by our --decoding {decoding}: "
            "add --decoding stock to its options, or give it another name"
        )


def _check_names(args: Namespace, entries: Sequence[Entry]) -> None:
    """Refuses names of systems that are there twice, or not at all."""
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise SystemExit("error: --system: two systems have the same name")
    if args.hypotheses is not None:
        results.check_place("--hypotheses", args.hypotheses / "NAME.txt")
        if len({file_name(name) for name in names}) < len(names):
            raise SystemExit(
                "error: --hypotheses: two systems would write the same file; name them otherwise"
            )
    for name in (entry.system for entry in entries if entry.system is not None):
        if name not in (*ENGINES, *KINDS) and not systems.BEAM.fullmatch(name):
            raise SystemExit(
                f"error: --systems {name}: there is no such system; groups are all, ours, {', '.join(systems.GROUPS)}"
            )
    baselines = [("baselines", name) for name in args.baselines or ()]
    for option, name in [*baselines, ("distribution", args.distribution)]:
        if name is not None and name not in names:
            raise SystemExit(f"error: --{option} {name}: there is no system of this name")
    if args.distribution is not None and not (args.baselines and 1 in args.batch_sizes):
        raise SystemExit("error: --distribution needs --baselines and batch size 1")


def file_name(system: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", system) + ".txt"
