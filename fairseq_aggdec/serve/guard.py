"""Guards that every request passes: bounded bodies, keys, metrics; and what a client is told when it is refused."""

import hmac
import logging
from collections.abc import Sequence
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PROBED = ("/health", "/metrics")  # too often for the log
LONGEST = 500  # characters of a refusal, which quotes what the client gave
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Refused(HTTPException):
    """An answer of ``{"error": message}``, with a status of HTTP."""

    def __init__(self, status: int, message: str):
        # It may quote a client's text with half a surrogate pair in it, which no answer can hold.
        message = message.encode("utf-8", "backslashreplace").decode()
        message = message if len(message) <= LONGEST else f"{message[:LONGEST]}..."
        super().__init__(status, message, {"Retry-After": "1"} if status in (429, 503) else None)


class ClientGone(HTTPException):
    """Nobody waits for the answer any more."""

    def __init__(self) -> None:
        super().__init__(499, "the client has gone")


async def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def broken(request: Request, error: Exception) -> Response:
    """A fault of ours; uvicorn logs its traceback."""
    return JSONResponse({"error": "internal error"}, 500)


HANDLERS = {HTTPException: http_error, Exception: broken}


class Metrics:
    """The numbers of ``/metrics``, of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "aggdec_requests", "Requests answered", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "aggdec_request_seconds",
            "Seconds from a request to its answer",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.waiting = Gauge("aggdec_waiting", "Sentences that wait", registry=self.registry)
        self.batches = Histogram(
            "aggdec_batch_sentences",
            "Sentences decoded together",
            buckets=SIZES,
            registry=self.registry,
        )
        self.tokens = Counter("aggdec_tokens", "Tokens written", registry=self.registry)

    def decoded(self, sentences: int, tokens: int) -> None:
        """Counts a batch."""
        self.batches.observe(sentences)
        self.tokens.inc(tokens)


class Guard:
    """Counts and logs requests, by name those for ``paths``, and refuses bodies that are too large.

    Args:
        paths: without ``prefix``, that of all paths of the service. max_bytes: of a body.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, paths: Sequence[str], max_bytes: int, prefix: str = ""
    ):
        self.app, self.metrics, self.paths, self.max_bytes = app, metrics, paths, max_bytes
        self.prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(self.prefix)
        path = path if path in self.paths else "other"
        start, read, status = perf_counter(), 0, 499

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.max_bytes:
                raise Refused(413, f"a request may have at most {self.max_bytes} bytes")
            return message

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, bounded, noting)
        finally:
            seconds = perf_counter() - start
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            if path not in PROBED:
                logger.info("%s %s %d in %.3f s", scope["method"][:20], path, status, seconds)


def check_key(keys: Sequence[str], request: Request, sent: object = None) -> None:
    """Raises ``Refused`` (403) without one of the service's keys: ``sent``, or a header with ``Bearer KEY``."""
    scheme, _, header = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        offered = header.strip().encode("latin-1")  # the bytes that were sent
    else:
        offered = sent.encode("utf-8", "surrogatepass") if isinstance(sent, str) else b""
    matches = [hmac.compare_digest(offered, key.encode()) for key in keys]  # in constant time
    if keys and True not in matches:
        raise Refused(403, "Invalid API key" if offered else "Please provide an API key")
