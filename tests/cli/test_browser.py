"""Pages in a real browser, wide and narrow: nothing is cut off, nothing goes wrong.

Needs Chromium (Debian: ``apt-get install chromium``); left out where there is none.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec.report import report, trace
from fairseq_aggdec.report.report import Page
from fairseq_aggdec.report.trace import Piece, Trace
from tests.unit.test_blockwise_trace import RECORD as BLOCKS
from tests.unit.test_blockwise_trace import words as block_words
from tests.unit.test_report import TIMED
from tests.unit.test_trace import RELAXED_RECORD, WORDS

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next((found for found in map(shutil.which, NAMES) if found), None)
WIDTHS = (1400, 400)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=4000", "--window-size=1500,1200"),
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

# Run in the page: what the reader would see of it. A box that scrolls may hide what is in it, the page may not.
MEASURE = """
<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("load", () => {
  const wide = document.documentElement.clientWidth;
  const scrolls = (element) => element.closest(".scroll") !== null;
  const cut = [...document.querySelectorAll("main *, footer *")]
    .filter((element) => !scrolls(element) && element.getBoundingClientRect().right > wide + 0.5)
    .map((element) => element.outerHTML.slice(0, 80));
  const boxes = [...document.querySelectorAll(".scroll")].map((box) => {
    box.scrollLeft = 1e6;
    const right = box.getBoundingClientRect().right;
    const inner = [...box.querySelectorAll("th, td")];
    return inner.every((cell) => cell.getBoundingClientRect().right <= right + 0.5);
  });
  const style = getComputedStyle(document.body);
  parent.postMessage(JSON.stringify({
    wide, scroll: document.documentElement.scrollWidth, cut, boxes, errors,
    ink: style.color, paper: style.backgroundColor,
  }), "*");
});
</script>
"""


def visit(page: Path, width: int, tmp_path: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """Opens a page in a frame of this many pixels; gives what it measured of itself, and the browser's log."""
    text = page.read_text(encoding="utf-8")
    copy, frame = tmp_path / "copy.html", tmp_path / "frame.html"
    copy.write_text(text.replace("<style>", f"{MEASURE}<style>", 1), encoding="utf-8")
    frame.write_text(
        "<script>addEventListener('message', (event) => { document.title = 'measured';"
        "document.body.append(Object.assign(document.createElement('pre'), {textContent: event.data})) })</script>"
        f"<body><iframe src='{copy.as_uri()}' style='border:0;width:{width}px;height:900px'></iframe>",
        encoding="utf-8",
    )
    assert CHROMIUM is not None
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *flags, profile, "--dump-dom", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1])), done.stderr


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that pages have, with long words and many columns."""
    folder = tmp_path_factory.mktemp("page")
    dictionary = trace_words()
    traces = [
        trace.trace_beside(RELAXED_RECORD, dictionary, dictionary),
        trace.trace(BLOCKS, block_words(), block_words(), apart=True),
        Trace("long " * 40, "x" * 300, [[Piece("y" * 300, trace.ACCEPTED)]], 300),
    ]
    shown = Page("All of it, " + "Wort" * 20, "Words. " * 40, "Context.", traces, timed=TIMED)
    shown.columns = [f"column {n}" for n in range(14)]
    shown.rows = [[str(10**n) for n in range(14)]] * 3
    shown.command = "aggdec trace " + "a/very/long/path/" * 20
    report.write(folder / "page.html", shown)
    return folder / "page.html"


def trace_words() -> Any:
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for word in WORDS:
        dictionary.add_symbol(word)
    return dictionary


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off(page: Path, width: int, tmp_path: Path) -> None:
    found, log = visit(page, width, tmp_path)
    assert found["wide"] in range(width - 20, width + 1)  # but for a scroll bar
    assert found["scroll"] <= found["wide"], "the page scrolls sideways"
    assert found["cut"] == []
    assert found["boxes"] and all(found["boxes"]), "a column cannot be scrolled to"
    assert found["errors"] == [] and ":CONSOLE" not in log


def test_dark_and_light_follow_the_reader(page: Path, tmp_path: Path) -> None:
    light, _ = visit(page, WIDTHS[0], tmp_path, "--blink-settings=preferredColorScheme=1")
    dark, _ = visit(page, WIDTHS[0], tmp_path, "--blink-settings=preferredColorScheme=0")
    assert (light["paper"], light["ink"]) == ("rgb(255, 255, 255)", "rgb(31, 35, 40)")
    assert (dark["paper"], dark["ink"]) == ("rgb(21, 24, 28)", "rgb(230, 233, 236)")


@pytest.mark.parametrize(
    "page",
    sorted((Path(__file__).resolve().parents[2] / "docs" / "results").glob("*.html")),
    ids=lambda path: path.stem,
)
def test_the_pages_of_the_results(page: Path, tmp_path: Path) -> None:
    found, log = visit(page, WIDTHS[1], tmp_path)
    assert found["scroll"] <= found["wide"] and found["cut"] == []
    assert found["errors"] == [] and ":CONSOLE" not in log
