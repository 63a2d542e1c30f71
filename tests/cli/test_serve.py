"""``aggdec serve`` as a process: a load of clients, one that knows LibreTranslate only, and the end by a signal."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from tests import warm
from tests.cli.commands import ROOT, Trained

REQUESTS, CLIENTS = 200, 16


@contextmanager
def serving(
    trained: Trained, *arguments: str, python: str | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves the trained model, and its address."""
    command = [python or warm.python(), "-m", "fairseq_aggdec.cli.main", "serve"]
    command += [str(trained.checkpoint), str(trained.data), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--option", "max_len_b=20", *arguments],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture(scope="module")
def expected(trained: Trained) -> list[str]:
    """What stock ``fairseq-generate --beam 5`` writes for the lines of the test set."""
    texts = trained.generate("stock", "--beam", "5").texts("D")
    return [texts[str(number)] for number in range(len(texts))]


@pytest.fixture(scope="module")
def address(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys: Path = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("first\nsecond\n")
    with serving(trained, "--max-batch", "8", "--api-key-file", str(keys)) as (_, found):
        yield found


def leave(address: str, lines: Sequence[str]) -> None:
    """Asks and closes the connection without waiting."""
    host, port = address.removeprefix("http://").strip("/").split(":")
    body = '{"sentences": ["' + lines[0] + '"]}'
    head = f"POST /generate HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer first\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())


def test_a_load_of_clients(address: str, trained: Trained, expected: list[str]) -> None:
    """None of 200 answers is lost or another's, while other clients come and go."""
    lines, headers = trained.source(), {"Authorization": "Bearer second"}
    here = threading.local()

    def ask(request: int) -> str:
        if not hasattr(here, "client"):
            here.client = httpx.Client(
                base_url=address, timeout=120, headers=headers, trust_env=False
            )
        if request % 5 == 0:
            leave(address, lines)
        line = lines[request % len(lines)]
        if request % 2:
            body = {"q": line, "source": "src", "target": "tgt"}
            return here.client.post("translate", json=body).json()["translatedText"]
        answer = here.client.post("generate", json={"sentences": [line], "nbest": 2})
        return answer.json()["hypotheses"][0][0]["text"]

    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(ask, range(REQUESTS)))
    assert found == [expected[request % len(lines)] for request in range(REQUESTS)]
    with httpx.Client(base_url=address, trust_env=False) as client:
        assert client.get("health").json() == {"status": "ok", "waiting": 0}
        metrics = client.get("metrics").text
    assert 'aggdec_requests_total{path="/translate",status="200"} 100.0' in metrics
    assert 'aggdec_requests_total{path="/generate",status="200"} 100.0' in metrics


def test_a_client_of_libretranslate(
    address: str, trained: Trained, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    client = LibreTranslateAPI(address, "first")
    assert [language["code"] for language in client.languages()] == ["src", "tgt"]
    assert client.translate(trained.source()[0], "src", "tgt") == expected[0]


def test_a_signal_ends_it_when_all_is_answered(trained: Trained, expected: list[str]) -> None:
    """What was accepted before SIGTERM is answered; the process then ends."""
    arguments = ["--max-wait-ms", "1500", "--max-batch", "64"]
    with serving(trained, *arguments) as (process, address), ThreadPoolExecutor(8) as pool:
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            asked = [
                pool.submit(
                    httpx.post,
                    f"{address}generate",
                    json={"sentences": [line]},
                    timeout=60,
                    trust_env=False,
                )
                for line in trained.source()[:8]
            ]
            while client.get("health").json()["waiting"] < 8:
                pass
        process.send_signal(signal.SIGTERM)
        answers = [one.result() for one in asked]
        assert [answer.status_code for answer in answers] == [200] * 8
        texts = [answer.json()["hypotheses"][0][0]["text"] for answer in answers]
        assert texts == expected[:8]
        process.wait(60)
        with pytest.raises(OSError):
            leave(address, trained.source())


def test_a_port_that_is_taken(trained: Trained, address: str) -> None:
    port = address.strip("/").rsplit(":", 1)[1]
    command = [warm.python(), "-m", "fairseq_aggdec.cli.main", "serve"]
    done = subprocess.run(
        [*command, str(trained.checkpoint), str(trained.data), "--port", port, "--device", "cpu"],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0 and f"--port {port}: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def children(process: subprocess.Popen[str]) -> list[int]:
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(child) for child in found.split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc")
def test_workers_answer_at_one_port(trained: Trained, expected: list[str]) -> None:
    lines = trained.source()
    with serving(trained, "--workers", "2", python=sys.executable) as (process, address):
        workers = children(process)
        assert len(workers) == 2

        def ask(number: int) -> str:
            answer = httpx.post(
                f"{address}generate",
                json={"sentences": [lines[number % len(lines)]]},
                timeout=60,
                trust_env=False,
            )
            return str(answer.json()["hypotheses"][0][0]["text"])

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(ask, range(40)))
        assert found == [expected[number % len(lines)] for number in range(40)]
        for worker in workers:  # each of them answers: the other is held
            other = next(one for one in workers if one != worker)
            os.kill(other, signal.SIGSTOP)
            assert ask(1) == expected[1]
            os.kill(other, signal.SIGCONT)
    assert process.returncode == 0
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc")
def test_all_workers_end_with_one(trained: Trained) -> None:
    with serving(trained, "--workers", "2", python=sys.executable) as (process, _):
        workers = children(process)
        os.kill(workers[0], signal.SIGKILL)
        assert process.wait(60) == 2
    assert not Path(f"/proc/{workers[1]}").exists()
