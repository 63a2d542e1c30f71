"""The Dockerfile and the lines of docs/serving.md that run its image, as far as they can be tried without Docker."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from fairseq_aggdec.cli.parsers import parser_of
from fairseq_aggdec.convert import published
from tests import warm
from tests.serving import live, tiny

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "fairseq_aggdec"
FILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
DIRECTIVES = [
    tuple(line.split(maxsplit=1))
    for line in FILE.replace("\\\n", " ").splitlines()
    if line and not line.startswith("#")
]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
(BLOCK,) = re.findall(r"```sh\n(docker build .*?)```", PAGE, re.DOTALL)
BUILD, DECODE, SERVE = (shlex.split(line) for line in BLOCK.replace("\\\n", "").splitlines())


def within(command: list[str]) -> list[str]:
    """What a line of the page runs in a container."""
    return command[command.index(IMAGE) + 1 :]


def test_the_image_runs_as_an_ordinary_user_and_checks_no_health() -> None:
    names = [name for name, _ in DIRECTIVES]
    assert names[0] == "FROM" and {*names} == {
        *["FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "CMD"]
    }
    (user,) = (value for name, value in DIRECTIVES if name == "USER")
    assert user != "root" and f"useradd --create-home {user} " in FILE
    assert names.index("USER") > max(place for place, name in enumerate(names) if name == "RUN")
    assert BUILD == ["docker", "build", "-t", IMAGE, "."]


def test_any_user_keeps_models_in_the_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    (given,) = (value for name, value in DIRECTIVES if name == "ENV")
    variables = dict(one.split("=") for one in given.split())
    volume = SERVE[[i for i, word in enumerate(SERVE) if word == "-v"][1] + 1].split(":")[1]
    assert f"mkdir -m 1777 {volume}" in FILE
    assert all(Path(place).is_relative_to(volume) for place in variables.values())
    monkeypatch.setenv("XDG_CACHE_HOME", variables["XDG_CACHE_HOME"])
    assert published.cache().is_relative_to(volume) and "HF_HOME" in variables


def test_what_the_lines_run_is_right() -> None:
    tool, *given = within(DECODE)
    assert tool in {script.name for script in entry_points(group="console_scripts")}
    assert given == ["data-bin", "--path", "model.pt"] and "--user" in DECODE
    aggdec, tool, *given = within(SERVE)
    args = parser_of(tool).parse_args(given)
    assert (aggdec, args.host) == ("aggdec", "0.0.0.0")
    assert (
        f"127.0.0.1:{args.port}:{args.port}" in SERVE and ("EXPOSE", str(args.port)) in DIRECTIVES
    )


def healthy(port: int) -> bool:
    """What the health check of the page says of a service at this port."""
    command = SERVE[SERVE.index("--health-cmd") + 1].replace("8000", str(port))
    variables = os.environ | {"no_proxy": "127.0.0.1"}
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]])
    return subprocess.run(["sh", "-c", command], env=variables, capture_output=True).returncode == 0


def test_the_health_check_of_the_service() -> None:
    with live(tiny()) as client:
        port = client.base_url.port
        assert port is not None and healthy(port)
    assert not healthy(port)


def test_a_user_without_a_name_and_a_home_decodes(tmp_path: Path) -> None:
    """As with ``--user`` in a container: the system knows no name of the number, and there is no home."""
    code = (
        "import pwd\n"
        "def nobody(number): raise KeyError(number)\n"
        "pwd.getpwuid = nobody\n"
        "import fairseq_aggdec\n"
        "model = fairseq_aggdec.from_pretrained(\n"
        "    'checkpoints/ua_gec/checkpoint.pt', 'checkpoints/ua_gec', spm='checkpoints/ua_gec/spm.model')\n"
        "print(*model.translate(['Це добре .']))\n"
    )
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "none")}
    command = [warm.python(fairseq=False), "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Це добре .\n"), done.stderr
