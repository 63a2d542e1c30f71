"""README: its size, its links, its chart, and a result file behind every number in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairseq_aggdec.bench.systems import label
from scripts.recipes.papers_page import looked_up, tables

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

LARGEST = 12 * 1024  # bytes
LONGEST = 120  # characters of a line of text
MOST_NUMBERS = 72

CORRECTION = "rivals-amd.md#rivals-ua_gec-avx2"
TRANSLATION = "rivals-amd.md#rivals-multi30k-avx2"
# Of older code, with AVX-512; with a drafter that was trained longer.
OLDER = "rivals-amd.md#rivals-ua_gec", "rivals-amd.md#rivals-multi30k"
BASE = "rivals-multi30k-base.md"
PAPERS = "methods-multi30k.md"
GPU = "gpu-base-fp32.md"
HEADS = "blockwise.md#blockwise-base-head-layers"
BOTH_ENDS, WRITER = (
    "interleaved.md#interleaved-multi30k-avx2",
    "interleaved-2x1-distilled-3, beam 4",
)
BEAM = (
    "equality-beam-multi30k-de-en-test equality-beam-multi30k-en-de-test equality-beam-ua_gec-test"
)
BEAMS = *BEAM.split(), "equality-beam-ua_gec-valid", "equality-beam-base-multi30k-test"
RUNS = {"error correction": CORRECTION, "translation": TRANSLATION}
LARGE = "rivals-large.md"
# Systems of the columns of the table of speed, beam 5.
COLUMNS = ("beam5", "ct2-float32-beam5", "search5", "ct2-int8-beam5", "search5-int8")
# Numbers that no command measured: settings, versions, licences, limits.
GIVEN = {
    *(
        "beam 5",
        "batch 1",
        "`--beam 1`",
        "beam 1",
        "8 bits",
        "fp32",
        "fp16",
        "bf16",
        "int8",
        "CTranslate2",
    ),
    *(
        "CC BY 4.0",
        "Python 3.10 to 3.13",
        "0.12.2",
        "AVX2",
        "up to 20 %",
        "3+3 layers",
        "615 million",
        "502 updates",
        "20 tokens",
        "128 test sentences",
    ),
}


def cell(name: str, system: str, batch: int, column: str) -> str:
    """Of a table of a benchmark, one thread; ``name``: file below docs/results, with ``#section`` or not."""
    return looked_up(f"results/{name}", f"batch {batch}, 1 thread", label(system), column, name)


def milliseconds(name: str, system: str, batch: int) -> float:
    """Per sentence."""
    return float(cell(name, system, batch, "ms / sentence"))


def ratio(name: str, stock: tuple[str, ...], ours: str, batch: int) -> str:
    """Against the fastest of several rows of stock fairseq."""
    fastest = min(milliseconds(name, system, batch) for system in stock)
    return f"{fastest / milliseconds(name, ours, batch):.1f}"


def both(name: str, stock: tuple[str, ...], ours: str) -> str:
    return f"{ratio(name, stock, ours, 1)} / {ratio(name, stock, ours, 32)}"


def gains() -> dict[str, str]:
    """Method -> times as fast as the fastest stock run that it equals, at batch 1 and 32."""

    def stock(name: str) -> tuple[str, str]:
        return f"fairseq {name}", f"fairseq {name}, bf16"

    return {
        "beam": both(CORRECTION, ("beam5",), "search5"),
        "iad": both(CORRECTION, ("beam1",), "iad"),
        "greedy": both(TRANSLATION, ("beam1",), "greedy"),
        "blockwise": both(OLDER[1], ("beam1",), "blockwise"),
        "gad": both(OLDER[1], ("beam1",), "gad"),
        "interleaved": both(BOTH_ENDS, ("fairseq beam 4",), WRITER),
        "lattice": both(PAPERS, stock("beam 5"), "lattice, N = 64, bf16"),
    }


def differing(name: str, system: str) -> int:
    """Outputs that differ from stock's, batch 1; the cell says ``7 of 128``."""
    return int(cell(name, system, 1, "differ from stock").split()[0])


def compared() -> tuple[int, int, int]:
    """N-best lists of all audits of beam search, and how many of them are equal, and ties."""
    found = [rows for name in BEAMS for _, (_, rows) in tables(f"results/equality.md#{name}")]
    lists, equal, ties = (
        sum(int(row[column]) for rows in found for row in rows) for column in (1, 2, 3)
    )
    return lists, equal, ties


def text_of_result(name: str) -> str:
    return (ROOT / "docs" / "results" / name).read_text(encoding="utf-8")


