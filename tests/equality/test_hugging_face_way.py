"""From a multilingual model of Hugging Face to packed weights at every door; generate of transformers is the oracle."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec import from_pretrained
from fairseq_aggdec.convert.checkpoint import convert
from fairseq_aggdec.convert.folder import read
from fairseq_aggdec.convert.pack import pack
from fairseq_aggdec.convert.vocabulary import languages, sides
from tests import hugging_face_folders as folders
from tests.equality.test_convert import LIMIT, EndsAt
from tests.serving import live

pytest.importorskip("transformers")
WORDS = sorted({word for line in folders.LINES for word in line.split()})
CHANCE = random.Random(7)
SENTENCES = [" ".join(CHANCE.choices(WORDS, k=CHANCE.randint(1, 9))) for _ in range(200)]
PAIRS = {
    "m2m_100": [("en", "fr"), ("fr", "de"), ("zh", "en")],
    "nllb": [("eng_Latn", "fra_Latn"), ("deu_Latn", "ukr_Cyrl"), ("fra_Latn", "zho_Hans")],
}
SEEDS = {"m2m_100": 1, "nllb": 2}
# Number of the language pair, beam, options of ours.
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "greedy": (0, 1, {"decoding": "greedy"}),
    "greedy, n-grams": (1, 1, {"decoding": "greedy", "no_repeat_ngram_size": 2}),
    "beam 1": (2, 1, {}),
    "beam 2": (1, 2, {"no_repeat_ngram_size": 3}),
    "beam 3": (0, 3, {"lenpen": 0.0}),
    "beam 4": (2, 4, {"lenpen": 0.6, "no_repeat_ngram_size": 2}),
    "beam 5": (1, 5, {"lenpen": 2.0}),
}


@dataclass(frozen=True)
class Way:
    """A model of transformers, and the packed folder that was made of it.

    Attributes:
        rows: of the model's tables, by index of fairseq's dictionary.
    """

    kind: str
    model: Any
    tokenizer: Any
    packed: Path
    rows: Tensor

    def language(self, code: str) -> int:
        token = f"__{code}__" if self.kind == "m2m_100" else code
        return int(self.tokenizer.convert_tokens_to_ids(token))


@pytest.fixture(scope="module", params=PAIRS)
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Way:
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    model, tokenizer = folders.make(kind, folder / "hf", SEEDS[kind])
    (folder / "hf" / "model.safetensors").unlink()
    model.save_pretrained(folder / "hf", max_shard_size="20KB")
    index = json.loads((folder / "hf" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert sum("embed_tokens" in name or "lm_head" in name for name in index["weight_map"]) == 0
    convert(folder / "hf", folder / "fairseq", *PAIRS[kind][0])
    pack(folder / "fairseq" / "model.pt", folder / "fairseq", folder / "packed", "fp32")
    rows = torch.tensor(sides(read(folder / "hf"))[1].rows)
    shutil.rmtree(folder / "fairseq")  # the packed folder has all that is needed
    return Way(kind, model, tokenizer, folder / "packed", rows)


class StartsWith:
    """fairseq's way to force the first token: it keeps its score, where transformers gives it 0."""

    def __init__(self, token: int):
        self.token = token

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        if tokens.size(1) > 1:
            return scores
        found = torch.full_like(scores, float("-inf"))
        found[:, self.token] = scores[:, self.token]
        return found


def generated(way: Way, pair: tuple[str, str], beam: int, options: dict[str, Any]) -> list[Any]:
    """The tokens that transformers writes, without ``</s>`` and languages, which a random model writes anywhere."""
    way.tokenizer.src_lang, end = pair[0], way.model.config.eos_token_id
    batch = way.tokenizer(SENTENCES, return_tensors="pt", padding=True)
    searched = {"num_beams": beam, "length_penalty": options.get("lenpen", 1.0)}
    found = way.model.generate(
        **batch,
        max_new_tokens=LIMIT + 1,
        no_repeat_ngram_size=options.get("no_repeat_ngram_size", 0),
        logits_processor=[StartsWith(way.language(pair[1])), EndsAt(LIMIT, end)],
        suppress_tokens=[way.model.config.pad_token_id],
        do_sample=False,
        **(searched | {"early_stopping": True} if beam > 1 else {}),
    )
    said = set(map(way.language, languages(read(way.packed.parent / "hf"))))
    texts = [row[2 : row.index(end, 1)] for row in found.tolist()]
    return [[token for token in text if token not in said] for text in texts]


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_generate(way: Way, case: str) -> None:
    number, beam, options = CASES[case]
    source, target = pair = PAIRS[way.kind][number]
    translator = from_pretrained(way.packed, beam=beam, max_len_b=LIMIT, device="cpu", **options)
    found = translator.generate(SENTENCES, source_lang=source, target_lang=target)
    dictionary = translator.task.target_dictionary
    written = [way.rows[[dictionary.index(x) for x in one.tokens]].tolist() for (one,) in found]
    expected = generated(way, pair, beam, options)
    assert len(set(map(tuple, expected))) > 20
    assert written == expected


def test_scores_are_log_probabilities_of_the_model(way: Way) -> None:
    source, target = PAIRS[way.kind][1]
    way.tokenizer.src_lang, way.tokenizer.tgt_lang = source, target
    translator = from_pretrained(way.packed, device="cpu")
    given = SENTENCES[:40], SENTENCES[40:80]
    found = translator.score(*given, source_lang=source, target_lang=target)
    for text, wanted, one in zip(*given, found, strict=True):
        batch = way.tokenizer(text, return_tensors="pt")
        labels = way.tokenizer(text_target=wanted, return_tensors="pt")["input_ids"]
        start = torch.full((1, 1), way.model.config.decoder_start_token_id)
        with torch.no_grad():
            logits = way.model(**batch, decoder_input_ids=torch.cat([start, labels[:, :-1]], 1))[0]
        expected = logits.log_softmax(-1)[0].gather(1, labels[0, :, None])[:, 0]
        scores = torch.tensor(one.token_scores)
        torch.testing.assert_close(scores, expected[-len(scores) :], atol=1e-4, rtol=0)
        assert len(scores) >= len(expected) - 1  # without that of the language, which is forced


def test_service_and_stream_in_all_languages(way: Way) -> None:
    """What Python translates at once, of a stream of lines and by requests for any two languages."""
    translator = from_pretrained(way.packed, beam=3, max_len_b=LIMIT, device="cpu")
    codes = {
        line.split()[0] for line in (way.packed / "languages.txt").read_text().splitlines() if line
    }
    with live(translator) as client:
        assert {one["code"] for one in client.get("/languages").json()} == codes
        for source, target in PAIRS[way.kind]:
            pair = {"source_lang": source, "target_lang": target}
            expected = translator.translate(SENTENCES[:30], **pair)
            request = {"q": SENTENCES[:30], "source": source, "target": target}
            assert client.post("/translate", json=request).json()["translatedText"] == expected
            streamed = translator.stream(iter(SENTENCES[:30]), 8, 2, **pair)
            assert list(streamed) == expected
