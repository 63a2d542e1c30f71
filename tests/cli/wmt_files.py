"""Made-up translation data in the formats of the public files, for the tests of the recipes that use them."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from pathlib import Path

from tests import warm

ROOT = Path(__file__).resolve().parents[2]
WORDS = {
    "en": ["the", "old", "dog", "sees", "a", "small", "house", "and", "two", "well-known", "trees"],
    "de": [
        "der",
        "alte",
        "Hund",
        "sieht",
        "ein",
        "kleines",
        "Haus",
        "und",
        "zwei",
        "Wald-und-Wiesen-",
        "Bäume",
    ],
}
PAIRS = {"train": 90, "valid": 8, "test": 6}
NAMES_30K = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
# Flags of fairseq-train for a model of nothing; a recipe chooses the depth of some decoders itself.
WIDTHS = "--encoder-layers 1 " + " ".join(
    f"--{side}-embed-dim 16 --{side}-ffn-embed-dim 16 --{side}-attention-heads 2"
    for side in ("encoder", "decoder")
)
SIZES = f"{WIDTHS} --decoder-layers 1"


def sentence(language: str, number: int) -> str:
    words = [
        WORDS[language][(number * 3 + i * (number % 5 + 1)) % 11] for i in range(3 + number % 5)
    ]
    return " ".join(words).capitalize() + "."


def text(language: str, first: int, count: int) -> bytes:
    lines = (sentence(language, number) + "\n" for number in range(first, first + count))
    return "".join(lines).encode()


def write_wmt14(raw: Path) -> None:
    """RAW for wmt14-en-de: three archives, and the sets that sacreBLEU would download."""
    raw.mkdir(parents=True)
    each = PAIRS["train"] // 3
    archives = (
        ("europarl-v7", "europarl-v7"),
        ("commoncrawl", "commoncrawl"),
        ("nc-v9", "news-commentary-v9"),
    )
    for number, (archive, corpus) in enumerate(archives):
        with tarfile.open(raw / f"training-parallel-{archive}.tgz", "w:gz") as tar:
            for language in WORDS:
                info = tarfile.TarInfo(f"training/{corpus}.de-en.{language}")
                content = text(language, number * each, each)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    for split in ("valid", "test"):
        for language in WORDS:
            (raw / f"{split}.{language}").write_bytes(text(language, 7, PAIRS[split]))


def write_multi30k(raw: Path) -> None:
    raw.mkdir(parents=True)
    for split, name in NAMES_30K.items():
        for language in WORDS:
            (raw / f"{name}.{language}.gz").write_bytes(
                gzip.compress(text(language, 0, PAIRS[split]))
            )


def recipe(
    name: str, *arguments: str | Path, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a recipe on one thread, in some folder; ``env`` are its settings."""
    (path,) = (ROOT / "scripts" / "recipes").rglob(f"{name}.sh")
    return subprocess.run(
        ["bash", str(path), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHON": warm.python(), **env},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=1200,
    )


# In place of Python and of fairseq's programs: writes down how it is called, and leaves checkpoints.
RECORDER = """#!/bin/bash
printf '%s ' "$(basename "$0")" "$@" >> "$CALLS"
printf '\\n' >> "$CALLS"
while [ "$#" -gt 1 ]; do
    [ "$1" != --save-dir ] || touch "$2"/checkpoint_{best,last}.pt
    shift
done
"""


def recorders(folder: Path) -> dict[str, str]:
    """Settings with which a recipe only writes into ``calls`` what it would run."""
    (folder / "bin").mkdir()
    for program in ("python", "fairseq-preprocess", "fairseq-train", "fairseq-generate"):
        (folder / "bin" / program).write_text(RECORDER)
        (folder / "bin" / program).chmod(0o755)
    return {"PYTHON": str(folder / "bin" / "python"), "CALLS": str(folder / "calls")}


def calls(folder: Path, name: str, data_set: str, **env: str) -> list[str]:
    """The commands of a recipe whose data are there already; nothing is computed."""
    work = folder / data_set
    for made in ("text", "tokens", "subwords", f"data-{data_set.split('-', 1)[1]}"):
        (work / made).mkdir(parents=True)
    result = recipe(name, data_set, work, **recorders(folder), **env)
    assert result.returncode == 0, result.stderr[-2000:]
    return (folder / "calls").read_text().splitlines()


def value(command: str, option: str) -> str:
    """The last one counts."""
    words = command.split()
    return words[len(words) - words[::-1].index(option)]
