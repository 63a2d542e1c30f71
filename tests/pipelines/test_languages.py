"""``from_pretrained`` with a model of many languages, and the languages of one call."""

from __future__ import annotations

import math
import pickle
import shlex
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec import Translator, from_pretrained
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
APART = "multilingual_translation"
SEVERAL = (TASK, "transformer", "--langs de,en ")
OF_PAIRS = (APART, "multilingual_transformer", "")
# Task, model and options of the languages.
STYLES = {
    "tags before the output": (*SEVERAL, "--encoder-langtok src --decoder-langtok"),
    "tags for bos and eos": (
        *SEVERAL,
        "--encoder-langtok src --decoder-langtok --lang-tok-replacing-bos-eos",
    ),
    "tags of the source only": (*SEVERAL, "--encoder-langtok tgt"),
    "a model for each": (*OF_PAIRS, ""),
    "one decoder": (
        *OF_PAIRS,
        "--share-decoders --share-decoder-input-output-embed --encoder-langtok tgt --decoder-langtok",
    ),
}


@pytest.mark.parametrize("style", STYLES)
def test_languages_of_a_call(style: str, tmp_path: Path) -> None:
    data = write_text(tmp_path, ["de", "en"])
    task, arch, langs, options = STYLES[style]
    flags = shlex.split(f"{langs}--lang-pairs de-en,en-de {options}")
    path = write_model(tmp_path / "model.pt", data, task, arch, *flags, *SIZES)
    flags = [flag for flag in flags if not flag.startswith("--share")]
    with forgotten():
        model = from_pretrained(path, data, beam=4, max_len_b=14)
    expected = {}
    for source, target in (("de", "en"), ("en", "de")):
        command = [data, "--path", path, *BATCHES, "--beam", "4", "--max-len-b", "14"]
        languages = ["-s", source, "-t", target, "--task", task, *flags]
        found = stock(*command, *languages).nbest
        texts = {int(name): text for name, _, text in found}
        expected[target] = [texts[number] for number in range(len(texts))]
    assert expected["de"] != expected["en"]
    lines = sentences()
    assert model.languages == ("de", "en")
    assert model.translate(lines) == expected["en"]
    other = {"source_lang": "en", "target_lang": "de"}
    model.translate(
        lines, beam=2, **other
    )  # calls with these languages to come keep the model's own beam
    assert model.translate(lines, **other) == expected["de"]
    assert model.translate(lines) == expected["en"]
    assert_scores(model, [*command[:3], *BATCHES, "--task", task, *flags])
    # What the model writes anyway is what it writes after it was forced to begin so.
    starts = [" ".join(text.split()[:1]) for text in expected["de"]]
    begun = model.translate(lines, beam=1, prefix=starts, **other)
    assert [text.split()[:1] for text in begun] == [start.split() for start in starts]
    assert model.translate(lines, beam=1, prefix=[""] * len(lines), **other) == model.translate(
        lines, beam=1, **other
    )
    with pytest.raises(ValueError, match="target_lang='fr': this model has de, en"):
        model.translate(lines, target_lang="fr")
    with pytest.raises(ValueError, match="source_lang='fr': this model has de, en"):
        model.score(lines, lines, source_lang="fr")
    assert_served(model, lines[0], expected)
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


def assert_served(model: Translator, line: str, expected: dict[str, list[str]]) -> None:
    """The page offers the languages; outputs are in those that were asked for; none is guessed."""
    with live(model) as client:
        assert client.get("/").text.count("<option") == 4
        for target, source in (("de", "en"), ("en", "de")):
            body = {"sentences": line, "source_lang": source, "target_lang": target}
            ((best, *_),) = client.post("/generate", json=body).json()["hypotheses"]
            assert best["text"] == expected[target][0]
        answer = client.post("/translate", json={"q": line, "source": "auto", "target": "de"})
        assert answer.json() == {"error": "auto is not supported: this model reads de, en"}


