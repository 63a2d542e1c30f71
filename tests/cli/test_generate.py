"""fairseq's own commands with our decoders: preprocess, train, generate, interactive and validate on a tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fairseq_cli import generate, preprocess

from fairseq_aggdec.engine.linear import against_bfloat16
from fairseq_aggdec.pipelines import takeover
from fairseq_aggdec.stored.loading import CheckpointError
from tests.cli.commands import (
    CUT,
    LONG_DRAFTS,
    PLUGIN,
    SENTENCES,
    Result,
    Trained,
    edited,
    preprocess_arguments,
    run,
    run_process,
)

# -- fairseq-generate


@pytest.mark.parametrize("decoding", ["greedy", "iad"])
def test_output_equals_stock(trained: Trained, stock: Result, decoding: str) -> None:
    found = trained.generate(decoding)
    assert found.texts() == stock.texts()
    for kind in "ST":
        assert found.lines(kind) == stock.lines(kind)
    assert len(found.lines("D")) == SENTENCES["test"]
    for name, line in stock.lines("P").items():
        ours = list(map(float, found.lines("P")[name].split()))
        assert ours == pytest.approx(list(map(float, line.split())), abs=2e-3)
        score = float(found.lines("H")[name].split("\t")[0])
        assert score == pytest.approx(float(stock.lines("H")[name].split("\t")[0]), abs=1e-3)
    assert re.search(r"^Generate test with beam=1: BLEU4 = ", found.stdout, re.MULTILINE)


def test_processes_share_a_test_set(trained: Trained, stock: Result) -> None:
    """The command of docs/gpu.md for several GPUs."""
    shared = [
        trained.generate("greedy", "--num-shards", "2", "--shard-id", str(part)).texts()
        for part in range(2)
    ]
    assert all(shared) and not shared[0].keys() & shared[1].keys()
    assert shared[0] | shared[1] == stock.texts()


def test_the_model_has_learnt_its_task(trained: Trained, stock: Result) -> None:
    """Or else the comparisons above would say little."""
    right = [" ".join(edited(line.split())) for line in trained.source()]
    assert (
        sum(stock.texts()[str(i)] == text for i, text in enumerate(right)) > SENTENCES["test"] // 2
    )


def test_default_beam_is_taken_as_one(trained: Trained, stock: Result) -> None:
    found = trained.generate("iad", "--beam", "5")
    assert found.texts() == stock.texts()
    assert "with beam=1" in found.stdout
    assert len(found.logged("--beam 5 is taken as --beam 1")) == 1


def test_beam_search_is_stock(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [
        "--task",
        "translation",
        "--path",
        trained.checkpoint,
        "--cpu",
        "--num-workers",
        "0",
        "--no-progress-bar",
        "--batch-size",
        "7",
    ]
    with monkeypatch.context() as patch:  # other tests of this process have asked for the plugin
        patch.setattr(takeover, "is_enabled", lambda: False)
        expected = run(
            generate.cli_main, trained.data, *plain, *CUT, "--required-batch-size-multiple", "1"
        )
    found = trained.generate("stock", "--beam", "5")
    assert found.lines("D") == expected.lines("D")


def test_bfloat16(trained: Trained, stock: Result) -> None:
    """fairseq's generation ignores --bf16; ours takes it, whatever decodes."""
    found = [trained.generate(decoding, "--bf16") for decoding in ("stock", "greedy", "iad")]
    for result in found:
        assert result.lines("P") != stock.lines("P")
        reason = against_bfloat16()
        assert (reason is None) == (not result.logged("faster here than --bf16"))
        assert reason is None or result.logged(reason)
        same = sum(result.texts()[name] == text for name, text in stock.texts().items())
        assert same > 0.9 * SENTENCES["test"]  # a near tie may turn
        for name, text in stock.texts().items():
            if result.texts()[name] == text:
                score = float(result.lines("H")[name].split("\t")[0])
                expected = float(stock.lines("H")[name].split("\t")[0])
                assert score == pytest.approx(expected, abs=0.1)


def test_batch_size_does_not_matter(trained: Trained, stock: Result) -> None:
    for size in ("1", "64"):
        assert trained.generate("iad", "--batch-size", size).texts() == stock.texts()
    assert (
        trained.generate("iad", "--batch-size", "64", "--max-tokens", "60").texts() == stock.texts()
    )


