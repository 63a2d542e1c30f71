"""``from_pretrained`` with a model of many languages, and the languages of one call."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path

import pytest

from fairseq_aggdec import from_pretrained
from tests.pipelines.making import (
    BATCHES,
    SIZES,
    forgotten,
    sentences,
    stock,
    write_model,
    write_text,
)

TASK = "translation_multi_simple_epoch"
STYLES = {
    "tags before the output": "--encoder-langtok src --decoder-langtok",
    "tags for bos and eos": "--encoder-langtok src --decoder-langtok --lang-tok-replacing-bos-eos",
    "tags of the source only": "--encoder-langtok tgt",
}


@pytest.mark.parametrize("style", STYLES)
def test_languages_of_a_call(style: str, tmp_path: Path) -> None:
    data = write_text(tmp_path, ["de", "en"])
    flags = shlex.split(f"--langs de,en --lang-pairs de-en,en-de {STYLES[style]}")
    path = write_model(tmp_path / "model.pt", data, TASK, "transformer", *flags, *SIZES)
    with forgotten():
        model = from_pretrained(path, data, beam=4, max_len_b=14)
    expected = {}
    for source, target in (("de", "en"), ("en", "de")):
        command = [data, "--path", path, *BATCHES, "--beam", "4", "--max-len-b", "14"]
        languages = ["-s", source, "-t", target, "--task", TASK, *flags]
        found = stock(*command, *languages).nbest
        texts = {int(name): text for name, _, text in found}
        expected[target] = [texts[number] for number in range(len(texts))]
    assert expected["de"] != expected["en"]
    lines = sentences()
    assert model.languages == ("de", "en")
    assert model.translate(lines) == expected["en"]
    other = {"source_lang": "en", "target_lang": "de"}
    assert model.translate(lines, **other) == expected["de"]
    assert model.translate(lines) == expected["en"]
    # What the model writes anyway is what it writes after it was forced to begin so.
    starts = [" ".join(text.split()[:1]) for text in expected["de"]]
    begun = model.translate(lines, beam=1, prefix=starts, **other)
    assert [text.split()[:1] for text in begun] == [start.split() for start in starts]
    assert model.translate(lines, beam=1, prefix=[""] * len(lines), **other) == model.translate(
        lines, beam=1, **other
    )
    with pytest.raises(ValueError, match="target_lang='fr': this model has de, en"):
        model.translate(lines, target_lang="fr")
    found: dict[str, list[str]] = {}

    def translate(target: str) -> None:
        source = {"en": "de", "de": "en"}[target]
        found[target] = model.translate(lines, 2, source_lang=source, target_lang=target)

    threads = [threading.Thread(target=translate, args=(target,)) for target in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
