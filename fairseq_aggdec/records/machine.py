"""Conditions of a measurement: machine, versions, commit. Written beside every number."""

import functools
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath

import torch

from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.startup.known_fairseq import DISTRIBUTIONS
from fairseq_aggdec.version import __version__

PACKAGES = ("torch", *DISTRIBUTIONS, "numpy", "ctranslate2", "transformers")


def describe() -> dict[str, object]:
    """Processor, cores, threads, memory (GiB), GPU, versions and commit, ready for JSON."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": dict(_versions()),
        "commit": commit(),
    }


def sentence(machine: dict[str, object]) -> str:
    """The same in one line for a Markdown file."""
    versions = machine["versions"]
    assert isinstance(versions, dict)
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    made_by = str(machine["commit"])
    if made_by.endswith("+"):
        made_by = f"{made_by[:-1]} with changes that were not committed"
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB{gpu}; "
        f"Python {machine['python']}, {packages}; commit {made_by}"
    )


def count(number: object, name: str) -> str:
    """``1 thread``, ``2 threads``."""
    name = name.replace("_", " ")
    return f"{number} {name.removesuffix('s') if number == 1 else name}"


def near(path: str) -> str:
    """The end of a path, which says what it is."""
    return str(PurePath(*PurePath(path).parts[-2:]))


def _processor() -> str:
    """Model name and the instructions for vectors and matrices that matter, as far as the system tells; which kernels
    were chosen, if any were."""
    fields, flags = _cpuinfo(), processor_flags()
    if not fields:
        return platform.processor() or platform.machine()
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    vectors += ", AMX" if "amx_tile" in flags else ""
    chosen = os.environ.get(VARIABLE)
    vectors += f", {VARIABLE}={chosen}" if chosen else ""
    return f"{fields.get('model name', platform.machine())} ({vectors})"


def processor_flags() -> set[str]:
    """Flags of the processor, as Linux names it; nothing where the system does not tell."""
    return set(_cpuinfo().get("flags", "").split())


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in fields}


@functools.cache
def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    # Of the code that runs: a checkout may have gone on since it was installed.
    return versions | {"fairseq_aggdec": __version__}


def command(tool: str, arguments: Sequence[str]) -> str:
    """The command line of a tool of ``aggdec`` or a module (with dots); its paths are relative to the checkout."""
    checkout = Path(__file__).resolve().parents[2]
    start = ["python", "-m", tool] if "." in tool else ["aggdec", tool.replace("_", "-")]
    line = shlex.join([*start, *arguments]).replace(f"{checkout}/", "")
    # Where the locale is not UTF-8, Python keeps bytes of names as halves of surrogate pairs, which no file can hold.
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def commit() -> str:
    """Short commit, with ``+`` when files that git tracks, results apart, were changed since; ``unknown`` outside a
    checkout."""
    folder = Path(__file__).parent
    changes = ("status", "--porcelain", "-uno", "--", ":/", ":(top,exclude)docs/results")
    try:
        return _git(folder, "rev-parse", "--short", "HEAD") + (
            "+" if _git(folder, *changes) else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        # Without locks: one that is killed, or finds no room, would leave the checkout locked.
        ["git", "--no-optional-locks", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
