"""aggdec bench as a user calls it: several methods of one model, beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_aggdec.bench import command_line, table
from fairseq_aggdec.bench.timing import Measurement
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import Drafter
from tests.cli.commands import CUT, PLUGIN, Trained
from tests.cli.test_tools import script


def run_bench(trained: Trained, output: Path, *more: str) -> None:
    arguments = [str(trained.data), *PLUGIN[:2], "--path", str(trained.checkpoint), "--cpu", *CUT]
    script("bench").main([*arguments, "--batch-sizes", "1", "--output", str(output), *more])


def test_table_plot_and_record(trained: Trained, tmp_path: Path) -> None:
    output = tmp_path / "methods"
    systems = ["--system", "stock=--decoding stock --beam 1", "--system", "wide=--beam 3"]
    # All is drafted: what pays depends on the machine.
    systems += ["--system", "copying=--decoding iad --beam 1 --draft-tokens all"]
    systems += ["--limit", "20"]
    systems += ["--baselines", "stock", "--batch-sizes", "1", "4", "--threads", "1"]
    systems += ["--distribution", "copying", "--hypotheses", str(tmp_path / "texts")]
    run_bench(trained, output, *systems)
    record = json.loads(output.with_suffix(".json").read_text())
    assert "nrefs:1" in record["sacrebleu"]
    lines = {(line["system"], line["batch_size"]): line for line in record["results"]}
    assert len(lines) == 6
    for batch_size in (1, 4):
        stock, copying = lines["stock", batch_size], lines["copying", batch_size]
        assert (copying["differ"], stock["differ"]) == (0, None)
        assert copying["quality"] == stock["quality"] > 50
        assert copying["steps"] < stock["steps"]
        assert stock["speedup"] == {"stock": 1.0}
        assert sum(copying["parts"].values()) == pytest.approx(1.0)
        assert stock["by_slot"] == lines["wide", batch_size]["by_slot"] == []
        assert copying["by_slot"] == sorted(copying["by_slot"], reverse=True)
        assert len(copying["by_slot"]) <= 10 and 0 < copying["by_slot"][0] <= 1.0
    page = output.with_suffix(".md").read_text()
    assert page.count("| copying |") == 4  # two batch sizes; and how far drafts stand
    assert page.count("| accepted drafted token, % of steps | 1 | 2 |") == 2
    written = {path.name: path.read_text() for path in (tmp_path / "texts").iterdir()}
    assert sorted(written) == ["copying.txt", "stock.txt", "wide.txt"]
    assert written["copying.txt"] == written["stock.txt"]
    assert written["stock.txt"].count("\n") == 20
    assert record["distribution"]["system"] == "copying"
    assert len(record["distribution"]["speedups"]) == 20
    assert min(record["distribution"]["speedups"]) > 0


def test_tokens_that_dedup_leaves_out_took_their_steps(trained: Trained, tmp_path: Path) -> None:
    output = tmp_path / "dedup"
    systems = ["--system", "all=--draft-from none", "--system", "distinct=--variant dedup=1"]
    run_bench(trained, output, *systems, "--decoding", "interleaved", "--beam", "1")
    record = json.loads(output.with_suffix(".json").read_text())
    written, distinct = record["results"]
    assert distinct["tokens"] < written["tokens"]
    assert distinct["steps"] == written["steps"] == written["tokens"] / written["sentences"]


def test_names_may_have_equals_signs() -> None:
    split = command_line.split
    assert split("lattice, N = 1=--beam 1 --variant lattice-candidates=1") == (
        "lattice, N = 1",
        ["--beam", "1", "--variant", "lattice-candidates=1"],
    )
    assert split("beam 1=") == ("beam 1", [])
    for nameless in ("beam 1", "=--beam 1", "a=b"):
        with pytest.raises(SystemExit, match="give NAME=OPTIONS"):
            split(nameless)


def test_speed_up_is_of_single_sentences() -> None:
    slow, fast = Measurement("slow", [4.0, 6.0]), Measurement("fast", [2.0, 1.5])
    assert table.speedups(fast, slow) == [2.0, 4.0]


def test_time_by_module() -> None:
    """What the drafter's encoder took is no longer part of drafting; a method without a drafter has none."""
    counters = Counters(seconds={"encoder": 1.0, "draft": 5.0, "verify": 3.0, "other": 1.0})
    timed = Drafter()
    timed.encoder_seconds = 2.0
    found = table.shares(counters, timed)
    expected = [0.1, 0.2, 0.3, 0.3, 0.1]
    assert found == pytest.approx(dict(zip(table.MODULES, expected, strict=True)))
    assert table.shares(counters, Drafter())["drafter's encoder"] == 0
    assert table.shares(None, Drafter()) == {}


def test_memory_of_each_system_in_its_own_process(
    trained: Trained, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "memory"
    systems = [
        "--system",
        "stock=--decoding stock --beam 1",
        "--system",
        "copying=--decoding iad --beam 1",
    ]
    run_bench(trained, output, *systems, "--limit", "4", "--batch-sizes", "2", "--memory")
    peaks = json.loads(output.with_suffix(".json").read_text())["results"]["2"]
    assert list(peaks) == ["stock", "copying"]
    assert all(peak > 10 for peak in peaks.values())
    assert f"| stock | 2 | {peaks['stock']:.0f} | 1.00 |" in capfd.readouterr().out
    assert "| system | batch | MiB | x stock |" in output.with_suffix(".md").read_text()


@pytest.mark.usefixtures("loaded_processes")
def test_a_system_that_fails_is_named(trained: Trained, tmp_path: Path) -> None:
    lost = [
        "--system",
        "stock=--decoding stock --beam 1",
        "--system",
        "lost=--decoding gad --drafter-path none.pt",
    ]
    with pytest.raises(SystemExit, match=r"measuring lost failed: .*none\.pt"):
        run_bench(trained, tmp_path / "x", *lost, "--limit", "1", "--batch-sizes", "1", "--memory")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--system", "nothing"], "NAME=OPTIONS"),
        (["--system", "a=--beam 1", "--system", "a=--beam 2"], "same name"),
        (["--system", "fairseq beam 1=--beam 1"], "add --decoding stock"),
        (["--decoding", "iad", "--system", "the stock one="], "our --decoding iad: add"),
        (["--decoding", "stock", "--system", "stock=--decoding greedy"], "our --decoding greedy"),
        (["--system", "a=--beam 1", "--baselines", "b"], "--baselines b"),
        (["--systems", "foo"], "--systems foo: there is no such system"),
        (["--system", "a=--beam 1", "--distribution", "b"], "--distribution b"),
        (["--system", "a=--beam 1", "--distribution", "a"], "needs --baselines"),
        (["--by-length", "0"], "--by-length 0: it must be at least 1"),
        (["--by-length", "3", "--batch-sizes", "8"], "--by-length needs batch size 1"),
        (["--system", "a b=--beam 1", "--system", "a/b=", "--hypotheses", "x"], "the same file"),
    ],
)
def test_refusals(trained: Trained, tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        run_bench(trained, tmp_path / "never", *options)
