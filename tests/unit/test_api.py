"""The Python interface: outputs are stock fairseq's, in order, however they are batched; refusals name the way out."""

from __future__ import annotations

import inspect
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from fairseq.sequence_generator import SequenceGenerator

import fairseq_aggdec
from fairseq_aggdec import Translator
from fairseq_aggdec.api.text import JoinedPieces
from fairseq_aggdec.stored.loading import CheckpointError
from tests import warm

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "checkpoints" / "ua_gec"
CHECKPOINT = str(SHIPPED / "checkpoint.pt")
SPM = SHIPPED / "spm.model"
SENTENCES = (SHIPPED / "sample.src").read_text(encoding="utf-8").splitlines()[:23]


def load(**options: Any) -> Translator:
    return fairseq_aggdec.from_pretrained(
        CHECKPOINT,
        SHIPPED,
        **({"spm": SPM, "device": "cpu", "max_len_b": 60, "decoding": "iad", "beam": 1} | options),
    )


@pytest.fixture(scope="module")
def iad() -> Translator:
    return load()


@pytest.fixture(scope="module")
def stock() -> list[str]:
    """The oracle: stock fairseq with beam 1."""
    model = load(decoding="stock")
    assert type(model.generator) is SequenceGenerator
    assert model.generator.beam_size == 1
    return model.translate(SENTENCES, batch_size=8)


def test_equals_stock_in_order_whatever_the_batches(iad: Translator, stock: list[str]) -> None:
    assert len(set(stock)) == len(stock)
    for batch_size, lookahead in ((1, 1), (4, 2), (32, 16)):
        assert list(iad.stream(SENTENCES, batch_size, lookahead)) == stock
    assert iad.translate(SENTENCES) == stock


def test_whole_numbers_of_numpy_and_another_default_device(
    iad: Translator, stock: list[str]
) -> None:
    some = SENTENCES[:3]
    found = iad.translate(some, batch_size=np.int64(2), max_len_b=np.int32(60))  # type: ignore[arg-type]
    assert found == stock[:3]
    torch.set_default_device("meta")
    try:
        assert iad.translate(some) == stock[:3]
        assert load(beam=np.int64(1)).translate(some) == stock[:3]
    finally:
        torch.set_default_device(None)


