"""The lattice recipe on translation data, from made-up files in the public formats to its table."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import ROOT
from tests.cli.wmt_files import PAIRS, WIDTHS, calls, recipe, value, write_wmt14

# A program with the options of fast_align: word t comes from word t, where there is one.
DIAGONAL = """
import sys
for line in open(sys.argv[sys.argv.index("-i") + 1]):
    print(*(f"{t}-{t}" for t in range(min(len(side.split()) for side in line.split(" ||| ")))))
"""


def settings(folder: Path) -> dict[str, str]:
    program = folder / "fast_align"
    program.write_text(f"#!{sys.executable}\n{DIAGONAL}")
    program.chmod(0o755)
    return {
        "GPUS": "0",
        "WORKERS": "1",
        "VOCABULARY": "120",
        "CANDIDATES": "8",
        "MAX_UPDATE": "2",
        "NAT_LAYERS": "1",
        "NAT_LENGTH": "20",
        "MODEL_FLAGS": WIDTHS,
        "TRAIN_FLAGS": "--max-tokens 400 --update-freq 1",
        "DECODE_FLAGS": "--max-len-b 12",
        "PRECISION_FLAGS": "",
        "FAST_ALIGN": str(program),
        "TABLE_FLAGS": "--symmetrisation forward --held-out 10",
    }


def test_lattice_from_teacher_to_table(tmp_path: Path) -> None:
    """Raw data of the other direction; what the lattice drafts for the teacher stays the teacher's."""
    work = tmp_path / "work"
    write_wmt14(work / "raw")
    chosen = settings(tmp_path) | {"DIRECTION": "de-en", "SETTINGS": "raw"}
    result = recipe("lattice_wmt", "wmt14-en-de", work, **chosen)
    assert result.returncode == 0, result.stderr[-3000:]
    record = json.loads((work / "results-de-en.json").read_text())
    table: dict[str, dict[str, Any]] = {row["system"]: row for row in record["results"]}
    assert list(table) == [
        "teacher, beam 5",
        "teacher, beam 1",
        "teacher, our greedy",
        "raw data, 1 layers, N = 1",
        "raw data, 1 layers, N = 8",
        "plain NAT, raw data, 1 layers",
    ]
    assert {row["sentences"] for row in table.values()} == {PAIRS["test"]}
    assert table["teacher, our greedy"]["different"] == 0
    header = json.loads((work / "lattice-raw-de-en" / "header.json").read_text())
    assert header["languages"] == ["de", "en"]
    # The checkpoint is chosen by the BLEU of the lattice on validation data.
    log = (work / "scorer-raw-1-de-en" / "train.log").read_text()
    assert re.search(r"valid on 'valid' subset .* decoded_accepted .* bleu ", log)


