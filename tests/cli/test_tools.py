"""audit.py and benchmark.py as a user calls them, on a tiny random model."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.audit import equality, nbest_equality
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.stored.loading import load_checkpoint
from fairseq_aggdec.windows.draft import Verdict
from scripts import forced_drafts, random_models
from scripts.forced_drafts import ForcedDrafter
from scripts.recipes import paper_plots
from tests.cli.commands import Trained
from tests.fuzz import audits, cases, run


def script(name: str) -> ModuleType:
    """A tool of ``aggdec``, or a module of the recipes."""
    return importlib.import_module(name if "." in name else f"fairseq_aggdec.cli.{name}")


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """fairseq's arguments for 11 sentences, which no batch size divides, and a tiny model."""
    records = [Record(i, list(range(4, 8 + i))) for i in range(11)]
    prepared = random_models.prepare(tmp_path_factory.mktemp("tiny"), "tiny", records)
    return [*prepared, "--cpu", "--max-len-b", "15"]


def run_audit(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["audit.py", *arguments])
    return script("audit").main()


@pytest.mark.parametrize("decoding", ["greedy", "iad"])
def test_audit_passes(
    decoding: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "audit"
    more = ["--decoding", decoding, "--batch-sizes", "1", "4", "--output", str(output)]
    assert run_audit([*arguments, *more], monkeypatch) == 0
    record = json.loads(output.with_suffix(".json").read_text())
    assert record["data_set_size"] == 11
    for result in record["results"].values():
        assert result["sentences"] == 11
        assert result["equal"] + result["ties"] == 11
    assert record["machine"]["versions"]["torch"]
    assert f"{decoding}, batch 4, fp32" in output.with_suffix(".md").read_text()


def test_many_decodings_of_a_trained_model(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "SENTENCES", dict.fromkeys(cases.SENTENCES, 6))
    given = ["--real", str(trained.data), str(trained.checkpoint)]
    case = run.case_of(3, True, [given[1:]])
    session = audits.RealSession(case)
    assert len(set(session.order)) == 6
    output = tmp_path / "many"
    line = ["--first", "3", "--cases", "1", "--large", *given, "--output", str(output)]
    assert run.main(line) == 0
    (record,) = map(json.loads, (tmp_path / "many.jsonl").open())
    assert {"greedy", "iad", "gad tree", "beam, source"} <= set(record["methods"])
    assert "in 1 cases (1 of them of trained models): 0 BUGs" in (tmp_path / "many.md").read_text()


@pytest.mark.parametrize("precision", ["--fp16", "--bf16"])
def test_strict_audit(
    precision: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Compared with our own greedy decoding, bit for bit: scores that hardly differ fail it."""
    output = tmp_path / "audit"
    more = ["--decoding", "iad", "--strict", "5", precision, "--batch-sizes", "1", "4"]
    assert run_audit([*arguments, *more, "--output", str(output)], monkeypatch) == 0
    assert "# Equality with our own greedy decoding" in output.with_suffix(".md").read_text()
    real = equality.decode_all

    def nearly(session: Any, decoding: str, *rest: Any) -> Any:
        found = real(session, decoding, *rest)
        if decoding == "iad":
            found[0][0]["positional_scores"][0] += 1e-6
        return found

    monkeypatch.setattr(equality, "decode_all", nearly)
    assert run_audit([*arguments, *more], monkeypatch) == 1
    for refused in (["--reference", "x"], ["--stock-batch-size", "2"], ["--decoding", "nar"]):
        with pytest.raises(SystemExit, match="--strict"):
            run_audit([*arguments, *more, *refused], monkeypatch)


@pytest.mark.parametrize("changed", [False, True])
def test_a_killed_audit_goes_on(
    changed: bool, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished comparisons are not made again, unless the model is another one meanwhile."""
    model = tmp_path / "model.pt"
    place = arguments.index("--path") + 1
    shutil.copy(arguments[place], model)
    more = ["--decoding", "greedy", "--batch-sizes", "1", "4", "--output", str(tmp_path / "audit")]
    command = [*arguments[:place], str(model), *arguments[place + 1 :], *more]
    real, decoded = equality.decode_all, []

    def decode_all(session: Any, decoding: str, size: int, *rest: Any) -> Any:
        if size == 4 and not decoded:
            raise KeyboardInterrupt
        if (tmp_path / "audit.partial.json").exists():
            decoded.append(size)
        return real(session, decoding, size, *rest)

    monkeypatch.setattr(equality, "decode_all", decode_all)
    with pytest.raises(KeyboardInterrupt):
        run_audit(command, monkeypatch)
    assert [path.name for path in tmp_path.glob("audit*")] == ["audit.partial.json"]
    decoded.append(0)  # from here on nothing is ended
    if changed:
        state = load_checkpoint(str(model))
        state["cfg"] = OmegaConf.to_container(OmegaConf.create(state["cfg"]), enum_to_str=True)
        torch.save(state | {"extra": 1}, model)
    assert run_audit(command, monkeypatch) == 0
    assert decoded == ([0, 1, 1, 4, 4] if changed else [0, 4, 4])
    assert sorted(path.name for path in tmp_path.glob("audit*")) == ["audit.json", "audit.md"]
    results = json.loads((tmp_path / "audit.json").read_text())["results"]
    assert [found["equal"] for found in results.values()] == [11, 11]


def test_audit_against_another_checkpoint(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same model: no difference. Of a model that says something else: the audit fails."""
    path = Path(arguments[arguments.index("--path") + 1])
    other = load_checkpoint(str(path))
    for parameter in other["model"].values():
        parameter.neg_()
    other["cfg"] = OmegaConf.to_container(OmegaConf.create(other["cfg"]), enum_to_str=True)
    torch.save(other, tmp_path / "other.pt")
    more = ["--decoding", "greedy", "--reference"]
    assert run_audit([*arguments, *more, str(path)], monkeypatch) == 0
    assert run_audit([*arguments, *more, str(tmp_path / "other.pt")], monkeypatch) == 1
    with pytest.raises(SystemExit, match="--reference none: there is no such file"):
        run_audit([*arguments, *more, "none"], monkeypatch)


def test_every_batch_size_gets_batches_of_its_own(arguments: list[str]) -> None:
    session = Session(generation_parser(None), arguments)
    for batch_size in (1, 4, 2):
        ids = [sample["id"].tolist() for sample in session.task_batches(batch_size)]
        assert max(map(len, ids)) == batch_size
        assert sorted(index for batch in ids for index in batch) == list(range(11))


def doctored(fault: str) -> Any:
    """Decoding that is wrong in one way for one sentence."""
    real = equality.decode_all

    def decode_all(session: Any, decoding: str, *rest: Any) -> Any:
        found = real(session, decoding, *rest)
        if decoding != "stock":
            if fault == "lost":
                del found[3]
            elif fault == "twice":
                found[3] *= 2
            elif fault == "score":
                found[3][0]["positional_scores"][0] += 0.1
            else:
                tokens = found[3][0]["tokens"]
                worst = equality.next_log_probs(session, 3, []).argmin()
                tokens[0] = worst
        return found

    return decode_all


@pytest.mark.parametrize("fault", ["lost", "twice", "score", "token"])
def test_audit_finds_faults(
    fault: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(equality, "decode_all", doctored(fault))
    assert run_audit([*arguments, "--decoding", "iad"], monkeypatch) == 1
    assert "BUG" in capsys.readouterr().out


def test_bench_writes_everything(arguments: list[str], tmp_path: Path) -> None:
    output = tmp_path / "results" / "speed"
    more = ["--batch-sizes", "1", "4", "--threads", "1", "--output", str(output)]
    systems = ["--systems", "beam5", "beam1", "greedy", "iad"]
    script("bench").main([*arguments, *systems, *more])
    record = json.loads(output.with_suffix(".json").read_text())
    systems = {row["system"]: row for row in record["results"] if row["batch_size"] == 4}
    assert set(systems) == {"beam5", "beam1", "greedy", "iad"}
    assert systems["iad"]["sentences"] == 11
    assert systems["iad"]["differ"] == 0
    assert systems["greedy"]["mean_accepted"] == 1.0
    assert output.with_suffix(".md").read_text().count("| ours, IAD |") == 2
    single = record["distribution"]
    assert (single["system"], single["baseline"]) == ("iad", "beam1")
    assert len(single["speedups"]) == len(single["edit_ratios"]) == 11
    # A model that has learnt nothing copies nothing, so there is no plot of edits.
    assert median(single["edit_ratios"]) > 0.5
    assert [path.name for path in paper_plots.draw(output, record)] == ["speed-distribution.svg"]


@pytest.mark.parametrize("kind", ["right", "wrong", "random", "end"])
def test_audit_of_forced_drafts(
    kind: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, counted = tmp_path / "audit", []
    original = ForcedDrafter.observe

    def observe(self: ForcedDrafter, verdict: Verdict, state: DecodeState) -> None:
        counted.append((sum(verdict.accepted), sum(verdict.drafted)))
        original(self, verdict, state)

    monkeypatch.setattr(ForcedDrafter, "observe", observe)
    more = ["--decoding", "greedy", "--drafts", kind, "--draft-lengths", "4", "--batch-sizes", "3"]
    monkeypatch.setattr("sys.argv", ["forced_drafts", *arguments, *more, "--output", str(output)])
    assert forced_drafts.main() == 0
    (name,) = json.loads(output.with_suffix(".json").read_text())["results"]
    assert name == f"greedy, {kind} drafts of 4, batch 3, fp32"
    accepted, drafted = map(sum, zip(*counted, strict=True))
    assert drafted > 0
    assert (accepted == drafted) if kind == "right" else (accepted < drafted)
    assert kind != "wrong" or accepted == 0


@pytest.mark.parametrize("decoding", ["greedy", "iad", "beam"])
def test_audit_in_8_bits(
    decoding: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against our own search with nothing drafted, bit for bit; stock is not asked."""
    output = tmp_path / "audit"
    asked, original = [], Session.generator

    def generator(self: Session, decoding: str, beam: int = 1) -> Any:
        asked.append(decoding)
        return original(self, decoding, beam)

    monkeypatch.setattr(Session, "generator", generator)
    more = ["--int8", "--decoding", decoding, "--beams", "2", "--batch-sizes", "4"]
    assert run_audit([*arguments, *more, "--output", str(output)], monkeypatch) == 0
    assert asked[0] == ("beam" if decoding == "beam" else "greedy") and "stock" not in asked
    (result,) = json.loads(output.with_suffix(".json").read_text())["results"].values()
    assert (result["equal"], result["score_error"]) == (11, 0)
    page = output.with_suffix(".md").read_text()
    assert page.startswith("# Equality with our own search in 8 bits") and "batch 4, int8" in page


@pytest.mark.parametrize("decoding", ["iad", "beam"])
def test_in_8_bits_nothing_is_a_tie(
    decoding: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence that differs, and one whose score is off by the last bit."""
    audited = nbest_equality if decoding == "beam" else equality
    original, times = audited.decode_all, []

    def decode_all(*args: Any) -> Any:
        found = original(*args)
        times.append(found)
        if len(times) == 1:
            one, two = (found[i][0][0] if decoding == "beam" else found[i][0] for i in (0, 1))
            one["tokens"] = one["tokens"].flip(0)
            scores = two["positional_scores"]
            two["positional_scores"] = torch.nextafter(scores, torch.zeros_like(scores))
        return found

    monkeypatch.setattr(audited, "decode_all", decode_all)
    more = ["--int8", "--decoding", decoding, "--beams", "2", "--batch-sizes", "4"]
    assert run_audit([*arguments, *more], monkeypatch) == 1
    assert "| 11 | 10 | 0 | 2 | 0 |" in capsys.readouterr().out


def test_audit_refuses_drafts_that_nothing_verifies(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="--decoding beam verifies no drafts"):
        monkeypatch.setattr("sys.argv", ["forced_drafts", *arguments, "--drafts", "wrong"])
        forced_drafts.main()


def test_the_cost_of_a_call(arguments: list[str], tmp_path: Path) -> None:
    output = tmp_path / "cost"
    script("scripts.recipes.step_cost").main([*arguments, "--output", str(output)])
    results = json.loads(output.with_suffix(".json").read_text())["results"]
    assert results["1"]["seconds"]["1"] > 0
