"""The page of ``aggdec serve`` in a real browser: wide and narrow, light and dark, by keyboard, with the rules of axe.

Needs Chromium (Debian: ``apt-get install chromium``); left out where there is none.
"""

from __future__ import annotations

import queue
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from fairseq_aggdec import Translator
from fairseq_aggdec.serve import page
from tests.serving import SENTENCES, live, tiny

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next((found for found in map(shutil.which, NAMES) if found), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--window-size=1500,1200"),
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
LIGHT, DARK = 1, 0

# Types a sentence by events as a keyboard makes them, waits for the output, measures, and tells.
VISIT = """
<script>
const failures = [], wait = (ready) => new Promise((done) => {
  const look = () => (ready() ? done() : setTimeout(look, 20));
  look();
});
addEventListener("error", (event) => failures.push(event.message));
addEventListener("load", async () => {
  const sentence = document.getElementById("sentence"), output = document.getElementById("output");
  sentence.value = "SENTENCE\\n\\nSENTENCE";
  sentence.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", ctrlKey: true }));
  await wait(() => output.textContent && output.getAttribute("aria-busy") === "false");
  const wide = document.documentElement.clientWidth;
  const seen = (element) => element.getClientRects().length > 0;
  const cut = [...document.querySelectorAll("main *")].filter(seen)
    .filter((element) => element.getBoundingClientRect().right > wide + 0.5)
    .map((element) => element.outerHTML.slice(0, 80));
  const reached = [...document.querySelectorAll("button, input, textarea")].filter(seen).map((element) => {
    element.focus();
    return document.activeElement === element || element.disabled;
  });
  const found = await axe.run(document, { resultTypes: ["violations"] });
  const style = getComputedStyle(document.body);
  await fetch("/told", { method: "POST", body: JSON.stringify({
    wide, scroll: document.documentElement.scrollWidth, cut, failures, reached,
    violations: found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`),
    output: output.textContent,
    assets: performance.getEntriesByType("resource").map((one) => new URL(one.name).pathname),
    ink: style.color, paper: style.backgroundColor,
  }) });
});
</script>
"""
FRAME = "<!doctype html><title>frame</title><iframe src='/visit' style='border:0;width:WIDTHpx;height:1400px'></iframe>"


@pytest.fixture(scope="module", params=["beam", "iad"])
def translator(request: pytest.FixtureRequest) -> Translator:
    return tiny(request.param, **({} if request.param == "beam" else {"beam": 1}))


@pytest.fixture
def visit(translator: Translator, tmp_path: Path) -> Iterator[Any]:
    """Opens the page at a width and in a colour scheme; gives what it measured."""
    with visiting(translator, tmp_path, SENTENCES[0]) as open_page:
        yield open_page


@contextmanager
def visiting(translator: Translator, tmp_path: Path, sentence: str) -> Iterator[Any]:
    """As :func:`visit`, of a sentence."""
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    ours = page.whole(translator, keys=False)
    script = f"<script>{axe}</script>{VISIT.replace('SENTENCE', sentence)}"
    width, answers = {"now": 0}, queue.Queue[dict[str, Any]]()

    async def visited(request: Request) -> HTMLResponse:
        return HTMLResponse(ours.replace("</head>", f"{script}</head>", 1))

    async def framed(request: Request) -> HTMLResponse:
        return HTMLResponse(FRAME.replace("WIDTH", str(width["now"])))

    async def told(request: Request) -> Response:
        answers.put(await request.json())
        return Response()

    def open_page(wide: int, scheme: int) -> dict[str, Any]:
        width["now"] = wide
        assert CHROMIUM is not None
        flags = [*FLAGS, f"--blink-settings=preferredColorScheme={scheme}", "--no-proxy-server"]
        flags += [f"--user-data-dir={tmp_path / 'profile'}", "--remote-debugging-port=0"]
        with open(tmp_path / "log", "w", encoding="utf-8") as log:
            browser = subprocess.Popen([CHROMIUM, *flags, f"{client.base_url}/frame"], stderr=log)
        try:
            return answers.get(timeout=60)
        except queue.Empty:
            raise AssertionError((tmp_path / "log").read_text(encoding="utf-8")[-2000:]) from None
        finally:
            browser.terminate()
            browser.wait(30)

    extra = [Route("/visit", visited), Route("/frame", framed)]
    extra.append(Route("/told", told, methods=["POST"]))
    with live(translator, routes=extra, max_bytes=1 << 22) as client:
        yield open_page


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page(translator: Translator, visit: Any, width: int, scheme: int) -> None:
    found, (expected,) = visit(width, scheme), translator.generate(SENTENCES[:1])
    assert found["failures"] == [] and found["violations"] == []
    assert found["output"] == f"{expected[0].text}\n\n{expected[0].text}"
    # Nothing is cut off, all can be reached by keyboard, and nothing was loaded but answers.
    assert found["wide"] in range(width - 20, width + 1) and found["scroll"] <= found["wide"]
    assert found["cut"] == [] and all(found["reached"])
    assert set(found["assets"]) <= {"/generate"}
    papers = {LIGHT: "rgb(255, 255, 255)", DARK: "rgb(21, 24, 28)"}
    assert found["paper"] == papers[scheme]


@pytest.mark.parametrize("decoding", ["beam", "iad"])
def test_text_is_shown_and_never_run(decoding: str, tmp_path: Path) -> None:
    """Words of the sentence, words that the model writes, names of languages: all would run if they became HTML.

    The page is opened without its Content-Security-Policy, which would hide a fault.
    """
    translator = tiny(decoding, **({} if decoding == "beam" else {"beam": 1}))
    for words in (translator.task.source_dictionary, translator.task.target_dictionary):
        for place, word in enumerate(words.symbols):
            if word.startswith("w"):
                words.symbols[place] = f"<img/src=x/onerror=failures.push({place})>"
        words.indices = {word: place for place, word in enumerate(words.symbols)}
    name = "<script>failures.push('language')</script>"
    translator.languages = translator.language_support.trained_pair = (name, name)
    sentence = " ".join(translator.task.source_dictionary.symbols[5:9])
    (expected,) = translator.translate([sentence])
    assert "<img" in expected
    with visiting(translator, tmp_path, sentence) as open_page:
        found = open_page(1280, LIGHT)
    assert found["failures"] == [] and found["output"] == f"{expected}\n\n{expected}"
    assert set(found["assets"]) <= {"/generate"}
