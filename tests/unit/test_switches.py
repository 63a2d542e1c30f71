"""Which kernels may run, as the environment says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairseq_aggdec.kernels import library
from fairseq_aggdec.kernels.switches import DEPENDENT, GPU_KERNELS, INSTRUCTIONS, VARIABLE, switches

BEST = INSTRUCTIONS[-1]


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    library.kernels.cache_clear()
    yield
    library.kernels.cache_clear()


@pytest.mark.parametrize(
    ("words", "best", "off", "forced"),
    [
        ("", BEST, "", ""),
        ("avx2", "avx2", "", ""),
        ("none", BEST, "cpu gpu", ""),
        ("no-cpu", BEST, "cpu", ""),
        ("no-gpu", BEST, "gpu", ""),
        ("plain, no-look,no-attend_slots,", "plain", "look attend_slots", ""),
        ("product, no-cpu, dependent", BEST, "cpu", "product dependent"),
        ("all, no-look", BEST, "look", " ".join((DEPENDENT, *GPU_KERNELS))),
    ],
)
def test_words(
    words: str, best: str, off: str, forced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, words)
    assert switches() == (best, set(off.split()), set(forced.split()))
    assert "cpu" not in off or library.kernels() is None


@pytest.mark.parametrize("word", ["avx3", "no-all", "no-none", "no-lock", "no-"])
def test_an_unknown_word(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was meant, and not in silence."""
    monkeypatch.setenv(VARIABLE, f"plain,{word}")
    with pytest.raises(
        ValueError, match=f"'{word}' is none of plain, .*none, all, .*no-cpu, .*no-look"
    ):
        library.kernels()
