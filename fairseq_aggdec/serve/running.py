"""The service on a port, until a signal ends it."""

from __future__ import annotations

import asyncio
import json
import socket
from http import HTTPStatus

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairseq_aggdec.serve.app import Service

# Connections beside those of sentences that may wait: of probes, of pages that are open.
BESIDE = 64
# Seconds that one connection too many may take to ask; then it is told why it is closed.
SURPLUS_SECONDS = 1.0


class Connection(H11Protocol):
    """HTTP on one connection: what uvicorn does, with a limit to connections and to the time of a request's headers.

    What uvicorn refuses in plain text is refused in JSON.

    Attributes:
        most: connections at a time. seconds: until the headers of a request are there.
    """

    most: int
    seconds: float
    _surplus = False
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._surplus = len(self.connections) > self.most
        self._wait(SURPLUS_SECONDS if self._surplus else self.seconds)

    def data_received(self, data: bytes) -> None:
        if self._surplus:
            self._refuse(503, "too many connections: try again later")
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._wait(None)
        elif self._due is None:  # the beginning of the next request
            self._wait(self.seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "the request is no valid HTTP")

    def _wait(self, seconds: float | None) -> None:
        """For the headers of a request; None: they are there."""
        if self._due is not None:
            self._due.cancel()
        self._due = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._refuse(408, "the headers of the request did not come in time")

    def _refuse(self, status: int, message: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer has begun
            body = json.dumps({"error": message}).encode()
            size = ("Content-Length", str(len(body)))
            headers = [("Content-Type", "application/json"), size, ("Connection", "close")]
            reason = HTTPStatus(status).phrase
            for event in (
                h11.Response(status_code=status, headers=headers, reason=reason),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def config(service: Service) -> uvicorn.Config:
    """How uvicorn runs a service."""
    settings = service.settings
    limits = {"most": settings.max_queue + BESIDE, "seconds": settings.timeout}
    return uvicorn.Config(
        service.app,
        http=type("Connection", (Connection,), limits),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.timeout)),
    )


def run(service: Service, host: str, port: int) -> None:
    """Listens until SIGTERM or Ctrl-C; then takes no more requests, answers those it has, and returns."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SystemExit(f"error: --host {host} --port {port}: {error.strerror}") from None
    with listening:
        shown = f"[{host}]" if ":" in host else host
        print(f"serving at http://{shown}:{listening.getsockname()[1]}/", flush=True)
        uvicorn.Server(config(service)).run(sockets=[listening])
