"""What a request may cost, who is decoded first, and that nothing is decoded for clients that have left."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from fairseq_aggdec import Translator
from fairseq_aggdec.options.stopping import Stopped, check
from fairseq_aggdec.serve.limits import RequestLimits, ServiceSettings, Size, largest
from tests.serving import SENTENCES, Gate, live, tiny
from tests.unit.test_serve import until

OWN = tiny().loaded  # beam 5, max_len_b 200; 40 types


def limits(**settings: Any) -> RequestLimits:
    own = dataclasses.replace(OWN, max_len_a=0.0, max_len_b=200, most=1000)
    return RequestLimits(own, 100, ServiceSettings(**settings))


@pytest.mark.parametrize(
    ("settings", "beam", "length", "work"),
    [
        ({}, 32, 200, 1024 * 5 * 201),
        ({"max_batch": 2}, 10, 200, 1024 * 5 * 201),
        ({"max_beam": 160, "max_len": 5000, "max_work": 70000}, 160, 1000, 70000),
    ],
)
def test_limits_come_from_the_options(
    settings: dict[str, int], beam: int, length: int, work: int
) -> None:
    found = limits(**settings)
    assert (found.beam, found.length, found.work) == (beam, length, work)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max_beam": 4}, "--max-beam 4: it must be from --beam, which is 5"),
        ({"max_beam": 161}, "to --max-batch x --beam, which is 160"),
        ({"max_len": 199}, "--max-len 199: with the service's own options"),
        ({"max_work": 1004}, "--max-work 1004: with the service's own options one sentence"),
    ],
)
def test_limits_below_the_own_options(settings: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        limits(**settings)


def test_a_batch_is_no_more_than_a_full_one() -> None:
    found = limits(max_batch=8)
    usual, wide = found.size({}, 20), found.size({"beam": 20}, 20)
    long, seen = found.size({}, 400), found.size({"attention": True}, 20)
    endless = found.size({"min_len": 90}, 20)
    most = {
        name: max(count for count in range(1, 20) if found.fits(count, size))
        for name, size in (
            ("usual", usual),
            ("wide", wide),
            ("long", long),
            ("seen", seen),
            ("endless", endless),
        )
    }
    # 40 hypotheses; 800 tokens of sources, with attention of outputs; 1,000 tokens that must be written.
    assert most == {"usual": 8, "wide": 2, "long": 2, "seen": 3, "endless": 2}
    assert largest([usual, wide, long]) == Size(20, 400, 201, 0, 2)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return tiny(max_len_b=20)


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"beam": 17}, 400, "beam=17: this service has a beam of at most 16"),
        ({"min_len": 30, "max_len_b": 30}, 400, "max_len_b=30: this service has a max_len_b of at"),
        ({"beam": 16, "sentences": ["w1"] * 8}, 413, "may take 2688 tokens (sentences x beam x"),
        ({"attention": True, "sentences": ["w1 w2"] * 4}, 413, "may have 1260 numbers"),
        ({"attention": True, "targets": "w1 " * 40, "sentences": "w1 " * 30}, 413, "have 1271"),
        ({"targets": ["w1 " * 60] * 40, "sentences": ["w1"] * 40}, 413, "may take 2440 tokens"),
        ({"sentences": ["w"] * 41}, 413, "at most 40 sentences"),
    ],
)
def test_a_request_that_costs_too_much(
    translator: Translator, body: dict[str, Any], status: int, error: str
) -> None:
    settings = {"max_batch": 4, "max_beam": 16, "max_work": 2000, "max_attention": 1200}
    with live(translator, max_queue=40, **settings) as client:
        answer = client.post("/generate", json={"sentences": ["w1"]} | body)
        assert (answer.status_code, error in answer.json()["error"]) == (status, True), answer.text
        assert client.post("/generate", json={"sentences": ["w1"]}).status_code == 200


@pytest.mark.parametrize("path", ["/translate", "/generate"])
def test_sentences_are_counted_before_they_are_read(
    translator: Translator, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(translator, "encode", lambda text, *_: read.append(text))
    text = {"q": "a\n" * 250_000, "source": "src", "target": "tgt"}
    body = text if path == "/translate" else {"sentences": ["a"] * 250_000}
    with live(translator, max_bytes=1 << 22) as client:
        assert client.post(path, json=body).status_code == 413
    assert not read


class Endless:
    """In place of a translator's ``generate``: decodes until it is stopped, but for sentences without ``w9``."""

    def __init__(self, translator: Translator, monkeypatch: pytest.MonkeyPatch):
        self.generate, self.seen = translator.generate, list[list[str]]()
        self.begun, self.stopped = threading.Event(), threading.Event()
        monkeypatch.setattr(translator, "generate", self)

    def __call__(self, sentences: list[str], *args: Any, **options: Any) -> Any:
        self.seen.append(sentences)
        if "w9" not in sentences:
            return self.generate(sentences, *args, **options)
        self.begun.set()
        try:
            while True:
                check()
        except Stopped:
            self.stopped.set()
            raise


@pytest.mark.parametrize("why", ["left", "late", "stream"])
def test_what_nobody_waits_for_is_not_decoded_on(
    translator: Translator, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Endless(translator, monkeypatch)
    with live(translator, timeout=0.5 if why == "late" else 60.0) as client:
        asked = {"sentences": "w9", "stream": why == "stream"}
        if why == "late":
            assert client.post("/generate", json=asked).status_code == 504
        else:
            leaving = httpx.Client(base_url=client.base_url, timeout=0.5, trust_env=False)
            with leaving, pytest.raises(httpx.TimeoutException):
                read(leaving, asked)
        assert endless.stopped.wait(60)
        assert client.post("/generate", json={"sentences": "w1"}).status_code == 200


def read(client: httpx.Client, asked: dict[str, Any]) -> None:
    with client.stream("POST", "/generate", json=asked) as answer:
        answer.read()


def test_the_end_does_not_wait_for_an_endless_sentence(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits is told within the timeout; leaving ``live`` waits for the end of the service."""
    endless = Endless(translator, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        with live(translator, timeout=1.5) as client:
            asked = pool.submit(
                httpx.post,
                f"{client.base_url}/generate",
                json={"sentences": "w9"},
                timeout=60,
                trust_env=False,
            )
            assert endless.begun.wait(60)
        assert asked.result().status_code == 503
        assert asked.result().json() == {"error": "the service is ending: try again later"}
    assert endless.stopped.is_set()


def test_a_long_request_does_not_hold_up_the_others() -> None:
    """One that was decoded for a while lets those pass that came later."""
    translator = tiny(max_len_b=20)
    gate = Gate(translator)
    with live(translator, max_batch=2, max_wait_ms=0.0) as client, ThreadPoolExecutor(2) as pool:

        def ask(sentences: list[str]) -> httpx.Response:
            return client.post("/generate", json={"sentences": sentences})

        with gate.closed():
            long = pool.submit(ask, SENTENCES[:6])
            assert gate.inside.wait(60)
            short = pool.submit(ask, SENTENCES[6:7])
            until(waiting(client, 5))
            gate.open.set()
            assert short.result().status_code == long.result().status_code == 200
    assert gate.seen == [
        SENTENCES[:2],
        SENTENCES[6:7] + SENTENCES[2:3],
        SENTENCES[3:5],
        SENTENCES[5:6],
    ]


def waiting(client: httpx.Client, count: int) -> Callable[[], bool]:
    return lambda: client.get("/health").json()["waiting"] == count
