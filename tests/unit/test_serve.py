"""The HTTP service: answers are the translator's, refusals a sentence, and nobody waits for a client that left."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from fairseq_aggdec import Translator
from tests.serving import SENTENCES, Gate, live, tiny

PAIR = {"source": "src", "target": "tgt"}


@pytest.fixture(scope="module")
def translator() -> Translator:
    return tiny()


@pytest.fixture(scope="module")
def gate(translator: Translator) -> Gate:
    return Gate(translator)


@pytest.fixture(scope="module")
def client(translator: Translator, gate: Gate) -> Iterator[httpx.Client]:
    with live(translator, max_batch=4, max_wait_ms=1.0, max_queue=6, max_bytes=20000) as client:
        yield client


def until(ready: Any) -> None:
    for _ in range(2000):
        if ready():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about")


# -- LibreTranslate's interface


@pytest.mark.parametrize("kind", ["json", "form", "multipart"])
def test_translate(client: httpx.Client, translator: Translator, kind: str) -> None:
    body = {"q": SENTENCES[0], **PAIR}
    if kind == "json":
        answer = client.post("/translate", json=body)
    elif kind == "form":
        answer = client.post("/translate", data=body)
    else:
        answer = client.post(
            "/translate", files={name: (None, text) for name, text in body.items()}
        )
    assert answer.status_code == 200
    assert answer.json() == {"translatedText": translator.translate(SENTENCES[:1])[0]}


def test_a_form_may_hold_characters_as_they_are(client: httpx.Client) -> None:
    """As ``curl -d`` sends them; Starlette's own reading takes UTF-8 for Latin-1."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    body = "q=w1&source=src&target=Ж"
    for content in (body.encode(), b"q=w1&source=src&target=%D0%96"):
        answer = client.post("/translate", content=content, headers=headers)
        assert answer.json() == {"error": "Ж is not supported"}
    for content in (b"q=%ff", b"q=\xff", b"&".join([b"a=b"] * 1001)):
        answer = client.post("/translate", content=content, headers=headers)
        assert answer.status_code == 400 and "the form is not in UTF-8" in answer.text


def test_lists_lines_and_alternatives(client: httpx.Client, translator: Translator) -> None:
    ranked = translator.generate(SENTENCES[:3], beam=7, nbest=7)
    a, b, c = ([one.text for one in own] for own in ranked)
    body = {"q": [SENTENCES[0], f"{SENTENCES[1]}\n\n{SENTENCES[2]}"], "alternatives": 6, **PAIR}
    answer = client.post("/translate", json=body | {"source": "auto", "format": "text"}).json()
    assert answer["translatedText"] == [a[0], f"{b[0]}\n\n{c[0]}"]
    assert answer["alternatives"][0] == a[1:]
    assert answer["alternatives"][1] == [f"{x}\n\n{y}" for x, y in zip(b, c, strict=True)][1:]
    assert [one["language"] for one in answer["detectedLanguage"]] == ["src", "src"]


def test_languages(client: httpx.Client) -> None:
    assert client.get("/languages").json() == [
        {"code": "src", "name": "src", "targets": ["tgt"]},
        {"code": "tgt", "name": "tgt", "targets": []},
    ]


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({**PAIR}, 400, "Invalid request: missing q parameter"),
        ({"q": "w1", "target": "tgt"}, 400, "Invalid request: missing source parameter"),
        ({"q": "w1", "source": "src"}, 400, "Invalid request: missing target parameter"),
        ({"q": "w1", "source": "de", "target": "tgt"}, 400, "de is not supported"),
        ({"q": "w1", "source": "src", "target": ["tgt"]}, 400, "['tgt'] is not supported"),
        ({"q": [1], **PAIR}, 400, "Invalid request: q must be a string or a list of strings"),
        ({"q": "w1", "format": "html", **PAIR}, 400, "html format is not supported"),
        (
            {"q": "w1", "alternatives": -1, **PAIR},
            400,
            "Invalid request: alternatives must be a number from 0 to 100",
        ),
        ({"q": "w1", "alternatives": 60, **PAIR}, 400, "too wide for a dictionary of 40 types"),
        ({"q": "w1 " * 90, **PAIR}, 400, "sentence 0 has 91 tokens with </s>"),
        ({"q": "\ud800", **PAIR}, 400, "sentence 0 is no Unicode text"),
        ({"q": "w1", "alternatives": 20, **PAIR}, 400, "too wide for a dictionary of 40 types"),
        ({"q": "w1", "alternatives": float("inf"), **PAIR}, 400, "must be a number from 0 to 100"),
        ({"q": "w1", "source": "\ud800", "target": "tgt"}, 400, "\\ud800 is not supported"),
        ({"q": "w1", "format": "\ud800", **PAIR}, 400, "\\ud800 format is not supported"),
        ({"q": ["w1"] * 7, **PAIR}, 413, "a request may have at most 6 sentences"),
        ({"q": "x" * 20001, **PAIR}, 413, "a request may have at most 20000 bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refusals_of_translate(
    client: httpx.Client, body: dict[str, Any], status: int, error: str
) -> None:
    answer = client.post("/translate", content=json.dumps(body))
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert error in answer.json()["error"]


