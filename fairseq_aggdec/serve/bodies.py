"""Bodies of requests: what they say, or a refusal."""

import json
import zlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from fairseq_aggdec.serve.guard import Refused

MAX_FIELDS = 1000  # of a form


async def fields(request: Request, most: int) -> dict[str, Any]:
    """The body of a request, JSON or a form; ``most``: bytes that it may have when it is unpacked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip") or (coding == "gzip" and kind == "multipart/form-data"):
        raise Refused(
            415, f"the body of the request is compressed ({coding}): send JSON, plain or with gzip"
        )
    if kind == "multipart/form-data":
        form = await request.form()
        return {name: value for name, value in form.items() if isinstance(value, str)}
    content = await request.body()
    if coding == "gzip":
        content = unpacked(content, most)
    # curl -d calls JSON a form as well, unless it is told otherwise.
    as_form = kind == "application/x-www-form-urlencoded" and not content.lstrip().startswith(b"{")
    try:
        if as_form:
            return urlencoded(content)
        body = json.loads(content)
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise Refused(400, "the body of the request is not valid JSON") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body of the request is not a JSON object")
    return body


def unpacked(body: bytes, most: int) -> bytes:
    """A body that was compressed with gzip; ``Refused`` (400, 413) if it is damaged or has over ``most`` bytes."""
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)  # 16: the format of gzip
    try:
        content = reader.decompress(body, most + 1)  # never more in memory
    except zlib.error:
        raise Refused(400, "the body of the request is not valid gzip") from None
    if len(content) > most:
        raise Refused(413, f"a request may have at most {most} bytes")
    if not reader.eof or reader.unused_data:
        raise Refused(400, "the body of the request is not valid gzip")
    return content


def urlencoded(body: bytes) -> dict[str, Any]:
    """The fields of a form in UTF-8, whose characters may also be there as they are, as ``curl -d`` sends them."""
    try:
        return dict(parse_qsl(body.decode(), True, errors="strict", max_num_fields=MAX_FIELDS))
    except ValueError:
        raise Refused(
            400, f"the form is not in UTF-8, or has more than {MAX_FIELDS} fields"
        ) from None


def flag(body: dict[str, Any], name: str) -> bool:
    """Tells whether a field is true; a word such as ``"false"`` is none of the two."""
    value = body.get(name)
    if value not in (None, True, False):
        raise Refused(400, f"{name}: give true or false")
    return bool(value)


def texts(body: dict[str, Any], name: str, sentences: Sequence[str] | None = None) -> Sequence[str]:
    """A string or a list of strings of a body; for ``sentences`` one string is for all, and nothing is ``""``."""
    value = body.get(name)
    if sentences is not None and (value is None or isinstance(value, str)):
        value = [value or ""] * len(sentences)
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value) or not value:
        raise Refused(400, f"{name}: give a string or a list of strings")
    try:
        "".join(value).encode()
    except UnicodeEncodeError:
        raise Refused(400, f"{name}: there is half a surrogate pair in it") from None
    if sentences is not None and len(value) != len(sentences):
        raise Refused(400, f"{name}: {len(value)} of them for {len(sentences)} sentences")
    return value
