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
from tests.serving import live

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


def test_the_service_knows_the_languages(tmp_path: Path) -> None:
    data = write_text(tmp_path, ["de", "en", "fr"])
    flags = shlex.split("--langs de,en,fr --lang-pairs de-en,en-fr --decoder-langtok")
    path = write_model(tmp_path / "model.pt", data, TASK, "transformer", *flags, *SIZES)
    model = from_pretrained(path, data, beam=2, max_len_b=14)
    line = sentences()[0]
    with live(model) as client:
        said = client.get("/languages").json()
        assert said[0] == {"code": "de", "name": "de", "targets": ["en", "fr"]}
        assert [one["code"] for one in said] == ["de", "en", "fr"]
        for source, target in (("de", "en"), ("en", "fr"), ("fr", "de")):
            body = {"q": line, "source": source, "target": target}
            found = client.post("/translate", json=body).json()
            (expected,) = model.translate([line], source_lang=source, target_lang=target)
            assert found == {"translatedText": expected}
        body = {"q": line, "source": "de", "target": "uk"}
        assert client.post("/translate", json=body).status_code == 400
