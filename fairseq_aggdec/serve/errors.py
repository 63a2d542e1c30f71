"""What a client is told when it does not get what it asked for."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


class Refused(HTTPException):
    """An answer of ``{"error": message}``, with a status of HTTP."""

    def __init__(self, status: int, message: str):
        # It may quote a client's text with half a surrogate pair in it, which no answer can hold.
        message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(status, message, {"Retry-After": "1"} if status == 429 else None)


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
