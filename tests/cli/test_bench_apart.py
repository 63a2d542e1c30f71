"""aggdec bench --apart: engines beside each other, each in a process of its own, on a tiny random model."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench import processes, systems
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.bench.systems import Entry
from fairseq_aggdec.cli import bench as command
from fairseq_aggdec.cli import main
from scripts import random_models

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """fairseq's arguments for 5 sentences and a tiny model, the data set first."""
    records = [Record(i, list(range(4, 8 + i))) for i in range(5)]
    folder = tmp_path_factory.mktemp("tiny")
    prepared = random_models.prepare(folder, "tiny", records)
    shutil.copy(folder / "test.source-target.source", folder / "test.source-target.target")
    return [*prepared, "--cpu", "--max-len-b", "15"]


@pytest.mark.usefixtures("loaded_processes")
def test_systems_in_processes_of_their_own(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What is absent is named below the table.

    On stderr is a line for each system that is loaded and for each batch size, and nothing else.
    """
    output = tmp_path / "rivals"
    asked = ["--systems", "beam1", "iad-int8", "blockwise", "--batch-sizes", "1", "4", "--apart"]
    asked += ["--by-length", "2"]
    monkeypatch.setattr("sys.argv", ["aggdec"])
    assert main.run_tool("bench", [*arguments, *asked, "--output", str(output)]) == 0
    told = capfd.readouterr().err.splitlines()
    told = [line for line in told if "tensorboardX" not in line]  # of `loaded_processes`
    assert [line.split()[0] for line in told] == ["loading"] * 2 + ["timing"] * 2
    record = json.loads(output.with_suffix(".json").read_text())
    rows = {(row["system"], row["batch_size"]): row for row in record["results"]}
    assert set(rows) == {(name, size) for name in ("beam1", "iad-int8") for size in (1, 4)}
    assert all(row["seconds"] > 0 and row["sentences"] == 5 for row in rows.values())
    assert rows["beam1", 4]["quality"] == rows["beam1", 1]["quality"]
    assert rows["iad-int8", 1]["mean_accepted"] >= 1
    for name in ("beam1", "iad-int8"):
        spans = rows[name, 1]["by_length"]
        assert [(span["shortest"], span["longest"]) for span in spans] == [(3, 4), (5, 7)]
        assert sum(s["seconds"] for s in spans) == pytest.approx(rows[name, 1]["seconds"])
        assert rows[name, 4]["by_length"] == []
    assert record["absent"] == {"blockwise": "it needs --heads"}
    page = output.with_suffix(".md").read_text()
    # Two batch sizes; by length milliseconds and the ratio.
    assert page.count("| ours, IAD, --int8 |") == 4 and "| BLEU |" in page
    assert page.count("| ms / sentence, by source length | 3 to 4 | 5 to 7 |") == 1
    assert "Not measured: ours, blockwise: it needs --heads." in page


@pytest.mark.usefixtures("loaded_processes")
def test_outputs_belong_to_their_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sentences of one length, whose order collating does not keep from 17 on; each begins as its reference."""
    records = [Record(i, [5] * 4) for i in range(70)]
    given = [*random_models.prepare(tmp_path, "tiny", records), "--cpu", "--max-len-b", "9"]
    lines = "".join(f"w{i}\n" for i in range(len(records)))
    (tmp_path / "test.source-target.target").write_text(lines)
    asked = ["--prefix-size", "1", "--systems", "beam1", "greedy", "--batch-sizes", "32", "--apart"]
    texts = tmp_path / "texts"
    command.prepared([*given, *asked, "--hypotheses", str(texts)]).run()
    for name in ("beam1", "greedy"):
        written = (texts / f"{name}.txt").read_text().splitlines()
        assert [line.split()[0] for line in written] == lines.split()


class Place:
    """A connection that asks for some batches of the sentences that a command line names."""

    def __init__(self, arguments: list[str], *asked: list[int]):
        self.said: list[Any] = []
        parser = generation_parser(None)
        session = Session(parser, arguments) if asked else None
        self.asked = [session.batch(sentences) for sentences in asked] if session else []

    def send(self, message: Any) -> None:
        self.said.append(pickle.loads(pickle.dumps(message)))

    def recv(self) -> dict[str, Any]:
        if not self.asked:
            raise EOFError
        return self.asked.pop(0)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The cores to which :func:`serve` binds; this process stays as it is."""
    cores: list[Any] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, found: cores.append(found))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 9})
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    return cores


def test_a_process_answers_what_it_is_asked(
    arguments: list[str],
    bound: list[Any],
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    place = Place(arguments, [0, 1], [4])
    processes.serve(place, Entry("greedy", "greedy"), arguments, threads=2)  # type: ignore[arg-type]
    ready, (_, two, _, counted, _), (seconds, one, steps, later, _) = place.said
    assert (ready["beam"], ready["stock"]) == (1, False) and bound == [[3, 5]]
    assert (sorted(two), sorted(one)) == ([0, 1], [4]) and seconds > 0
    assert counted.tokens == counted.iterations == sum(map(len, two.values()))
    assert later.tokens == later.iterations == sum(map(len, (two | one).values()))
    assert steps == {4: len(one[4])}
    assert not caplog.records and not recwarn.list


@pytest.mark.parametrize(
    ("name", "package"),
    [("ct2-float32", "ctranslate2"), ("hf", "transformers")],
)
def test_what_is_not_installed_says_so(
    name: str,
    package: str,
    arguments: list[str],
    bound: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    place = Place(arguments)
    processes.serve(place, Entry(name, name), arguments, threads=1)  # type: ignore[arg-type]
    (reason,) = place.said
    assert "pip install '" in reason and package.split(".")[0] in reason.split("pip install")[1]


@pytest.mark.parametrize(
    ("name", "package"),
    [("ct2-float32", "ctranslate2"), ("hf", "transformers")],
)
def test_other_engines_give_what_stock_gives(
    name: str, package: str, arguments: list[str], bound: list[Any]
) -> None:
    pytest.importorskip(package)
    stock, other = Place(arguments, [0, 2, 3]), Place(arguments, [0, 2, 3])
    processes.serve(stock, Entry("beam1", "beam1"), arguments, threads=1)  # type: ignore[arg-type]
    processes.serve(other, Entry(name, name), arguments, threads=1)  # type: ignore[arg-type]
    assert other.said[0]["counters"] is None
    assert other.said[1][1] == stock.said[1][1]


@pytest.mark.usefixtures("loaded_processes")
def test_a_system_that_lacks_its_own_model_is_named(arguments: list[str], tmp_path: Path) -> None:
    given = ["--systems", "beam1", "blockwise", "--batch-sizes", "1", "--apart"]
    contest = command.prepared([*arguments, *given, "--output", str(tmp_path / "rivals")])
    contest.run()
    assert contest.absent == {"blockwise": "it needs --heads"}


def test_gec_scores_take_the_place_of_bleu(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("source", "first")]
    for file in files:
        file.write_text("w1 w2\n" * 5)
    given = [*arguments, "--systems", "all", "--drafter-path", "d.pt"]
    contest = command.prepared([*given, "--gec", *map(str, files)])
    assert contest.measure_of_quality == "F0.5"
    assert "--gec" not in contest.arguments and "--drafter-path" in contest.arguments
    assert "gad-int8" in contest.named and "blockwise" not in contest.named
    with pytest.raises(SystemExit, match="--gec"):
        command.prepared([*arguments, "--gec", str(files[0])])


def test_what_was_measured_survives_the_batch_size_that_ends_it(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "rivals"
    asked = ["--systems", "beam1", "--batch-sizes", "1", "4", "--output", str(output)]
    contest = command.prepared([*arguments, *asked])
    measure, sizes = command.measure, []

    def killed(entered: Any, batches: Any, **more: Any) -> Any:
        sizes.append(len(batches))
        if len(sizes) == 2:
            raise KeyboardInterrupt
        return measure(entered, batches, **more)

    monkeypatch.setattr(command, "measure", killed)
    with pytest.raises(KeyboardInterrupt):
        contest.run()
    record = json.loads(output.with_suffix(".json").read_text())
    assert [row["batch_size"] for row in record["results"]] == [1]


def test_names_of_systems() -> None:
    assert systems.split("iad-int8") == ("iad", ["--int8"])
    assert systems.split("ct2-int8") == ("ct2-int8", [])
    assert systems.split("hf-bf16") == ("hf-bf16", [])
    assert systems.label("search5-bf16") == "ours, beam 5, --bf16"
    beams = {name: systems.beam_of(name) for name in ("search5-int8", "ct2-int8-beam5", "hf")}
    assert beams == {"search5-int8": 5, "ct2-int8-beam5": 5, "hf": 1}
    assert systems.label("undrafted5") == "ours, beam 5, nothing drafted"
    assert systems.label("undrafted1") == "undrafted1"  # there is none: a beam of 1 drafts
    assert systems.label("ct2-int8-beam5") == "CTranslate2 int8, beam 5"
    assert systems.label("hf-beam5-bf16") == "Hugging Face transformers, beam 5, bf16"