# -- /generate


def test_generate_offers_what_a_translator_does(
    client: httpx.Client, translator: Translator
) -> None:
    calls: list[dict[str, Any]] = [
        {},
        {"beam": 3, "nbest": 2, "attention": True},
        {"beam": 1, "max_len_b": 4},
        {"min_len": 9, "max_len_b": 12, "source_lang": "src"},
        {"prefix": "w3 w4"},
        {"drafts": [SENTENCES[1], "", SENTENCES[0]]},
    ]
    for options in calls:
        found = client.post("/generate", json={"sentences": SENTENCES[:3], **options}).json()
        for ranked, theirs in zip(
            found["hypotheses"], translator.generate(SENTENCES[:3], **options), strict=True
        ):
            for one, other in zip(ranked, theirs, strict=True):
                assert (one["text"], tuple(one["tokens"])) == (other.text, other.tokens)
                assert one["score"] == pytest.approx(other.score, abs=1e-4)
                assert ("attention" in one) == bool(options.get("attention"))


def test_scores(client: httpx.Client, translator: Translator) -> None:
    body = {"sentences": SENTENCES[:5], "targets": SENTENCES[1:6]}  # a batch has four
    found = client.post("/generate", json=body).json()["hypotheses"]
    expected = translator.score(SENTENCES[:5], SENTENCES[1:6])
    assert [ranked[0]["score"] for ranked in found] == pytest.approx(
        [one.score for one in expected]
    )
    assert (
        "5 sentences and 1 targets"
        in client.post("/generate", json=body | {"targets": ["w1"]}).text
    )