def faster(
    runs: Sequence[str], batches: Sequence[int], pairs: Sequence[tuple[str, str]]
) -> tuple[int, int]:
    """In how many cells CTranslate2 is faster, and how many there are; ``pairs``: a system of it and one of ours."""
    found = [
        milliseconds(run, theirs, batch) < milliseconds(run, ours, batch)
        for run in runs
        for batch in batches
        for theirs, ours in pairs
    ]
    return sum(found), len(found)


def sentences() -> list[str]:
    """What README says of result files in words."""
    lists, equal, ties = compared()
    assert lists - equal == ties == 2  # "the other two"
    beam = COLUMNS[1:3], COLUMNS[3:5]
    greedy = ("ct2-float32", "greedy"), ("ct2-int8", "greedy-int8")
    now, cells = faster((CORRECTION, TRANSLATION), (1, 8, 32, 128), (*beam, *greedy))
    count = cell(CORRECTION, "search5", 1, "differ from stock").split()[-1]
    ours, theirs = (
        [differing(run, system) for run in (TRANSLATION, CORRECTION)]
        for system in (COLUMNS[4], COLUMNS[3])
    )
    drafted = {
        name: cell(name, "gad", 1, "x ours, greedy")
        for name in ("gad-multi30k-amx.md", "gad.md#gad-zen3", "gad.md#gad-base-zen3")
    }
    return [
        *(f"[{gain} times](docs/results/{name})" for name, gain in drafted.items()),
        f"faster in [{now} of {cells} cells](docs/rivals.md#avx2)",
        f"[{lists:,} n-best lists](docs/results/equality.md)",
        f"of beam search {equal:,} are equal.",
        f"{count} test sentences",
        f"{ours[0]} of {count} translations and {ours[1]} of {count} corrections differ from fairseq's; with "
        f"CTranslate2 int8 {theirs[0]} and {theirs[1]}",
    ]


def points(method: str) -> str:
    """BLEU points below stock of a trained model, 1,000 sentences."""
    target, stock, ours = {
        "interleaved": ("interleaved.md#interleaved-multi30k", "fairseq beam 4", WRITER),
        "lattice": (
            *("lattice.md#lattice-batch32-multi30k", "fairseq beam 5"),
            "distilled data, 1 layers, N = 64",
        ),
    }[method]
    _, (heads, rows) = tables(f"results/{target}")[0]
    scores = {row[0]: float(row[heads.index("BLEU")]) for row in rows}
    return f"{scores[stock] - scores[ours]:.1f}"


def conclusions() -> dict[str, list[str]]:
    """Page of a method -> what its first paragraph says."""
    gain = gains()
    return {
        "aggressive.md": [
            f"is {gain['iad'].replace(' / ', ' times as fast as stock `--beam 1` for single sentences and ')} times"
        ],
        "gad.md": [
            f"{ratio(BASE, ('beam5',), 'gad', 1)} times as fast as stock beam 5, "
            f"{ratio(BASE, ('beam1',), 'gad', 1)} times as stock `--beam 1` and "
            f"{ratio(BASE, ('greedy',), 'gad', 1)} times as our greedy",
        ],
        "blockwise.md": [
            f"{ratio(HEADS, ('beam5',), 'blockwise', 1)} times as fast as stock beam 5, "
            f"{ratio(HEADS, ('beam1',), 'blockwise', 1)} times as stock `--beam 1`, "
            f"{ratio(HEADS, ('greedy',), 'blockwise', 1)} times as our greedy",
        ],
        "interleaved.md": [
            f"is {cell(BOTH_ENDS, WRITER, 1, 'x ours, beam 4')} times as fast as our exact beam 4",
            f"and {cell(BOTH_ENDS, WRITER, 32, 'x ours, beam 4')} times in batches of 32",
            f"takes {gain['interleaved'].replace(' / ', ' and ')} times as long",
            f"is {points('interleaved')} BLEU points below stock beam 4",
        ],
        "lattice.md": [
            f"{ratio(PAPERS, ('fairseq beam 5', 'fairseq beam 5, bf16'), 'lattice, N = 64, bf16', 1)} times",
            f"is {points('lattice')} BLEU points below beam 5",
        ],
    }


def answers() -> list[str]:
    """Speeds that docs/results.md gives."""
    gain = gains()
    return [
        gain["beam"],
        gain["iad"],
        both(TRANSLATION, ("beam5",), "search5"),
        gain["greedy"],
        both(BASE, ("beam5",), "search5"),
        ratio(BASE, ("beam1",), "gad", 1),
        ratio(HEADS, ("beam1",), "blockwise", 1),
        ratio(GPU, ("fairseq beam 5",), "GAD", 1),
    ]


