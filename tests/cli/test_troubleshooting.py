"""What docs/troubleshooting.md says of fairseq's own commands is so."""

from __future__ import annotations

from pathlib import Path

from tests.cli.commands import CUT, PLUGIN, ROOT, Result, Trained, run_process

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
USER_DIR = PLUGIN[:2]


def generate(trained: Trained, *options: str | Path) -> tuple[int, Result, str]:
    """Plain fairseq-generate on the test set with beam 1: status, output, errors."""
    done = run_process(
        "generate",
        *(trained.data, "--path", trained.checkpoint, "--cpu", "--num-workers", "0"),
        *("--no-progress-bar", "--beam", "1", "--required-batch-size-multiple", "1", *CUT),
        *options,
    )
    return done.returncode, Result(done.stdout, []), done.stderr


def test_stock_code_loads_checkpoints_with_the_plugin_only(trained: Trained, stock: Result) -> None:
    status, _, errors = generate(trained, "--task", "translation")
    assert status != 0 and "Weights only load failed" in errors
    assert "`Weights only load failed`" in PAGE
    status, found, errors = generate(trained, *USER_DIR, "--decoding", "stock")
    assert status == 0, errors
    assert found.texts() == stock.texts()


def test_without_the_user_dir_fairseq_knows_no_options(trained: Trained) -> None:
    status, _, errors = generate(trained, "--decoding", "iad")
    assert status == 2
    assert errors.endswith("unrecognized arguments: --decoding iad\n")
    assert "`unrecognized arguments: --decoding`" in PAGE


def test_a_user_dir_of_ones_own_brings_the_plugin(
    trained: Trained, stock: Result, tmp_path: Path
) -> None:
    own = tmp_path / "own_plugin"
    own.mkdir()
    lines = "import fairseq_aggdec\n\nfairseq_aggdec.adopt()\n"
    assert f"```python\n{lines}```" in PAGE
    (own / "__init__.py").write_text(lines)
    status, found, errors = generate(trained, "--user-dir", own, "--decoding", "iad")
    assert status == 0, errors
    assert "decoding summary" in errors
    assert found.texts() == stock.texts()