def test_json_that_is_called_a_form(client: httpx.Client, translator: Translator) -> None:
    """As ``curl -d`` does."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    body = json.dumps({"sentences": SENTENCES[0]})
    found = client.post("/generate", content=f" {body}", headers=headers).json()["hypotheses"]
    assert found[0][0]["text"] == translator.translate(SENTENCES[:1])[0]


@pytest.mark.parametrize("ask", ["header", "field"])
def test_events(client: httpx.Client, translator: Translator, ask: str) -> None:
    body: dict[str, Any] = {"sentences": SENTENCES[:3]} | (
        {"stream": True} if ask == "field" else {}
    )
    headers = {"Accept": "text/event-stream"} if ask == "header" else {}
    with client.stream("POST", "/generate", json=body, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [one.split("\n") for one in "".join(answer.iter_text()).strip().split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in events]
    told = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert names == ["tokens"] * (len(names) - 1) + ["done"]
    best = [ranked[0] for ranked in told.pop()["hypotheses"]]
    assert [one["text"] for one in best] == translator.translate(SENTENCES[:3])
    for number, one in enumerate(best):
        own = [event for event in told if event["sentence"] == number]
        assert [token for event in own for token in event["tokens"]] == one["tokens"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"sentences": 7}, "sentences: give a string or a list of strings"),
        ({"sentences": ["w1"], "bem": 2}, "there is no option 'bem'"),
        ({"sentences": ["w1"], "beam": "2"}, "beam='2': it must be a whole number"),
        ({"sentences": ["w1"], "nbest": 9}, "nbest=9: it must be 1 to beam, which is 5"),
        ({"sentences": ["w1"], "drafts": ["w1", "w2"]}, "drafts: 2 of them for 1 sentences"),
        ({"sentences": ["w1"], "prefix": "\ud800"}, "prefix: there is half a surrogate pair"),
        ({"sentences": ["w1"], "max_len_b": 0}, "min_len=1: it must be at most max_len_b"),
        (
            {"sentences": ["w1"], "min_len": 99, "max_len_b": 99},
            "min_len=99: the model writes at most 63 tokens",
        ),
        ({"sentences": ["w1"], "beam": "2" * 9999}, "it must be a whole number"),
        ({"sentences": ["w1"], "target_lang": "d" * 9999}, "..."),
        ({"sentences": ["w1"], "stream": "false"}, "stream: give true or false"),
        ({"sentences": ["w1"], "attention": "no"}, "attention='no': it must be True or False"),
        ({"sentences": "w1", "targets": "w1", "attention": 5}, "attention: give true or false"),
        ({"sentences": ["w1"] * 7, "targets": ["w1"] * 7}, "at most 6 sentences"),
        ({"sentences": "w1", "targets": "w1", "beam": 3}, "beam does not go with targets"),
        ({"sentences": "w1", "targets": "w1", "target_lang": "de"}, "target_lang='de': this model"),
        ({"sentences": ["w1"], "target_lang": "de"}, "target_lang='de': this model has 'tgt'"),
        ([], "the body of the request is not a JSON object"),
    ],
    ids=str,
)
def test_refusals_of_generate(client: httpx.Client, body: Any, error: str) -> None:
    answer = client.post("/generate", content=json.dumps(body))
    assert answer.status_code in (400, 413) and error in answer.json()["error"]
    assert len(answer.json()["error"]) < 1000


@pytest.mark.parametrize("decoding", ["beam", "iad"])
def test_a_length_that_only_some_sentences_allow(decoding: str) -> None:
    with live(tiny(decoding, beam=1, max_len_a=1.0, max_len_b=0)) as client:
        right, wrong = (
            client.post("/generate", json={"sentences": text, "min_len": 3})
            for text in ("w1 w2 w3", "w1")
        )
    assert right.status_code == 200
    assert wrong.status_code == 400 and wrong.json()["error"].startswith("--min-len 3 is larger")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", "/translate", 405), ("POST", "/generate", 400)],
)
def test_errors_are_json(client: httpx.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status and list(answer.json()) == ["error"]


# -- batches, queues, clients that leave


def test_waiting_sentences_are_decoded_together(client: httpx.Client, gate: Gate) -> None:
    expected = gate.generate(SENTENCES[:6])
    with ThreadPoolExecutor(6) as pool, gate.closed():

        def ask(place: int) -> str:
            body = {"sentences": SENTENCES[place]} | ({"beam": 2} if place == 5 else {})
            return client.post("/generate", json=body).json()["hypotheses"][0][0]["text"]

        first = pool.submit(ask, 0)
        assert gate.inside.wait(60)
        rest = []
        for place in range(1, 6):
            rest.append(pool.submit(ask, place))
            until(lambda place=place: client.get("/health").json()["waiting"] == place)
        gate.open.set()
        found = [one.result() for one in [first, *rest]]
    assert gate.seen == [SENTENCES[:1], SENTENCES[1:5], SENTENCES[5:6]]  # another beam: alone
    assert found[:5] == [ranked[0].text for ranked in expected[:5]]


def test_a_wide_beam_has_few_sentences_in_a_batch() -> None:
    """One request must not take the memory of all: a batch has the hypotheses of a usual one."""
    translator = tiny(beam=2)
    gate = Gate(translator)
    with live(translator, max_batch=4, max_wait_ms=50.0) as client:
        for beam, sizes in ((2, [4, 1]), (4, [2, 2, 1]), (8, [1] * 5)):
            gate.seen.clear()
            body = {"sentences": SENTENCES[:5], "beam": beam}
            assert client.post("/generate", json=body).status_code == 200
            assert list(map(len, gate.seen)) == sizes
        answer = client.post("/generate", json={"sentences": ["w1"], "beam": 9})
        assert answer.status_code == 400
        assert answer.json() == {"error": "beam=9: this service has a beam of at most 8"}


def test_prefixes_of_their_own_share_batches(client: httpx.Client, gate: Gate) -> None:
    prefixes = ["w3", "", "w4 w5", "w6"]
    expected = gate.generate(SENTENCES[:4], prefix=prefixes)
    gate.seen.clear()
    answer = client.post("/generate", json={"sentences": SENTENCES[:4], "prefix": prefixes})
    found = [ranked[0]["text"] for ranked in answer.json()["hypotheses"]]
    assert found == [ranked[0].text for ranked in expected] and gate.seen == [SENTENCES[:4]]


def test_a_full_queue_says_so(client: httpx.Client, gate: Gate) -> None:
    with ThreadPoolExecutor(2) as pool, gate.closed():
        ask = {"q": SENTENCES[:1], **PAIR}
        first = pool.submit(client.post, "/translate", json=ask)
        assert gate.inside.wait(60)
        second = pool.submit(client.post, "/translate", json=ask | {"q": SENTENCES[:6]})
        until(lambda: client.get("/health").json()["waiting"] == 6)
        refused = client.post("/translate", json=ask)
        assert refused.status_code == 429 and "waiting" in refused.json()["error"]
        assert refused.headers["retry-after"] == "1"
        gate.open.set()
        assert first.result().status_code == second.result().status_code == 200
    assert 'status="429"' in client.get("/metrics").text


@pytest.mark.parametrize("stream", [False, True])
def test_the_work_of_a_client_that_leaves_is_dropped(
    client: httpx.Client, gate: Gate, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor(2) as pool, gate.closed():
        first = pool.submit(client.post, "/generate", json={"sentences": SENTENCES[0]})
        assert gate.inside.wait(60)
        leaving = httpx.Client(base_url=client.base_url, timeout=0.3, trust_env=False)
        with leaving, pytest.raises(httpx.TimeoutException):
            body = {"sentences": SENTENCES[1:4], "stream": stream}
            with leaving.stream("POST", "/generate", json=body) as answer:
                answer.read()
        last = pool.submit(client.post, "/generate", json={"sentences": SENTENCES[4]})
        until(lambda: client.get("/health").json()["waiting"] == 1)
        gate.open.set()
        assert first.result().status_code == last.result().status_code == 200
    assert gate.seen == [SENTENCES[:1], SENTENCES[4:5]]
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_an_answer_that_takes_too_long(translator: Translator, gate: Gate) -> None:
    with live(translator, timeout=0.2) as client, gate.closed():
        answer = client.post("/generate", json={"sentences": SENTENCES[0]})
        assert answer.status_code == 504 and answer.json() == {"error": "no answer within 0.2 s"}
        with client.stream(
            "POST", "/generate", json={"sentences": SENTENCES[1], "stream": True}
        ) as events:
            assert events.read() == b'event: error\ndata: {"error": "no answer within 0.2 s"}\n\n'


def test_a_sentence_is_tokenised_once(
    client: httpx.Client, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its size is looked at: what is decoded or scored are these tokens."""
    right, read = translator.tokens, list[str]()

    def noted(text: str, *languages: Any) -> Any:
        read.append(text)
        return right(text, *languages)

    monkeypatch.setattr(translator, "tokens", noted)
    for more in ({}, {"targets": SENTENCES[3:6]}):
        body = {"sentences": SENTENCES[:3], **more}
        assert client.post("/generate", json=body).status_code == 200
    assert read == [*SENTENCES[:3], *SENTENCES[:6]]


