"""The tree of a beam search in words: every evaluated prefix once, marked by what became of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.cli import trace as trace_tool
from fairseq_aggdec.report import beam_trace
from fairseq_aggdec.report.trace import AWAITED, ENDED, NEEDED, SCORE, VAIN, WINNER
from scripts import random_models


def arguments(folder: Path) -> list[str]:
    records = [Record(i, list(range(4, 7 + i))) for i in range(3)]
    return [
        *random_models.prepare(folder, "tiny", records),
        "--cpu",
        "--max-len-b",
        "6",
        "--beam",
        "3",
    ]


def test_every_evaluated_prefix_is_shown_once(tmp_path: Path) -> None:
    session = Session(generation_parser(None), arguments(tmp_path), reads=["beam"])
    found = list(beam_trace.searches(session, session.batches(1)))
    words = session.task.source_dictionary, session.task.target_dictionary
    assert [number for number, *_ in found] == [0, 1, 2]
    for _, source, search, ranked in found:
        shown = beam_trace.trace(source, search, ranked, words)
        kinds: Counter[str] = Counter()
        for line in shown.iterations:
            for piece in line:
                kinds[piece.kind] += len(piece.text.split())
        ahead = set(search.ahead)
        assert kinds[AWAITED] == search.tree.places - len(ahead)
        assert kinds[NEEDED] == len(ahead & search.tree.used)
        assert kinds[VAIN] == len(ahead - search.tree.used)
        assert shown.calls == len(search.asked) == search.calls


def test_the_tree_has_the_scores_of_stock_and_the_winner(tmp_path: Path) -> None:
    session = Session(generation_parser(None), arguments(tmp_path), reads=["beam"])
    words = session.task.source_dictionary, session.task.target_dictionary
    batches = session.batches(1)
    stock, _ = session.generator("stock", 3)
    for (_, source, search, ranked), sample in zip(
        beam_trace.searches(session, batches), batches, strict=True
    ):
        (expected,) = session.task.inference_step(stock, session.models, sample)
        wanted = [float(one["score"]) for one in expected]
        shown = beam_trace.trace(source, search, ranked, words)
        pieces = [piece for line in shown.iterations for piece in line]
        ended = [piece for piece in pieces if piece.kind in (ENDED, WINNER)]
        scores = sorted((float(piece.text.split()[1]) for piece in ended), reverse=True)
        assert scores == pytest.approx(wanted, abs=0.0051)
        # The first line is the winner's: its tokens, and its score behind the last one.
        assert [piece.kind for piece in ended] == [WINNER] + [ENDED] * (len(ended) - 1)
        first = shown.iterations[0]
        own = "".join(piece.text for piece in first if piece.kind in (AWAITED, NEEDED))
        assert own.split()[1:] == words[1].string(expected[0]["tokens"]).split()
        assert first[-1].text == f"</s> {wanted[0]:.2f} winner"
        # A prefix that left the beam has the sum of its log-probabilities.
        sums = {f" {total:.2f}" for total in search.tree.totals.values()}
        left = {piece.text for piece in pieces if piece.kind == SCORE}
        assert left and left <= sums


def test_the_tool_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "tree.html"
    given = [*arguments(tmp_path / "data"), "--decoding", "beam", "--report", str(page)]
    trace_tool.main([*given, "--sentences", "2", "0"])
    text = page.read_text(encoding="utf-8")
    assert (
        "One line is one branch of the tree" in text
        and '<strong class="awaited" data-call="1">' in text
    )
    assert "Speed against stock fairseq" in text and "fairseq beam 3" in text
    assert "decoder calls" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--sentences 7"):
        trace_tool.main([*given, "--sentences", "7", "--overwrite"])


@pytest.mark.parametrize("options", [["--sampling"], ["--beam", "1"]], ids=str)
def test_where_there_is_no_tree(options: list[str], tmp_path: Path) -> None:
    given = [*arguments(tmp_path / "data"), "--decoding", "beam", *options, "--no-speed"]
    with pytest.raises(SystemExit, match="there is no tree to show: with --beam 1"):
        trace_tool.main([*given, "--report", str(tmp_path / "tree.html")])


def test_a_page_is_not_replaced_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [*arguments(tmp_path / "data"), "--decoding", "beam", "--sentences", "0", "--no-speed"]
    (tmp_path / "report.html").write_text("precious")
    (tmp_path / "old.html").write_text("precious")
    with pytest.raises(SystemExit, match=r"--report old\.html is there already"):
        trace_tool.main([*given, "--report", "old.html"])
    trace_tool.main(given)
    assert "The same as a page: report-2.html" in capsys.readouterr().out
    for name in ("report.html", "old.html"):
        assert (tmp_path / name).read_text() == "precious"
    trace_tool.main([*given, "--report", "old.html", "--overwrite"])
    assert "Beam search" in (tmp_path / "old.html").read_text()
