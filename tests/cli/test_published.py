"""Models by their names on the hub, downloaded, converted and packed once; huggingface_hub reads a stand-in."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_aggdec
from fairseq_aggdec.kernels.library import kernels
from tests import hugging_face_folders as folders
from tests.cli.commands import ROOT
from tests.hub import hub

pytest.importorskip("transformers")
NAME, TEXT = "own/nllb-tiny", "the cat sat on the mat"
CODE = """
import sys, torch
from fairseq_aggdec.convert import published
folder = published.packed("own/nllb-tiny", "int8", None, "fra_Latn")
print(folder)
"""


def environment(endpoint: str, home: Path, **more: str) -> dict[str, str]:
    """That of a user with an empty home, which knows the stand-in alone."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    own = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home / "hf"),
        "XDG_CACHE_HOME": str(home / "cache"),
    }
    return {**kept, **own, **more, "HOME": str(home)}


def run(code: str, endpoint: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """What Python does with these lines."""
    command, variables = [sys.executable, "-c", code], environment(endpoint, home, **more)
    return subprocess.run(command, env=variables, capture_output=True, text=True)


@pytest.mark.skipif(kernels() is None, reason="nothing is packed without compiled kernels")
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
def test_the_lines_of_readme(tmp_path: Path) -> None:
    """A model by its name to an answer of the service; the stand-in's translates into French."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```sh\npip install .*?\n(aggdec serve .*?\ncurl .*?)\n```", text)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
    serve, ask = lines.replace("8000", port).replace("target=de", "target=fr").splitlines()
    folders.make("marian", tmp_path / "published")
    with hub({"Helsinki-NLP/opus-mt-en-de": tmp_path / "published"}, []) as endpoint:
        variables = environment(endpoint, tmp_path)
        variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
        command = [*shlex.split(serve), "--port", port]
        service = subprocess.Popen(
            command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
        )
        try:
            assert service.stdout is not None
            assert service.stdout.readline() == f"serving at http://127.0.0.1:{port}/\n"
            done = subprocess.run(
                ["bash", "-c", ask], env=variables, capture_output=True, text=True
            )
        finally:
            service.terminate()
            service.wait(60)
    assert json.loads(done.stdout)["translatedText"]


def test_a_name_becomes_a_packed_folder_once(tmp_path: Path) -> None:
    folders.make("nllb", tmp_path / "published")
    asked: list[str] = []
    with hub({NAME: tmp_path / "published"}, asked) as endpoint:
        first = run(CODE, endpoint, tmp_path)
        assert first.returncode == 0, first.stderr
        missing = run(CODE.replace(NAME, "own/none"), endpoint, tmp_path)
        assert "own/none: there is no file and no model of the hub of this name" in missing.stderr
    assert any("/resolve/" in path for path in asked)
    folder = Path(first.stdout.strip())
    assert folder.is_relative_to(tmp_path / "cache/fairseq_aggdec/models/own--nllb-tiny")
    made = {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*") if path.is_file()}
    # Nobody answers there any more, and what is made needs no transformers, whose import takes seconds.
    again = CODE + "assert 'transformers' not in sys.modules"
    offline = run(again, endpoint, tmp_path, HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stdout) == (0, first.stdout), offline.stderr
    assert made == {
        path: path.stat().st_mtime_ns for path in folder.parent.rglob("*") if path.is_file()
    }
    other = run(CODE.replace(NAME, "own/other"), endpoint, tmp_path, HF_HUB_OFFLINE="1")
    assert (
        "own/other: the hub cannot be reached, and its cache does not have this model"
        in other.stderr
    )
    packed = fairseq_aggdec.from_pretrained(folder)
    plain = fairseq_aggdec.from_pretrained(folder.parent / "model.pt", folder.parent, int8="all")
    assert packed.translate([TEXT]) == plain.translate([TEXT]) != [""]


@pytest.mark.parametrize("name", ["facebook/nllb-200-distilled-600M", "folder"])
def test_where_a_checkpoint_is_needed_the_two_lines_are_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/config.json").write_text("{}")
    made = f"{name.rpartition('/')[2]}-fairseq"
    with pytest.raises(
        ValueError, match=f"`aggdec convert {name} {made}` converts it; then name {made}/model.pt"
    ):
        fairseq_aggdec.from_pretrained(name, "data")