def test_the_table_of_results() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\|$", page.partition("## Exactness")[0], re.MULTILINE)[2:]
    assert [row.split("|")[2].strip() for row in rows] == [
        answer.replace(" / ", " and ") for answer in answers()
    ]


def test_the_speed_of_methods() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:[\w ]+) \| ([\d.]+) \| ([\d.]+) \|", page, re.MULTILINE)
    assert {name: f"{alone} / {many}" for name, alone, many in rows} == gains()


@pytest.mark.parametrize("page", conclusions())
def test_the_conclusion_of_a_method(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    first = text.split("\n\n")[1].replace("\n", " ")
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
    assert len(README.splitlines()) <= 120
    lines = [line for line in README.splitlines() if not line.startswith(("|", "!["))]
    assert [line for line in lines if len(line) > LONGEST] == []


def test_the_table_of_speed() -> None:
    rows = table("How fast")
    assert len(rows) == 6
    for name, *cells in rows:
        task, _, batch = name.rpartition(", ")
        if task == "NLLB's size":
            assert cells == ["", *of_large("float32", batch), *of_large("int8", batch)]
            continue
        assert cells == [f"{milliseconds(RUNS[task], who, int(batch)):.1f}" for who in COLUMNS]


def of_large(form: str, batch: str) -> tuple[str, str]:
    """Milliseconds of CTranslate2 and of ours, beam 5, one thread, from the summary of the file on NLLB's size."""
    row = rf"^\| {form} \| beam5 \| 1 \| {batch} \| (\d+) \| (\d+) \|"
    found = re.search(row, text_of_result(LARGE), re.MULTILINE)
    assert found
    return found[2], found[1]


def test_best_hypotheses_are_those_of_stock() -> None:
    for run in RUNS.values():
        assert {differing(run, system) for system in ("search5", "greedy")} == {0}
    assert differing(CORRECTION, "iad") == differing(TRANSLATION, "gad") == 0


def test_the_table_of_methods() -> None:
    """Those that change the output say so."""
    found = {
        name: cells[2]
        for cells in table("Which method")
        for name in re.findall(r"`(\w+)`", cells[0])
    }
    assert found.keys() == gains().keys()
    for method, output in found.items():
        exact = "fairseq's beam search" if method == "beam" else "fairseq's `--beam 1`"
        less = f"its own, {points('interleaved')} and {points('lattice')} BLEU less"
        assert output == (less if method in ("interleaved", "lattice") else exact)


@pytest.mark.parametrize("sentence", sentences())
def test_what_the_text_says(sentence: str) -> None:
    assert sentence in " ".join(README.split())


def text_of(page: str) -> str:
    """A page without code and targets of links."""
    page = re.sub(r"```.*?```|<!--.*?-->", "", page, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", page)


def test_few_numbers() -> None:
    """Digits of names (fp32, CTranslate2) are not counted."""
    assert len(re.findall(r"(?<![\w.])\d[\d.,]*", text_of(README))) <= MOST_NUMBERS


def test_no_other_number_is_in_it() -> None:
    text = " ".join(
        line for line in README.splitlines() if not re.match(r"\|.*\|$|!\[", line)
    )  # tables and the picture have tests of their own
    text = " ".join(re.sub(r"```.*?```", "", text).split())
    for known in sentences():
        text = text.replace(known, "")
    text = text_of(text)
    for given in sorted(GIVEN, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(given)}(?![\w%])", "", text)
    assert re.findall(r".{0,30}\d.{0,30}", text) == []


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


def test_the_architecture_is_short_and_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 65
    rooms = {path.parent for path in (ROOT / "fairseq_aggdec").rglob("*.py")}
    for room in rooms - {ROOT / "fairseq_aggdec"}:
        assert f"`{room.relative_to(ROOT / 'fairseq_aggdec')}/`" in page
    for name in re.findall(r"`([\w/]+/\w+\.py)`", page):
        assert (ROOT / name).exists() or (ROOT / "fairseq_aggdec" / name).exists(), name


def test_every_page_is_reached_from_the_readme() -> None:
    """By links, from README itself or from CONTRIBUTING, to which it leads."""
    starts = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "](CONTRIBUTING.md)" in README
    reached: set[str] = set()
    new = set(re.findall(r"\]\(docs/([\w-]+\.md)", starts))
    while new:
        reached |= new
        texts = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in new]
        new = {page for text in texts for page in re.findall(r"\]\(([\w-]+\.md)", text)} - reached
    assert reached >= {page.name for page in PAGES[1:]}