def test_a_fault_is_no_one_elses(
    client: httpx.Client, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = gate.generate

    def faulty(sentences: list[str], *args: Any, **options: Any) -> Any:
        if SENTENCES[2] in sentences:
            raise RuntimeError("the file /secret/model.pt is broken")
        return right(sentences, *args, **options)

    monkeypatch.setattr(gate, "generate", faulty)
    with ThreadPoolExecutor(4) as pool, gate.closed():
        first = pool.submit(client.post, "/generate", json={"sentences": SENTENCES[0]})
        assert gate.inside.wait(60)
        rest = [
            pool.submit(client.post, "/generate", json={"sentences": SENTENCES[place]})
            for place in (1, 2, 3)
        ]
        until(lambda: client.get("/health").json()["waiting"] == 3)
        gate.open.set()
        answers = [one.result() for one in [first, *rest]]
    assert [answer.status_code for answer in answers] == [200, 200, 500, 200]
    assert answers[2].json() == {"error": "the sentence was not decoded"}


def test_keys(translator: Translator) -> None:
    with live(translator, keys=["one", "zwei", "drüben"]) as client:
        ask = {"q": SENTENCES[0], **PAIR}
        answer = client.post("/translate", json=ask)
        assert answer.status_code == 403
        assert answer.json() == {"error": "Please provide an API key"}
        answer = client.post("/translate", json=ask | {"api_key": "drei"})
        assert answer.json() == {"error": "Invalid API key"}
        assert client.post("/translate", json=ask | {"api_key": "zwei"}).status_code == 200
        assert client.post("/translate", json=ask | {"api_key": "drüben"}).status_code == 200
        half = json.dumps(ask | {"api_key": "\ud800"})
        assert client.post("/translate", content=half).json() == {"error": "Invalid API key"}
        other = {"Authorization": "Bearer drüben".encode()}
        assert client.post("/translate", json=ask, headers=other).status_code == 200  # type: ignore[arg-type]
        headers = {"Authorization": "Bearer one"}
        body = {"sentences": SENTENCES[0]}
        assert client.post("/generate", json=body, headers=headers).status_code == 200
        assert client.post("/generate", json=body).status_code == 403
        assert client.get("/languages").status_code == client.get("/health").status_code == 200
        assert 'type="password"' in client.get("/").text
