"""Dictionaries read at once are those that fairseq reads line by line, refusals included."""

from __future__ import annotations

from pathlib import Path

import pytest
from fairseq.data import Dictionary

from fairseq_aggdec.tasks.dictionaries import WholeDictionary

TEXTS = {
    "plain": "a 3\nb 2\n▁с 1\n",
    "spaces": "a b 3\n  4\n",
    "overwritten": "a 3\na 5 #fairseq:overwrite\nb 1\n",
    "special": "<unk> 3 #fairseq:overwrite\na 1\n",
    "twice": "a 3\na 4\n",
    "known": "<pad> 3\n",
    "no count": "a\n",
    "other count": "a b\n",
    "empty": "",
    "no last line end": "a 3\nb 2",
    "windows": "a 3\r\nb 2\r\n",
    "words of other lines": "5 6 1\n7\n",
    "no symbol": " 3\n",
    "separators": "a\u2028b 1\nc\x0bd 2\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_as_fairseq_reads_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "dict.txt"
    path.write_text(text, encoding="utf-8")
    found: list[object] = []
    for kind in (Dictionary, WholeDictionary):
        try:
            made = kind.load(str(path))
            found.append((made.symbols, made.count, made.indices, made.unk_index, len(made)))
        except Exception as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]


def test_symbols_of_equal_files_are_in_memory_once(tmp_path: Path) -> None:
    for name in ("dict.a.txt", "dict.b.txt"):
        (tmp_path / name).write_text("one 3\ntwo 2\n", encoding="utf-8")
    first, second = (WholeDictionary.load(str(path)) for path in sorted(tmp_path.iterdir()))
    assert all(a is b for a, b in zip(first.symbols[4:], second.symbols[4:], strict=True))
    first.add_symbol("three")
    assert first != second
    assert len(second) == 6