@pytest.mark.parametrize(
    ("data_set", "expected"),
    [
        (
            "iwslt14-de-en",
            "--dropout 0.3 --max-tokens 4096 --warmup-updates 4000 --max-update 120000 --lr 0.0005 "
            "--weight-decay 0.0001 --update-freq 1",
        ),
        (
            "wmt14-en-de",
            "--dropout 0.1 --max-tokens 4096 --warmup-updates 4000 --max-update 240000 --lr 0.0007 "
            "--weight-decay 0 --update-freq 9",
        ),
        (
            "wmt16-en-ro",
            "--dropout 0.3 --max-tokens 5461 --warmup-updates 10000 --max-update 240000 --lr 0.0007 "
            "--weight-decay 0.01 --update-freq 3",
        ),
    ],
)
def test_settings_are_those_of_table_8(tmp_path: Path, data_set: str, expected: str) -> None:
    """On one GPU; both settings and two depths."""
    commands = calls(tmp_path, "lattice_wmt", data_set, FAST_ALIGN="true", GPUS="1", LAYERS="1 2")
    teacher, *others = [line for line in commands if line.startswith("fairseq-train")]
    nats = [line for line in others if "--arch nar_drafter" in line]
    scorers = [line for line in others if line not in nats]
    for command in (teacher, *others):
        assert expected in command
        assert ("--fp16" in command.split()) is (data_set != "iwslt14-de-en")
    direction = data_set.split("-", 1)[1]
    made = [
        (setting, depth, f"{data_set}/{folder}-{direction}")
        for setting, folder in (("distilled", "distilled"), ("raw", "data"))
        for depth in ("1", "2")
    ]
    for command, (setting, depth, data) in zip(scorers, made, strict=True):
        assert command.split()[1].endswith(data)
        assert value(command, "--decoder-layers") == depth
        assert value(command, "--lattice").endswith(f"lattice-{setting}-{direction}")
    tables = [line for line in commands if " lattice-tables " in line]
    assert [value(line, "--fast-align") for line in tables] == ["true"] * 2
    heads, hidden = ("4", "1024") if data_set == "iwslt14-de-en" else ("8", "2048")
    for side in ("encoder", "decoder"):
        for command in (*nats, *scorers):
            assert value(command, f"--{side}-embed-dim") == "512"
            assert value(command, f"--{side}-ffn-embed-dim") == hidden
            assert value(command, f"--{side}-attention-heads") == heads
            assert value(command, "--encoder-layers") == "6"
    for command in nats:
        assert "--glancing-start 0 --glancing-end 0" in command
        assert (value(command, "--decoder-layers"), value(command, "--prefixes")) == ("6", "none")
    assert len(nats) == 2
    for command in scorers:
        assert "--variant lattice-smoothing=none --variant lattice-normalise=vocabulary" in command
    decoded = [line for line in commands if "--decoding lattice" in line and "--gen-subset" in line]
    counts = [re.findall(r"lattice-candidates=(\d+)", line)[-1] for line in decoded]
    assert counts == ["1", "32", "64", "128"] * 4


def test_a_missing_cmake_is_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    result = recipe("lattice_wmt", "wmt14-en-de", tmp_path / "work", PATH=str(tmp_path / "bin"))
    assert result.returncode == 2
    assert "fast_align cannot be built: there is no cmake" in result.stderr
    assert not (tmp_path / "work").exists()


def test_the_original_aligner_is_built_from_its_archive(tmp_path: Path) -> None:
    """An archive that is there is not downloaded; CMake is told what version 4 needs."""
    raw, tools = tmp_path / "raw", tmp_path / "bin"
    tools.mkdir()
    (tools / "cmake").write_text(
        '#!/bin/bash\necho "$@" >> "$CALLS"\n[ "$1" = --build ] || exit 0\n'
        'mkdir -p "$2" && cp "$2/../main" "$2/fast_align" && chmod +x "$2/fast_align"\n'
    )
    (tools / "cmake").chmod(0o755)
    script = ROOT / "scripts" / "recipes" / "lattice" / "fast_align.sh"
    commit = re.search(r"^COMMIT=(\w{40})$", script.read_text(), re.MULTILINE)
    assert commit
    raw.mkdir()
    with tarfile.open(raw / f"fast_align-{commit[1]}.tar.gz", "w:gz") as archive:
        (tmp_path / "main").write_text("the program")
        archive.add(tmp_path / "main", f"fast_align-{commit[1]}/main")
    env = {**os.environ, "RAW": str(raw), "CALLS": str(tmp_path / "calls")}
    env["PATH"] = f"{tools}:{env['PATH']}"
    folder = tmp_path / "made"
    subprocess.run(["bash", str(script), str(folder)], env=env, check=True, capture_output=True)
    assert [path.name for path in folder.iterdir()] == ["fast_align"]
    assert (folder / "fast_align").read_text() == "the program"
    assert "-DCMAKE_POLICY_VERSION_MINIMUM=3.5" in (tmp_path / "calls").read_text()
