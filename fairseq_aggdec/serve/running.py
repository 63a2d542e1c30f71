"""The service on a port, until a signal ends it."""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from http import HTTPStatus

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairseq_aggdec.serve.app import Service

# Connections beside those of sentences that may wait: of probes, of pages that are open.
BESIDE = 64
# Seconds that one connection too many may take to ask, and any that was refused to read why.
SURPLUS_SECONDS = 1.0
# Seconds that the rest of a body may take to come after the answer, which did not need it.
LINGER_SECONDS = 2.0
# A request may take the seconds of a phase three times: for its body, for its answer, for reading the answer.
PHASES = 3


class Connection(H11Protocol):
    """HTTP on one connection: what uvicorn does, with a limit to connections and to the time of every phase.

    What uvicorn refuses in plain text is refused in JSON.

    Attributes:
        most: connections at a time; those that are refused hold no place.
        seconds: until the headers of a request are there, and until what was written is read.
    """

    most: int
    seconds: float
    _surplus = False
    _due: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _begun: object = None  # the request that was last seen

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # whatever is not read yet pauses writing
        admitted = sum(not one._surplus for one in self.connections if isinstance(one, Connection))
        self._surplus = admitted > self.most
        self._wait(SURPLUS_SECONDS if self._surplus else self.seconds, self._late)

    def data_received(self, data: bytes) -> None:
        if self._surplus:
            self._refuse(503, "too many connections: try again later")
            return
        super().data_received(data)
        self._enter_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._wait(LINGER_SECONDS, self.transport.abort)
        else:
            self._wait(None)  # uvicorn closes it if no other request comes
            self._enter_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        self.resume_writing()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "the request is no valid HTTP")

    def _enter_phase(self) -> None:
        """Sets the limit of the phase that data, or the end of an answer, has led to."""
        if self.cycle is not self._begun:
            self._begun = self.cycle
            self._wait(PHASES * self.seconds, self.transport.abort)
        elif self._due is None and self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._wait(self.seconds, self._late)  # the next request has begun

    def _wait(self, seconds: float | None, late: Callable[[], None] | None = None) -> None:
        """Calls ``late`` unless the connection is in another phase by then; None: for nothing."""
        if self._due is not None:
            self._due.cancel()
        self._due = None
        if seconds is not None and late is not None:
            self._due = self.loop.call_later(seconds, late)

    def _late(self) -> None:
        self._refuse(408, "the headers of the request did not come in time")

    def _refuse(self, status: int, message: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer has begun
            body = json.dumps({"error": message}).encode()
            size = ("Content-Length", str(len(body)))
            headers = [("Content-Type", "application/json"), size, ("Connection", "close")]
            if status == 503:
                headers.append(("Retry-After", "1"))
            reason = HTTPStatus(status).phrase
            for event in (
                h11.Response(status_code=status, headers=headers, reason=reason),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._wait(SURPLUS_SECONDS, self.transport.abort)


def config(service: Service) -> uvicorn.Config:
    """Tells how uvicorn runs a service."""
    settings = service.settings
    limits = {"most": settings.max_queue + BESIDE, "seconds": settings.timeout}
    return uvicorn.Config(
        service.app,
        http=type("Connection", (Connection,), limits),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        # A part of a second goes by without need of it; uvicorn takes any number.
        timeout_graceful_shutdown=settings.timeout - min(0.5, settings.timeout / 4),  # type: ignore[arg-type]
    )


class Server(uvicorn.Server):
    """Ends within the timeout of the service: what has no answer a second before is refused."""

    def __init__(self, service: Service):
        super().__init__(config(service))
        self.service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timeout = self.service.settings.timeout
        late = timeout - min(1.0, timeout / 2)
        refusing = asyncio.get_running_loop().call_later(late, self.service.batcher.end)
        await super().shutdown(sockets)
        refusing.cancel()


def bound(host: str, port: int) -> socket.socket:
    """A socket that has its address and does not listen yet.

    Raises:
        SystemExit: there is no such address, or another program has the port.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if ":" in host:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SystemExit(f"error: --host {host} --port {port}: {error.strerror}") from None
    return listener


def announce(address: socket.socket, host: str) -> None:
    spelt = f"[{host}]" if ":" in host else host
    print(f"serving at http://{spelt}:{address.getsockname()[1]}/", flush=True)


def run(service: Service, address: socket.socket, ready: Callable[[], object]) -> None:
    """Listens until SIGTERM or Ctrl-C; then takes no more requests, answers those it has, and returns.

    Args:
        ready: called when clients can connect.
    """
    with address:
        address.listen(2048)
        ready()
        Server(service).run(sockets=[address])
