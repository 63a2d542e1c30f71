"""``tests/warm.py``: its ``python`` does what Python does, from a process that is loaded already."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import warm


def run(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [warm.python(), *arguments], capture_output=True, text=True, timeout=60, **more
    )  # type: ignore[call-overload,no-any-return]


def test_arguments_files_folder_and_environment(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv, os.getcwd(), os.environ['X'], input()); print('e', file=sys.stderr)"
    found = run("-c", code, "a b", cwd=tmp_path, env={**os.environ, "X": "1"}, input="line\n")
    assert found.stdout == f"['-c', 'a b'] {tmp_path} 1 line\n"
    assert found.stderr == "e\n" and found.returncode == 0
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(__name__, sys.argv[1:])")
    assert run(str(script), "1").stdout == "__main__ ['1']\n"
    assert run("-", "2", input=script.read_text()).stdout == "__main__ ['2']\n"
    assert run("-m", "script", "3", cwd=tmp_path).stdout == "__main__ ['3']\n"


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
    ],
)
def test_it_ends_as_the_child_does(code: str, status: int, says: str) -> None:
    found = run("-c", code)
    assert found.returncode == status and found.stderr.endswith(says)


def test_nothing_of_the_plugin_is_loaded_before() -> None:
    code = "import sys; print([m for m in sys.modules if m.startswith('fairseq_aggdec')], 'fairseq' in sys.modules)"
    assert run("-c", code).stdout == "[] True\n"


def test_who_is_killed_takes_the_child_along(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    client = subprocess.Popen([warm.python(), "-c", code], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    child = int(client.stdout.readline())
    client.kill()
    client.wait()
    for _ in range(1200):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.05)
    raise AssertionError("the child goes on")
