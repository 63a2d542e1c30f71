"""The service's page, and the line of the log for each request."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.serving import SENTENCES, live, tiny
from tests.unit.test_serve import PAIR, until


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with live(tiny()) as client:
        yield client


def test_requests_are_logged_without_their_text(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fairseq_aggdec.serve")
    client.post("/translate", json={"q": SENTENCES[0], **PAIR})
    client.post("/generate%1b%5b31m", json={})
    client.get("/health")

    def told(line: str) -> bool:  # a request of another test may still be told meanwhile
        return any(re.fullmatch(line, message) for message in caplog.messages)

    until(lambda: told(r"POST /translate 200 in \d+\.\d{3} s"))
    until(lambda: told(r"POST other 404 in \d+\.\d{3} s"))
    said = " ".join(caplog.messages)
    assert SENTENCES[0] not in said and "\x1b" not in said and "health" not in said


def test_the_page_needs_nothing_else(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "http://" not in page.text and "https://" not in page.text and "<label" in page.text
