"""What a client is told when it does not get what it asked for."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

logger = logging.getLogger(__name__)


class Refused(Exception):
    """An answer of ``{"error": message}``, with a status of HTTP."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        # It may quote a client's text with half a surrogate pair in it, which no answer can hold.
        self.status, self.message = status, message.encode("utf-8", "backslashreplace").decode()


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse({"error": error.message}, error.status, headers)


async def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def broken(request: Request, error: Exception) -> Response:
    """A fault of ours; uvicorn logs its traceback."""
    return JSONResponse({"error": "internal error"}, 500)


HANDLERS = {
    Refused: refused,
    HTTPException: http_error,
    ClientGone: client_gone,
    Exception: broken,
}
