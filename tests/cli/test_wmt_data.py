"""wmt_data.sh: from files in the public formats to a data folder of fairseq."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.wmt_files import PAIRS, recipe, write_multi30k, write_wmt14


def count(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def test_wmt14_from_archives_to_data(tmp_path: Path) -> None:
    raw, work = tmp_path / "raw", tmp_path / "work"
    write_wmt14(raw)
    settings = {"RAW": str(raw), "VOCABULARY": "120", "WORKERS": "1"}
    first = recipe("wmt_data", "wmt14-en-de", work, **settings)
    assert first.returncode == 0, first.stderr[-2000:]
    assert "download" not in first.stderr
    for split, pairs in PAIRS.items():
        assert count(work / "text" / f"{split}.raw.de") == pairs
        assert (work / "data-en-de" / f"{split}.en-de.de.bin").exists()
    assert "." in (work / "tokens" / "test.raw.en").read_text().split()
    dictionaries = [(work / "data-en-de" / f"dict.{x}.txt").read_text() for x in ("en", "de")]
    assert dictionaries[0] == dictionaries[1]

    second = recipe("wmt_data", "wmt14-en-de", work, **settings)
    assert second.returncode == 0, second.stderr
    assert "start" not in second.stderr


def test_multi30k_shares_text_and_subwords_with_the_other_direction(tmp_path: Path) -> None:
    raw, work = tmp_path / "raw", tmp_path / "work"
    write_multi30k(raw)
    settings = {"RAW": str(raw), "VOCABULARY": "120", "WORKERS": "1"}
    result = recipe("wmt_data", "multi30k-en-de", work, **settings)
    assert result.returncode == 0, result.stderr[-2000:]
    assert not (work / "tokens").exists()
    assert count(work / "subwords" / "train.de") == PAIRS["train"]
    assert (work / "data-en-de" / "test.en-de.en.bin").exists()
    # What multi30k.sh needs to go on from here is there, under its names.
    assert (work / "text" / "valid.raw.de").exists()
    assert (work / "subwords" / "spm.model").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wat17-en-ja", ["6 files", "ASPEC", "dev.ja"]),
        ("wmt18-en-ru", ["1 files", "1mcorpus.zip", "Yandex"]),
    ],
)
def test_data_under_a_licence_are_named_before_any_download(
    name: str, words: list[str], tmp_path: Path
) -> None:
    result = recipe("wmt_data", name, tmp_path / "work")
    assert result.returncode != 0
    assert all(word in result.stderr for word in words)
    assert "download http" not in result.stderr
    assert not (tmp_path / "work").exists()


def test_interrupted_downloads_go_on_and_finished_ones_are_taken(tmp_path: Path) -> None:
    """A stand-in for curl completes the file; one that is complete already is not asked for."""
    raw, tools = tmp_path / "raw", tmp_path / "tools"
    write_multi30k(raw)
    whole = (raw / "train.en.gz").read_bytes()
    (raw / "train.en.gz").rename(tmp_path / "served.gz")
    (raw / "train.en.gz.partial").write_bytes(whole[:100])
    (raw / "train.de.gz").rename(raw / "train.de.gz.partial")
    tools.mkdir()
    curl = tools / "curl"
    curl.write_text(
        "#!/usr/bin/env bash\n"
        f'echo "$@" >> {tmp_path}/asked\n'
        'while [ "$1" != -o ]; do shift; done\n'
        f'tail -c +"$(($(stat -c %s "$2") + 1))" {tmp_path}/served.gz >> "$2"\n'
    )
    curl.chmod(0o755)

    result = recipe(
        "wmt_data",
        "multi30k-en-de",
        tmp_path / "work",
        RAW=str(raw),
        VOCABULARY="120",
        PATH=f"{tools}:{os.environ['PATH']}",
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert (raw / "train.en.gz").read_bytes() == whole
    assert count(tmp_path / "asked") == 1
    assert not list(raw.glob("*.partial"))
