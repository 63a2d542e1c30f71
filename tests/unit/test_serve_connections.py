"""Connections of the HTTP service: their number and the time of their headers are limited, every refusal is JSON."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fairseq_aggdec import Translator
from fairseq_aggdec.serve import running
from tests.serving import live, tiny
from tests.unit.test_serve import until

LATE = "the headers of the request did not come in time"


@pytest.fixture(scope="module")
def translator() -> Translator:
    return tiny()


@pytest.fixture(scope="module")
def client(translator: Translator) -> Iterator[httpx.Client]:
    with live(translator) as client:
        yield client


def asked_raw(client: httpx.Client, *parts: bytes) -> tuple[bytes, dict[str, str]]:
    """What a connection gets for bytes: the first line and the JSON of the last answer."""
    address = client.base_url.host, client.base_url.port or 0
    found = b""
    with socket.create_connection(address, timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
            found += connection.recv(4096)
        while more := connection.recv(4096):
            found += more
    head, _, body = found[found.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], json.loads(body)


def test_headers_that_do_not_come(translator: Translator) -> None:
    """Neither those of the first request of a connection, nor those of the next one."""
    whole, late = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n", {"error": LATE}
    with live(translator, timeout=0.2) as client:
        for parts in ([b"GET /health HTT"], [whole, whole[:20]]):
            assert asked_raw(client, *parts) == (b"HTTP/1.1 408 Request Timeout", late)
        assert client.get("/health").status_code == 200


def test_a_client_that_leaves_before_its_body_is_sent(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    address = client.base_url.host, client.base_url.port or 0
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n{")
    until(lambda: 'path="/generate",status=' in client.get("/metrics").text)
    assert 'path="/generate",status="499"' in client.get("/metrics").text
    assert "ClientDisconnect" not in caplog.text


def test_a_body_that_does_not_come(translator: Translator) -> None:
    with live(translator, timeout=0.2) as client:
        address = client.base_url.host, client.base_url.port or 0
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(
                b"POST /generate HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n"
            )
            assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (b"GET /health", b""),  # a body that no answer needs, of which nothing comes
        (b"GET /health", b"drop"),  # or drop by drop
        (b"POST /generate", b"drop"),  # refused: its body did not come in time
    ],
)
def test_a_body_that_goes_on_behind_the_answer(
    translator: Translator, path: bytes, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LINGER_SECONDS", 0.2)
    with live(translator, timeout=0.5) as client, dial(client) as connection:
        connection.sendall(path + b" HTTP/1.1\r\nHost: here\r\nContent-Length: 9000000000\r\n\r\n")
        connection.settimeout(0.05)
        assert closed_in_the_end(connection, sent)


@pytest.mark.parametrize("body", [b"", b"stream"])
def test_an_answer_that_nobody_reads(
    translator: Translator, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client gives the only place of the service back."""
    monkeypatch.setattr(running, "BESIDE", 0)
    routes = [Route("/large", large, methods=["POST"])]
    with live(translator, routes, max_queue=1, timeout=0.5) as client, dial(client) as connection:
        head = b"POST /large HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        until(lambda: other_status(client) == 503)
        until(lambda: other_status(client) == 200)


async def large(request: Request) -> Response:
    """50 MB at once, or of a stream."""

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * 1_000_000

    if await request.body() == b"stream":
        return StreamingResponse(parts())
    return Response(b"x" * 50_000_000)


def test_refused_connections_hold_no_place(translator: Translator) -> None:
    """However many ask at once: as soon as an admitted client leaves, another is admitted."""
    with live(translator, max_queue=4) as client, ExitStack() as refused:
        admitted = [dial(client) for _ in range(4 + running.BESIDE)]
        until(lambda: other_status(client) == 503)
        for _ in range(20):
            refused.enter_context(dial(client))
        assert other_status(client) == 503  # the service has seen them all
        admitted.pop().close()
        until(lambda: other_status(client) == 200)
        for one in admitted:
            one.close()


def dial(client: httpx.Client) -> socket.socket:
    """A connection to the service."""
    address = client.base_url.host, client.base_url.port or 0
    return socket.create_connection(address, timeout=60)


def closed_in_the_end(connection: socket.socket, sent: bytes) -> bool:
    """Whether the service closes the connection although something is sent all the time."""
    for _ in range(1000):
        try:
            if sent:
                connection.sendall(sent)
            if connection.recv(65536) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_what_is_no_http_is_refused_in_json(client: httpx.Client) -> None:
    refused = {"error": "the request is no valid HTTP"}
    for part in (b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"):
        assert asked_raw(client, part) == (b"HTTP/1.1 400 Bad Request", refused)
    chunk = b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n"
    assert asked_raw(client, chunk) == (b"HTTP/1.1 400 Bad Request", refused)


def test_too_many_connections(translator: Translator) -> None:
    with live(translator, max_queue=4) as client, ExitStack() as idle:
        address = client.base_url.host, client.base_url.port or 0
        for _ in range(4 + running.BESIDE - 1):
            idle.enter_context(socket.create_connection(address, timeout=60))
        assert client.get("/health").status_code == 200  # the last one
        with httpx.Client(base_url=client.base_url, timeout=60, trust_env=False) as other:
            answer = other.get("/health")
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "1"
        assert answer.json() == {"error": "too many connections: try again later"}
        idle.close()
        until(lambda: other_status(client) == 200)


def other_status(client: httpx.Client) -> int:
    return httpx.get(f"{client.base_url}/health", timeout=60, trust_env=False).status_code
