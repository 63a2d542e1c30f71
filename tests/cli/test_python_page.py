"""The blocks of the pages about Python and serving are run as they are printed, on a model of a stock task."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.cli.commands import ROOT, Trained

BLOCKS = {
    page: re.findall(
        r"<!-- (.*?) -->\n```(\w+)\n(.*?)```",
        (ROOT / "docs" / page).read_text(encoding="utf-8"),
        re.DOTALL,
    )
    for page in ("python.md", "serving.md")
}


def test_every_block_says_whether_it_is_run() -> None:
    for page, blocks in BLOCKS.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert len(blocks) == text.count("```") // 2 > 1, page
        for mark, _, code in blocks:
            assert mark == "run" or mark.startswith("not run here: "), code


def name_files(trained: Trained, folder: Path) -> None:
    """What the blocks speak of: data-bin and model.pt."""
    (folder / "data-bin").symlink_to(trained.data)
    (folder / "model.pt").symlink_to(trained.checkpoint)


def environment(folder: Path) -> dict[str, str]:
    """A user's, whose shell finds the commands and whose home is empty; no proxy stands before this machine."""
    path = os.pathsep.join([str(Path(warm.python()).parent), os.environ["PATH"]])
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return dict(os.environ, PYTHONPATH=str(ROOT), PATH=path, no_proxy="127.0.0.1", HOME=str(home))


def run(command: list[str], folder: Path) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "code", [code for mark, _, code in BLOCKS["python.md"] if mark == "run"], ids=["short", "calls"]
)
def test_python(code: str, trained: Trained, tmp_path: Path) -> None:
    name_files(trained, tmp_path)
    printed = run([warm.python(), "-c", code], tmp_path)
    lines = printed.splitlines()
    if "on_token" in code:
        best, edited, *told, score = lines
        text = best.rsplit(" ", 2)[0]
        assert told[-1] == f"0 {text}" and edited and float(score) < 0
    else:
        assert re.fullmatch(r"\['.*', '.*'\]", printed.strip())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
def test_serving(trained: Trained, tmp_path: Path) -> None:
    name_files(trained, tmp_path)
    port = str(free_port())
    serve, asks, client = (
        code.replace("8000", port) for mark, _, code in BLOCKS["serving.md"] if mark == "run"
    )
    service = subprocess.Popen(
        shlex.split(serve),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stdout is not None
        assert service.stdout.readline() == f"serving at http://127.0.0.1:{port}/\n"
        lines = [run(["bash", "-euc", ask], tmp_path) for ask in asks.strip().splitlines()]
        printed = run([warm.python(), "-c", client], tmp_path)
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(60)
    translated, languages, generated, streamed = lines
    text = json.loads(translated)["translatedText"]
    assert [one["code"] for one in json.loads(languages)] == ["src", "tgt"]
    (ranked,) = json.loads(generated)["hypotheses"]
    assert len(ranked) == 2 and text == printed.strip()
    events = re.findall(r"^event: (.*)\ndata: (.*)$", streamed, re.MULTILINE)
    assert [name for name, _ in events][-1] == "done"
    assert json.loads(events[-1][1])["hypotheses"][0][0]["text"] == text
