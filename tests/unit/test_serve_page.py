"""The service's page, its traces, and the line of the log for each request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.serving import SENTENCES, live, tiny
from tests.unit.test_serve import PAIR, until


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with live(tiny()) as client:
        yield client


@pytest.mark.parametrize("decoding", ["beam", "iad", "stock"])
def test_a_trace_is_of_what_was_decoded(decoding: str) -> None:
    translator = tiny(decoding, **({} if decoding == "beam" else {"beam": 1}))
    (expected,) = translator.translate(SENTENCES[:1])
    with live(translator) as client:
        found = client.post("/trace", json={"sentences": SENTENCES[0]}).json()
    assert found["text"] == expected and found["tokens"] >= len(expected.split()) + 1
    assert bool(found["tree"]) == (decoding == "beam")
    assert bool(found["trace"]) == (decoding != "stock")
    if decoding != "stock":
        assert found["trace"].count("<li data-call") == found["calls"]
        assert f'<span class="output">{expected}</span>' in found["trace"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"sentences": SENTENCES[:2]}, "2 sentences: a trace is of one"),
        ({"sentences": "w1", "beam": 2}, "there is no option 'beam'"),
        ({"sentences": "w1", "target_lang": "de"}, "target_lang='de': this model has 'tgt' only"),
    ],
)
def test_a_trace_is_of_one_sentence(client: httpx.Client, body: dict[str, Any], error: str) -> None:
    answer = client.post("/trace", json=body)
    assert answer.status_code == 400 and error in answer.json()["error"]


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
