"""The lines of docs/serving.md for nginx, Caddy and systemd, run in these programs where they are installed."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from tests.cli.commands import ROOT
from tests.serving import SENTENCES, live, tiny

PAGE = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
NGINX = """
daemon off; pid FOLDER/pid; error_log FOLDER/log; events {}
http { access_log off; client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy;
server { listen 127.0.0.1:PORT; LINES } }
"""
CADDY = "{\n admin off\n auto_https off\n}\nLINES"


def lines(start: str) -> str:
    """The indented block of the page that begins so."""
    found = re.search(rf"^    {re.escape(start)}.*?\n(?=\S)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return dedent(found[0])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def proxied(program: str, service: str, folder: Path) -> Iterator[httpx.Client]:
    """A client of the service through a proxy, where it has the path ``/mt/``."""
    port, config = free_port(), folder / "config"
    if program == "nginx":
        text = NGINX.replace(
            "LINES", lines("location /mt/").replace("http://127.0.0.1:8000", service)
        )
        command = ["nginx", "-c", str(config), "-p", str(folder)]
    else:
        block = lines("example.org {").replace("127.0.0.1:8000", service.removeprefix("http://"))
        text = CADDY.replace("LINES", block.replace("example.org", "http://127.0.0.1:PORT"))
        command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(config)]
    config.write_text(text.replace("FOLDER", str(folder)).replace("PORT", str(port)))
    with open(folder / "output", "w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        transport = httpx.HTTPTransport(retries=8)  # until it listens
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}/mt", timeout=60, transport=transport
        ) as one:
            yield one
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("program", ["nginx", "caddy"])
def test_the_service_has_a_path_of_a_site(program: str, tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} on this machine")
    translator = tiny()
    wanted = translator.translate(SENTENCES[:2])
    with live(translator) as direct, proxied(program, str(direct.base_url), tmp_path) as client:
        assert client.get("/health").json()["status"] == "ok"
        site = LibreTranslateAPI(f"{client.base_url}")
        assert [site.translate(one, "src", "tgt") for one in SENTENCES[:2]] == wanted
        asked = {"sentences": SENTENCES[:1], "stream": True}
        with client.stream("POST", "/generate", json=asked) as events:
            assert [one for one in events.iter_lines() if one.startswith("event")][
                -1
            ] == "event: done"
        assert 'id="sentence"' in client.get("/").text


def test_the_unit_of_systemd_is_right(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd on this machine")
    unit = tmp_path / "aggdec.service"
    unit.write_text(lines("[Unit]").replace("/opt/aggdec/bin/aggdec", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