def test_hypotheses_are_plain_and_true(iad: Translator, stock: list[str]) -> None:
    found = iad.generate(SENTENCES)
    reference = load(decoding="stock", beam=1).generate(SENTENCES)
    assert [ranked[0].text for ranked in found] == stock
    for (ours,), (theirs,) in zip(found, reference, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.token_scores == pytest.approx(theirs.token_scores, abs=1e-4)
        assert ours.score == pytest.approx(theirs.score, abs=1e-4)
        assert len(ours.token_scores) == len(ours.tokens) + 1
        assert ours.score == pytest.approx(sum(ours.token_scores) / len(ours.token_scores))
        assert ours.steps is not None and ours.mean_accepted == (len(ours.tokens) + 1) / ours.steps
        assert theirs.steps is None and theirs.mean_accepted is None


def test_beam_gives_n_best(iad: Translator) -> None:
    (ranked,) = load(decoding="beam", beam=4, nbest=3).generate(SENTENCES[:1])
    scores = [hypothesis.score for hypothesis in ranked]
    assert len(ranked) == 3 and scores == sorted(scores, reverse=True)
    with pytest.raises(ValueError, match="nbest=3: it must be 1 to beam, which is 2"):
        load(decoding="beam", beam=2, nbest=3)


def test_a_stream_reads_no_further_than_it_must(iad: Translator) -> None:
    read = []

    def endless() -> Iterator[str]:
        while True:
            read.append(SENTENCES[len(read) % 5])
            yield read[-1]

    stream = iad.stream(endless(), batch_size=2, lookahead=3)
    first = [next(stream) for _ in range(7)]
    assert len(read) == 12
    assert first[:5] == iad.translate(SENTENCES[:5])


def test_an_ensemble_is_two_paths(stock: list[str]) -> None:
    for path in ([CHECKPOINT, CHECKPOINT], f"{CHECKPOINT}:{CHECKPOINT}"):
        model = fairseq_aggdec.from_pretrained(path, SHIPPED, spm=SPM, device="cpu", max_len_b=60)
        assert len(model.models) == 2
        assert model.translate(SENTENCES[:3]) == stock[:3]


def test_text_is_what_the_checkpoint_says(tmp_path: Path, stock: list[str]) -> None:
    """A file that has moved since training is found beside the checkpoint."""
    state = torch.load(CHECKPOINT, weights_only=True)
    assert state["cfg"]["bpe"] is None
    state["cfg"]["bpe"] = {"_name": "sentencepiece", "sentencepiece_model": "/gone/spm.model"}
    torch.save(state, tmp_path / "model.pt")
    model = fairseq_aggdec.from_pretrained(
        tmp_path / "model.pt", SHIPPED, device="cpu", max_len_b=60
    )
    assert model.translate(SENTENCES[:3]) == stock[:3]
    state["cfg"]["bpe"]["sentencepiece_model"] = "/gone/other.model"
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(FileNotFoundError, match=r"other\.model, which is neither there nor beside"):
        fairseq_aggdec.from_pretrained(tmp_path / "model.pt", SHIPPED)


def test_pieces_in_pieces_out() -> None:
    pieces = "▁Я ▁знаю ▁що ▁ти ▁тут ▁."
    assert load(spm=None).translate([pieces]) == ["▁Я ▁знаю ▁, ▁що ▁ти ▁тут ▁."]
    marked = load(spm=None, post_process="sentencepiece")
    assert marked.translate([pieces]) == ["Я знаю , що ти тут ."]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"draft_token": 3}, TypeError, "no option 'draft_token': did you mean draft_tokens"),
        ({"bem": 5}, TypeError, "no option 'bem': did you mean beam"),
        ({"beam": 0}, ValueError, "--beam 0: it must be at least 1"),
        ({"beam": 0, "decoding": "stock"}, ValueError, "--beam 0: it must be at least 1"),
        ({"device": "cuda:99"}, ValueError, r"device='cuda:99': PyTorch finds \d+ GPUs here"),
        ({"device": "gpu"}, ValueError, "device='gpu': Expected one of cpu, cuda"),
        ({"qqqq": 3}, TypeError, "there are acceptance, bpe"),
        ({"decoding": "iadd"}, ValueError, "decoding='iadd': Invalid value"),
        ({"max_len_b": "many"}, ValueError, "max_len_b='many'"),
        ({"draft_tokens": True}, ValueError, "draft_tokens=True: it takes a number or a word"),
        ({"draft_tree": False}, ValueError, "draft_tree=False: it takes a number or a word"),
        ({"dtype": "int8"}, ValueError, "dtype='int8': there are fp32, fp16, bf16"),
        ({"dtype": torch.float64}, ValueError, "there are fp32, fp16, bf16"),
        ({"decoding": "gad"}, ValueError, "needs a drafter"),
        ({"decoding": "gad", "drafter_path": CHECKPOINT}, CheckpointError, "is no drafter"),
        ({"sampling": True}, ValueError, "--sampling does not go with --decoding iad"),
        ({"spm": "none.model"}, FileNotFoundError, "spm='none.model': there is no such file"),
        ({"bpe": SPM}, ValueError, "give one of them"),
        ({"tokenizer": "mosses"}, ValueError, "fairseq has moses"),
        ({"source_lang": "uk"}, FileNotFoundError, "dict.uk.txt"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refusals(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load(**options)


def test_what_cannot_be_translated(iad: Translator) -> None:
    with pytest.raises(TypeError, match="not one string"):
        iad.translate("Це добре .")
    for size in (0, None, "a", 2.5, True):
        for ask in (iad.translate, lambda lines, batch_size: iad.score(lines, lines, batch_size)):
            with pytest.raises(ValueError, match=f"batch_size={size!r}: it must be a whole"):
                ask(["Це добре ."], batch_size=size)  # type: ignore[operator]
    assert iad.translate(SENTENCES[:2], batch_size=10**30) == iad.translate(SENTENCES[:2])
    with pytest.raises(TypeError, match="attention='no': it must be True or False"):
        iad.score(SENTENCES[:1], SENTENCES[:1], attention="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give a list of sentences, not None"):
        iad.translate(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sentence 1 has .* the model reads at most 1024"):
        iad.translate(["Це добре .", "я " * 1100])
    with pytest.raises(FileNotFoundError, match=r"none\.pt does not exist"):
        fairseq_aggdec.from_pretrained("none.pt", SHIPPED)
    assert iad.translate([]) == []


@pytest.mark.parametrize(
    ("sentence", "error", "message"),
    [
        (None, TypeError, "sentence 2 is None of type NoneType, not a string$"),
        (float("nan"), TypeError, "sentence 2 is nan of type float, not a string$"),
        (7, TypeError, "sentence 2 is 7 of type int, not a string$"),
        (b"abc", TypeError, "sentence 2 is b'abc' of type bytes, not a string: decode it first$"),
        ("a\ud800", ValueError, "sentence 2 is no Unicode text: character 1 is half a surrogate"),
    ],
    ids=repr,
)
def test_what_is_no_text_is_named(
    iad: Translator, sentence: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        iad.translate([SENTENCES[0], SENTENCES[1], sentence])
    with pytest.raises(TypeError, match="give a list of sentences"):
        iad.translate(b"abc")  # type: ignore[arg-type]


def test_bytes_of_a_character_are_joined(tmp_path: Path) -> None:
    """A model of sentencepiece with byte fallback writes characters that it does not know byte by byte."""
    text = tmp_path / "text"
    text.write_text("ab ba aab bba\n" * 30, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "m"), vocab_size=264, byte_fallback=True
    )
    settings = SentencepieceConfig(sentencepiece_model=str(tmp_path / "m.model"))
    ours, stock = JoinedPieces(settings), SentencepieceBPE(settings)
    for written in ("ab €ba ї", "€", "ab ba", "", "a\u2581b"):
        pieces = ours.encode(written)
        assert pieces == stock.encode(written)
        assert ours.decode(pieces) == ours.sp.decode(pieces.split(" ")).strip()
    assert ours.decode("▁ab ▁ <0xE2> <0x82> <0xAC> ba") == "ab €ba"
    assert ours.decode("▁ab <0x0A> b <0xFF>") == "ab\nb\ufffd"
    for plain in ("▁ab <unk> ▁ba", "▁ab <0xGG>", "", "▁", "▁a ▁ ▁b"):
        assert ours.decode(plain) == stock.decode(plain)


def test_bfloat16_reaches_the_model() -> None:
    model = load(dtype="bf16")
    assert next(model.models[0].parameters()).dtype is torch.bfloat16
    assert model.translate(["Це добре ."]) == ["Це добре ."]


def test_importing_the_package_does_not_load_the_interface() -> None:
    code = (
        "import sys, fairseq_aggdec\n"
        "assert 'fairseq_aggdec.api' not in sys.modules\n"
        "assert callable(fairseq_aggdec.from_pretrained) and 'fairseq_aggdec.api' in sys.modules\n"
        "assert 'from_pretrained' in dir(fairseq_aggdec)\n"
    )
    python = warm.python(fairseq=False)
    subprocess.run([python, "-c", code], check=True, cwd=ROOT, capture_output=True)


@pytest.mark.parametrize("method", ["translate", "generate", "stream"])
def test_the_options_of_a_call_that_many_need_are_in_the_signature(method: str) -> None:
    """Editors and ``help()`` show them."""
    names = inspect.signature(getattr(Translator, method)).parameters
    assert {"beam", "nbest", "prefix"} <= names.keys()