def test_steps(trained: Trained, stock: Result) -> None:
    tokens = {name: len(text.split()) + 1 for name, text in stock.texts("H").items()}
    greedy = {
        name: int(n) for name, n in trained.generate("greedy", "--print-step").lines("I").items()
    }
    assert greedy == tokens
    iad = {name: int(n) for name, n in trained.generate("iad", "--print-step").lines("I").items()}
    assert iad.keys() == tokens.keys()
    assert all(1 <= iad[name] <= tokens[name] for name in tokens)
    assert sum(iad.values()) < 0.6 * sum(tokens.values())


def test_history(trained: Trained) -> None:
    found = trained.generate("iad", "--print-step", "--retain-iter-history")
    for name, steps in found.lines("I").items():
        shown = [found.lines("E")[f"{name}_{step}"] for step in range(int(steps))]
        source = found.lines("S")[name]
        assert source.startswith(shown[0])  # nothing is committed yet, the source is drafted
        assert shown[0]
    assert len(found.lines("E")) == sum(map(int, found.lines("I").values()))


def test_results_path(trained: Trained, stock: Result, tmp_path: Path) -> None:
    found = trained.generate("iad", "--results-path", tmp_path, "--print-step")
    assert not found.lines("D")
    written = Result((tmp_path / "generate-test.txt").read_text(), [])
    assert written.texts() == stock.texts()
    assert len(written.lines("I")) == SENTENCES["test"]


@pytest.mark.parametrize(
    "option", [["--remove-bpe"], ["--post-process", "subword_nmt"]], ids=" ".join
)
def test_subwords_are_joined(trained: Trained, option: list[str]) -> None:
    found = trained.generate("iad", *option)
    assert found.texts() == trained.generate("stock", *option).texts()
    assert "@@" not in " ".join([*found.texts().values(), *found.lines("S").values()])


def test_replace_unk(trained: Trained, tmp_path: Path) -> None:
    """Stock shows the raw text then; it cannot replace a word (it takes the pairs of an alignment for numbers)."""
    arguments = [*preprocess_arguments(trained.folder, tmp_path), "--dataset-impl", "raw"]
    run(preprocess.cli_main, *arguments, "--srcdict", trained.data / "dict.src.txt")
    (tmp_path / "align.txt").write_text("ba bo\n")
    options = [
        "--dataset-impl",
        "raw",
        "--replace-unk",
        str(tmp_path / "align.txt"),
        "--unkpen",
        "30",
    ]
    found, expected = (trained.generate(d, *options, data=tmp_path) for d in ("iad", "stock"))
    assert found.texts() == expected.texts()
    assert found.lines("S") == expected.lines("S")
    assert found.lines("S")["6"] == "never heard"
    with pytest.raises(IndexError):
        trained.generate("stock", *options[:-1], "-30", data=tmp_path)


def test_score_reference(trained: Trained) -> None:
    found, expected = (trained.generate(d, "--score-reference") for d in ("iad", "stock"))
    assert found.lines("P") == expected.lines("P")
    assert found.texts("H") == expected.texts("H")


@pytest.mark.parametrize("size", ["1", "4", "30"])
def test_prefixes_from_the_reference(trained: Trained, size: str) -> None:
    found, expected = (trained.generate(d, "--prefix-size", size) for d in ("iad", "stock"))
    assert found.texts() == expected.texts()
    for name, target in found.lines("T").items():
        if "unk" not in target:
            wanted = target.split()[: int(size)]
            assert found.texts()[name].split()[: len(wanted)] == wanted


def test_shards_add_up(trained: Trained, stock: Result) -> None:
    union: dict[str, str] = {}
    for rank in ("0", "1"):
        shard = trained.generate(
            "iad", "--distributed-world-size", "2", "--distributed-rank", rank
        ).texts()
        assert not union.keys() & shard.keys()
        union |= shard
    assert union == stock.texts()


def test_summary_ends_the_log(trained: Trained, stock: Result) -> None:
    arguments = [
        *PLUGIN,
        "--decoding",
        "iad",
        "--path",
        trained.checkpoint,
        "--cpu",
        "--batch-size",
        "7",
        *LONG_DRAFTS,
        *CUT,
    ]
    done = run_process("generate", trained.data, *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    assert Result(done.stdout, []).texts() == stock.texts()
    last = done.stderr.strip().splitlines()[-1]
    tokens = sum(len(text.split()) + 1 for text in stock.texts("H").values())
    assert re.search(
        rf"decoding summary: {SENTENCES['test']} sentences, {tokens} tokens, \d+ iterations, ", last
    )
    accepted = re.search(r"mean accepted tokens ([\d.]+)", last)
    assert accepted is not None
    assert float(accepted[1]) > 1.5


def test_second_checkpoint_of_an_ensemble_is_checked_too(trained: Trained, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"broken\.pt"):
        trained.generate("iad", path=f"{trained.checkpoint}:{broken}")