def assert_scores(model: Translator, command: list[Any]) -> None:
    """In both directions those of ``fairseq-generate --score-reference``, whose references are the sources.

    With a model for each direction stock fairseq cannot do so. There a hypothesis, which has stock's score, must have
    the same one as a given output.
    """
    lines = sentences()
    for source, target in (("de", "en"), ("en", "de"), ("de", "en")):
        call = {"source_lang": source, "target_lang": target}
        scored = model.score(lines, lines, **call)
        assert [one.text for one in scored] == lines
        if APART not in command:
            found = stock(*command, "-s", source, "-t", target, "--score-reference").nbest
            wanted = {int(name): score * math.log(2) for name, score, _ in found}  # from bits
            assert [one.score for one in scored] == pytest.approx(
                [wanted[number] for number in range(len(lines))], abs=1e-4
            )
        ranked = model.generate(lines, attention=True, **call)
        again = model.score(lines, [one.text for one, *_ in ranked], attention=True, **call)
        alike = 0
        for [best, *_], one in zip(ranked, again, strict=True):
            if one.tokens != best.tokens:  # the text leaves out <s>, which a random model may write
                continue
            alike += 1
            assert one.score == pytest.approx(best.score, abs=1e-4)
            assert best.attention is not None and one.attention is not None
            torch.testing.assert_close(best.attention, one.attention)
        assert alike > len(lines) // 2


def test_directions_that_were_not_trained(tmp_path: Path) -> None:
    """Each language has a dictionary of its own."""
    data = write_text(tmp_path, ["de", "en", "fr"])
    words = (data / "dict.fr.txt").read_text().splitlines()
    (data / "dict.fr.txt").write_text("\n".join([*words[::-1], "chat 1", ""]))
    flags = shlex.split("--lang-pairs de-en,en-fr")
    path = write_model(tmp_path / "model.pt", data, APART, OF_PAIRS[1], *flags, *SIZES)
    with forgotten():
        model = from_pretrained(path, data, beam=2, max_len_b=14)
    line = sentences()[0]
    assert len(model.task.dicts["fr"]) == len(model.task.dicts["en"]) + 1
    to_french = {"source_lang": "en", "target_lang": "fr"}
    (french,) = model.translate([line], **to_french)
    with forgotten():
        own = from_pretrained(path, data, beam=2, max_len_b=14, **to_french)
    assert own.translate([line]) == [french] and model.translate([line]) != [french]
    assert model.translate([line], prefix="chat", **to_french)[0].startswith("chat")
    again = pickle.loads(pickle.dumps(model))
    assert again.translate([line], **to_french) == [french]
    for wrong in ({"target_lang": "fr"}, {"source_lang": "en", "target_lang": "de"}):
        with pytest.raises(ValueError, match="this model translates de-en, en-fr"):
            model.translate([line], **wrong)
    with pytest.raises(ValueError, match="source_lang='fr', target_lang='de': this model transl"):
        from_pretrained(path, data, source_lang="fr", target_lang="de")
    with live(model) as client:
        targets = {one["code"]: one["targets"] for one in client.get("/languages").json()}
        assert targets == {"de": ["en"], "en": ["fr"], "fr": []}
        body = {"q": line, "source": "en", "target": "fr"}
        assert client.post("/translate", json=body).json() == {"translatedText": french}
        answer = client.post("/translate", json=body | {"source": "fr", "target": "de"})
        assert answer.status_code == 400
        pair = {"sentences": line, "targets": french, **to_french}
        (scored,) = model.score([line], [french], **to_french)
        found = client.post("/generate", json=pair).json()["hypotheses"][0][0]
        assert found["score"] == pytest.approx(scored.score)


def test_the_service_knows_the_languages(tmp_path: Path) -> None:
    data = write_text(tmp_path, ["de", "en", "fr"])
    flags = shlex.split("--langs de,en,fr --lang-pairs de-en,en-fr --decoder-langtok")
    path = write_model(tmp_path / "model.pt", data, TASK, "transformer", *flags, *SIZES)
    model = from_pretrained(path, data, beam=2, max_len_b=14)
    line = sentences()[0]
    with live(model) as client:
        said = client.get("/languages").json()
        assert said[0] == {"code": "de", "name": "German", "targets": ["en", "fr"]}
        assert [one["code"] for one in said] == ["de", "en", "fr"]
        for source, target in (("de", "en"), ("en", "fr"), ("fr", "de")):
            body = {"q": line, "source": source, "target": target}
            found = client.post("/translate", json=body).json()
            (expected,) = model.translate([line], source_lang=source, target_lang=target)
            assert found == {"translatedText": expected}
        body = {"q": line, "source": "de", "target": "uk"}
        assert client.post("/translate", json=body).status_code == 400
