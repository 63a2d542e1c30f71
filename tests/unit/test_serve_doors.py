"""Ways in which programs and pages reach the service: compressed bodies, other origins, a prefix of all paths."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from fairseq_aggdec import Translator
from fairseq_aggdec.serve.language_names import names_of
from tests.serving import SENTENCES, live, tiny

PAIR = {"source": "src", "target": "tgt"}


@pytest.fixture(scope="module")
def translator() -> Translator:
    return tiny()


def test_a_compressed_body(translator: Translator) -> None:
    """gzip is read; what is damaged, unpacks to more than a request may have, or is of another kind is refused."""
    body = json.dumps({"q": SENTENCES[0], **PAIR}).encode()
    packed = {"Content-Encoding": "gzip", "Content-Type": "application/json"}

    def ask(content: bytes, **headers: str) -> tuple[int, Any]:
        answer = client.post("/translate", content=content, headers=packed | headers)
        return answer.status_code, answer.json()

    with live(translator, max_bytes=20000) as client:
        assert ask(gzip.compress(body)) == (
            200,
            {"translatedText": translator.translate(SENTENCES[:1])[0]},
        )
        damaged = {"error": "the body of the request is not valid gzip"}
        for content in (body, gzip.compress(body)[:-9], gzip.compress(body) + b"x"):
            assert ask(content) == (400, damaged)
        assert ask(gzip.compress(bytes(1 << 24)))[0] == 413
        assert ask(body, **{"Content-Encoding": "br"})[0] == 415


def test_pages_of_other_origins(translator: Translator) -> None:
    """Only origins that were named are told to browsers as allowed."""
    with live(translator, origins=["https://a.example"]) as client:
        for origin, allowed in (
            ("https://a.example", "https://a.example"),
            ("https://b.example", None),
        ):
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            asked["Access-Control-Request-Headers"] = "content-type"
            preflight = client.options("/translate", headers=asked)
            assert preflight.headers.get("access-control-allow-origin") == allowed
            answer = client.post("/translate", json={"q": "w1", **PAIR}, headers={"Origin": origin})
            assert answer.status_code == 200
            assert answer.headers.get("access-control-allow-origin") == allowed


def test_a_prefix_of_all_paths(translator: Translator) -> None:
    with live(translator, url_prefix="/mt") as client:
        found = client.post("/mt/translate", json={"q": SENTENCES[0], **PAIR})
        assert found.json() == {"translatedText": translator.translate(SENTENCES[:1])[0]}
        assert client.get("/mt", follow_redirects=True).url.path == "/mt/"
        assert client.get("/mt/health").json()["status"] == "ok"
        assert client.post("/translate", json={"q": "w1", **PAIR}).status_code == 404
        assert 'path="/translate",status="200"' in client.get("/mt/metrics").text


def test_names_of_languages() -> None:
    codes = ["de", "en_XX", "zho_Hans", "zho_Hant", "src", "xx"]
    assert list(names_of(codes).values()) == [
        *("German", "English", "Chinese (zho_Hans)", "Chinese (zho_Hant)", "src", "xx")
    ]
