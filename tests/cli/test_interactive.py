"""fairseq-interactive with our decoders, on a tiny model."""

from __future__ import annotations

import pytest

from tests.cli.commands import (
    Result,
    Trained,
)

# -- fairseq-interactive

SPECIAL_LINES = {
    "empty": "",
    "blank": "   ",
    "one token": "be",
    "unknown only": "never heard of it",
    "special symbols": "be </s> de <unk> fe <pad> ge <s>",
    "as long as possible": " ".join(["be", "do"] * 19),
}


@pytest.mark.parametrize("decoding", ["greedy", "iad"])
def test_interactive_answers_every_line(trained: Trained, decoding: str) -> None:
    lines = [*trained.source()[:7], *SPECIAL_LINES.values()]
    stdin = "\n".join(lines) + "\n"
    for options in (
        [],
        ["--buffer-size", "5", "--batch-size", "3"],
        ["--buffer-size", "100", "--max-tokens", "50"],
    ):
        found, expected = (trained.interactive(d, stdin, *options) for d in (decoding, "stock"))
        assert list(found.lines("S")) == [str(i) for i in range(len(lines))]
        assert found.lines("S") == expected.lines("S")
        assert found.texts() == expected.texts()
        assert found.texts("H") == expected.texts("H")


def test_interactive_without_a_last_newline_or_without_any_line(trained: Trained) -> None:
    assert len(trained.interactive("iad", "be de\nfe ge").texts()) == 2
    assert trained.interactive("iad", "").texts() == {}


def test_interactive_reads_a_file(trained: Trained, stock: Result) -> None:
    found = trained.interactive(
        "iad", "", "--input", trained.folder / "test.src", "--buffer-size", "64"
    )
    assert found.texts() == stock.texts()


def test_a_line_that_is_too_long(trained: Trained) -> None:
    """Stock stops with a message that names the flag, and with that flag leaves the line out; so do we."""
    stdin = "be de\n" + "be " * 60 + "\nfe\n"
    for decoding in ("stock", "iad"):
        with pytest.raises(Exception, match="--skip-invalid-size-inputs-valid-test"):
            trained.interactive(decoding, stdin)
    options = ["--skip-invalid-size-inputs-valid-test", "--buffer-size", "3", "--batch-size", "3"]
    found, expected = (trained.interactive(d, stdin, *options) for d in ("iad", "stock"))
    assert list(found.texts()) == ["0", "2"]
    assert found.texts() == expected.texts()
