"""Processes that begin with PyTorch and fairseq loaded: four seconds less of each of the many that tests start.

:func:`python` gives a ``python`` in a folder beside ``fairseq-train`` and its like. Each hands its arguments,
environment, folder and files 0 to 2 to a server, which forks a child for it, and ends as the child does. A command
that imports this plugin in any case is forked from a copy of the server that has it; another finds nothing of it.
``python - <<PROGRAM``, ``-c``, ``-m`` and scripts work as ever. Where fairseq must not be there yet, another server has
only the libraries that it imports.
"""

from __future__ import annotations

import array
import atexit
import functools
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

LIBRARIES = ["torch", "hydra", "omegaconf", "sacrebleu", "scipy.stats", "sklearn.cluster"]
# What commands import of others, optimisers of PyTorch among them.
LOADED = [
    "fairseq",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "sacrebleu",
    "jinja2",
    "matplotlib.figure",
    "rapidfuzz.distance",
    "PIL.Image",
]
LOADED += [f"fairseq_cli.{name}" for name in ("generate", "interactive", "preprocess", "train")]
ROOT = Path(__file__).resolve().parents[1]
PLUGIN = "fairseq_aggdec"
# Modules of C alone, which halve the time of its start.
CLIENT = """#!{python} -IS
import marshal, os, sys, _signal, _socket
name, given = os.path.basename(sys.argv[0]), sys.argv[1:]
ours = [one for one in given[1:3] if one.startswith(("{plugin}.", "scripts."))]
plugin = name.startswith("aggdec") or given[:1] in (["-m"], ["-c"]) and ours
plugin = plugin or "--user-dir" in given and {folder!r} in map(os.path.abspath, given)
place = _socket.socket(_socket.AF_UNIX)
place.connect({socket!r} + ("-plugin" if plugin and os.path.exists({socket!r} + "-plugin") else ""))
said = marshal.dumps([name, given, os.getcwd(), dict(os.environ)])
files = b"".join(file.to_bytes(4, sys.byteorder) for file in (0, 1, 2))
place.sendmsg([len(said).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
place.sendall(said)
def answer():
    text = b""
    while (byte := place.recv(1)) not in (b"", b"\\n"):
        text += byte
    return text
child = int(answer())
for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
    _signal.signal(number, lambda number, frame: os.kill(child, number))
status = int(answer() or -_signal.SIGKILL)
if status < 0:
    _signal.signal(-status, _signal.SIG_DFL) if -status != _signal.SIGKILL else None
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@functools.cache
def python(fairseq: bool = True) -> str:
    """The path of the ``python``; its server ends with this process.

    Args:
        fairseq: it is loaded; else only the libraries that it imports.
    """
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    scripts = Path(sys.executable).parent
    place = str(folder / "socket")
    client = CLIENT.format(
        python=sys.executable, socket=place, plugin=PLUGIN, folder=str(ROOT / PLUGIN)
    )
    for name in ("python", *commands()):
        (folder / name).write_text(client)
        (folder / name).chmod(0o755)
    for path in scripts.iterdir():
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", place, *(LOADED if fairseq else LIBRARIES)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"
    atexit.register(server.kill)
    return str(folder / "python")


def commands() -> dict[str, str]:
    """Console scripts of fairseq and of this plugin: name -> ``module:function``."""
    found = entry_points(group="console_scripts")
    return {one.name: one.value for one in found if one.name.startswith(("fairseq-", "aggdec"))}


# -- the server


def serve(place: str, modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    if "fairseq" in modules:
        from tests import quick_hydra

        quick_hydra.quicken()
        quick_hydra.prepare("translation")
        listening = listen(f"{place}-plugin")
        if os.fork() == 0:
            importlib.import_module(PLUGIN)
            quick_hydra.prepare("translation_aggdec")
            answer(listening)
            return
        listening.close()
    listening = listen(place)
    print("ready", flush=True)
    answer(listening)


def listen(place: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen(64)
    return listening


def answer(listening: socket.socket) -> None:
    """A child for every command, until the process of the tests has ended."""
    gc.freeze()  # the children do not look at what is here
    known = commands()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the handlers
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        asking, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(handle(asking, known))
        asking.close()


def handle(asking: socket.socket, known: dict[str, str]) -> int:
    """Forks the child, tells its number and its end; kills it when the client is gone."""
    files = array.array("i")
    size, rights, _, _ = asking.recvmsg(4, socket.CMSG_LEN(3 * files.itemsize))
    files.frombytes(rights[0][2])
    length, text = int.from_bytes(size, "big"), b""
    while len(text) < length:
        text += asking.recv(length - len(text))
    child = os.fork()
    if child == 0:
        asking.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        run(*marshal.loads(text), known)
    for file in files:
        os.close(file)
    asking.sendall(f"{child}\n".encode())
    watched = os.pidfd_open(child)
    ready, _, _ = select.select([watched, asking], [], [])
    if watched not in ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    asking.sendall(f"{status}\n".encode())
    return 0


def run(
    name: str, arguments: list[str], folder: str, environment: dict[str, str], known: dict[str, str]
) -> None:
    """Does in this process what the command would do, and ends it."""
    status: Any = 0
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[0:1] = [path for path in environment.get("PYTHONPATH", "").split(":") if path]
        start(name, arguments, known)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int | None) else 1
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        status = status or 120
    os._exit(status or 0)


def start(name: str, arguments: list[str], known: dict[str, str]) -> None:
    if name in known:
        module, _, function = known[name].partition(":")
        sys.argv = [name, *arguments]
        imported = __import__(module, fromlist=[function])
        sys.exit(getattr(imported, function)())
    while arguments and arguments[0] in ("-u", "-q", "-B"):
        arguments = arguments[1:]
    first, *rest = arguments or ["-"]
    if first == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first in ("-c", "-"):
        sys.path.insert(0, os.getcwd())
        sys.argv = [first, *(rest[1:] if first == "-c" else rest)]
        code = rest[0] if first == "-c" else sys.stdin.read()
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [first, *rest]
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
