"""README: its size, its links, its chart, and a result file behind every number in it."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scripts import readme_chart

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

LARGEST = 12 * 1024  # bytes
LONGEST = 120  # characters of a line

# Rows and columns of the table of speed: result file and batch size; systems in fp32 and in 8 bits.
RUNS = {"error correction": "rivals-ua_gec", "translation": "rivals-multi30k"}
ROWS = {
    f"{task}, batch {batch}": (run, batch)
    for task, run in RUNS.items()
    for batch in (1, 8, 32, 128)
}
COLUMNS = (
    ("beam5",),
    ("ct2-float32-beam5", "ct2-int8-beam5"),
    ("search5", "search5-int8"),
    ("beam1",),
    ("ct2-float32", "ct2-int8"),
    ("iad", "iad-int8"),
)
# Numbers that no command measured: names, versions, years, settings, limits.
GIVEN = {
    *(
        "beam 5",
        "batches of 8",
        "batches of 32",
        "batches of 128",
        "(`interleaved` 4, `lattice` 5)",
    ),
    *("8 bits", "fp32", "fp16", "bf16", "float32", "int8", "ct2", "CTranslate2"),
    *(
        "Python 3.11, 3.12 or 3.13",
        "Python 3.11, 3.12 and 3.13",
        "for 3.12",
        "PyTorch 2.6",
        "0.12.3.1",
    ),
    *("3+3 layers, width 256", "6+6 layers", "(AVX-512)", "Multi30k", "CC BY 4.0", "1e-4"),
    *("et al. 2022", "et al. 2018", "Rush 2023", "et al. 2020", "[1]", "[2]"),
    "(beams 4, 5 and 10, batches of 1, 8 and 32)",
    "3 to 5 minutes",  # of set-up, which depends on the network
}


@cache
def result(name: str) -> Any:
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def milliseconds(name: str, system: str, batch: int) -> float:
    """Per sentence, one thread, of a row of a benchmark or of a comparison."""
    (row,) = (
        row
        for row in result(name)["results"]
        if (row["system"], row["batch_size"], row["threads"]) == (system, batch, 1)
    )
    return 1000 * row["seconds"] / row["sentences"]


def ratio(name: str, stock: tuple[str, ...], ours: str, batch: int) -> str:
    """Against the fastest of several rows of stock fairseq."""
    fastest = min(milliseconds(name, system, batch) for system in stock)
    return f"{fastest / milliseconds(name, ours, batch):.1f}"


def both(name: str, stock: tuple[str, ...], ours: str) -> str:
    return f"{ratio(name, stock, ours, 1)} / {ratio(name, stock, ours, 32)}"


def gains() -> dict[str, str]:
    """The last column of the table of methods."""
    papers, rivals = "methods-multi30k", "rivals-multi30k"

    def stock(name: str) -> tuple[str, str]:
        return f"fairseq {name}", f"fairseq {name}, bf16"

    return {
        "beam": both("beam-ua_gec", ("beam5",), "search5"),
        "iad": both("beam-ua_gec", ("beam1",), "iad"),
        "greedy": both("beam-multi30k-de-en", ("beam1",), "greedy"),
        "blockwise": both(rivals, ("beam1",), "blockwise"),
        "gad": both(rivals, ("beam1",), "gad"),
        "interleaved": both(papers, stock("beam 4"), "interleaved 2x1, beam 4, bf16"),
        "lattice": both(papers, stock("beam 5"), "lattice, N = 64, bf16"),
    }


def sentences() -> list[str]:
    """What README says of result files in words."""
    base = "rivals-multi30k-base"
    nbest = result("equality-beam-multi30k-de-en-test")["results"].values()
    lists, equal = (sum(each[key] for each in nbest) for key in ("sentences", "equal"))
    assert lists == equal  # "without a difference"
    rounded = result("int8-quality-ua_gec-test")
    changed = f"{rounded['differ']['beam5']} of {rounded['sentences']:,} sentences"
    moved = 100 * (rounded["scores"]["beam5-int8"]["f"] - rounded["scores"]["beam5"]["f"])
    tested = {row["sentences"] for run in RUNS.values() for row in result(run)["results"]}
    (count,) = tested
    return [
        f"[{ratio('beam-replay_base', ('beam5',), 'search5', 1)} times](docs/results/beam-replay_base.md)",
        f"[{ratio(base, ('beam5',), 'search5', 1)} times](docs/results/{base}.md)",
        f"with `--int8` {ratio(base, ('beam5',), 'search5-int8', 1)} times",
        f"[{ratio('gad-base-trees', ('beam1',), 'gad', 1)} times `--beam 1`](docs/results/gad-base-trees.md)",
        f"[{ratio('gpu-base-fp32', ('fairseq beam 5',), 'GAD', 1)} times](docs/gpu.md)",
        f"[{lists:,} n-best lists](docs/results/equality.md)",
        f"[{changed}](docs/results/int8-quality-ua_gec-test.md)",
        f"F0.5 moved by {abs(moved):.1f} points",
        f"{count} test\nsentences",
    ]


def points(stock: str, ours: str) -> str:
    """BLEU points between two rows of the comparison of all methods, at batch 1."""
    rows = result("methods-multi30k")["results"]
    first, second = (
        next(row["bleu"] for row in rows if (row["system"], row["batch_size"]) == (name, 1))
        for name in (stock, ours)
    )
    return f"{first - second:.1f}"


def conclusions() -> dict[str, list[str]]:
    """Page of a method -> what its first sentence says."""
    papers = "methods-multi30k"
    gad, heads = "gad-base-trees", "blockwise-base-head-layers"
    gain = gains()
    interleaved = points("fairseq beam 4", "interleaved 2x1, beam 4, bf16")
    return {
        "aggressive.md": [
            f"is {gain['iad'].replace(' / ', ' times as fast as stock `--beam 1` one sentence at a time, ')} times"
        ],
        "gad.md": [
            f"{ratio(gad, ('beam5',), 'gad', 1)} times as fast as stock beam 5, "
            f"{ratio(gad, ('beam1',), 'gad', 1)} times as stock `--beam 1` and "
            f"{ratio(gad, ('greedy',), 'gad', 1)} times as our greedy",
        ],
        "blockwise.md": [
            f"{ratio(heads, ('beam5',), 'blockwise', 1)} times as fast as stock beam 5, "
            f"{ratio(heads, ('beam1',), 'blockwise', 1)} times as stock `--beam 1`, "
            f"{ratio(heads, ('greedy',), 'blockwise', 1)} times as our greedy",
        ],
        "interleaved.md": [
            f"{gain['interleaved'].replace(' / ', ' times as fast as stock beam 4 at batch 1 and ')} times",
            f"{interleaved} BLEU points below it",
        ],
        "lattice.md": [
            f"{ratio(papers, ('fairseq beam 5', 'fairseq beam 5, bf16'), 'lattice, N = 64, bf16', 1)} times",
            f"{points('fairseq beam 5', 'lattice, N = 64, bf16')} BLEU points below it",
        ],
    }


@pytest.mark.parametrize("page", conclusions())
def test_the_conclusion_of_a_method(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    first = text.split("**")[1].replace("\n", " ")
    for words in conclusions()[page]:
        assert words in first


def table(heading: str) -> list[list[str]]:
    """Cells of the rows of the table below a heading, without marks of emphasis."""
    _, _, below = README.partition(f"\n## {heading}\n")
    section = below.partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip(" *") for cell in row.strip("|").split("|")] for row in rows]


def test_the_page_is_short() -> None:
    assert len(README.encode()) <= LARGEST
    assert [line for line in README.splitlines() if len(line) > LONGEST] == []


def test_the_table_of_speed() -> None:
    rows = table("How fast")
    assert [name for name, *_ in rows] == list(ROWS)
    for name, *cells in rows:
        expected = [
            " / ".join(f"{milliseconds(ROWS[name][0], who, ROWS[name][1]):.1f}" for who in column)
            for column in COLUMNS
        ]
        assert cells == expected, name


def test_best_hypotheses_are_those_of_stock() -> None:
    for run in RUNS.values():
        exact = [
            row
            for row in result(run)["results"]
            if row["system"] in ("search5", "greedy", "iad", "gad")
        ]
        assert exact and {row["differ"] for row in exact} == {0}


def test_the_table_of_methods() -> None:
    found = {cells[0].split("`")[1]: cells[-1] for cells in table("Which method is for me?")}
    assert found == gains()


@pytest.mark.parametrize("sentence", sentences())
def test_what_the_text_says(sentence: str) -> None:
    assert sentence in README


def test_no_other_number_is_in_it() -> None:
    text = re.sub(r"```.*?```|^\|[^\n]*$|<!--.*?-->", "", README, flags=re.DOTALL | re.MULTILINE)
    for known in sentences():
        text = text.replace(known, "")
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for given in sorted(GIVEN, key=len, reverse=True):
        words = r"\s+".join(map(re.escape, given.split()))
        text = re.sub(rf"(?<![\w.]){words}(?![\w%])", "", text)
    assert re.findall(r".*\d.*", text) == []


def test_the_chart_is_up_to_date() -> None:
    written = readme_chart.CHART.read_text(encoding="utf-8")
    assert written == readme_chart.chart(), "python scripts/readme_chart.py"
    assert f"]({readme_chart.CHART.relative_to(ROOT)})" in README
    assert (
        'role="img"' in written and "<title" in written and "prefers-color-scheme: dark" in written
    )
    assert "<path" not in written  # text is text


def anchor(heading: str) -> str:
    """What a forge calls a heading in a link."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in links:
        if re.match(r"https?://", link):
            continue
        name, _, part = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if part:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert part in map(anchor, headings), link


def test_every_room_has_a_line() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent for path in (ROOT / "fairseq_aggdec").rglob("*.py")}
    for room in rooms - {ROOT / "fairseq_aggdec"}:
        assert f"| `{room.relative_to(ROOT / 'fairseq_aggdec')}/` |" in page
    for name in re.findall(r"`([\w/]+/\w+\.py)`", page):
        assert (ROOT / name).exists() or (ROOT / "fairseq_aggdec" / name).exists(), name


def test_every_page_is_reached_from_the_readme() -> None:
    reached = set(re.findall(r"\]\(docs/(\w+\.md)", README))
    for page in list(reached):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        reached |= set(re.findall(r"\]\((\w+\.md)", text))
    assert reached >= {page.name for page in PAGES[1:]}
