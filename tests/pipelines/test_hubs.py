"""fairseq's hubs: the n-best lists of stock, by our engine; what stock's hubs fail at; weights packed once."""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.models.bart import BARTModel
from fairseq.models.transformer import TransformerModel

import fairseq_aggdec
from fairseq_aggdec.engine.member import Member
from fairseq_aggdec.search.greedy.generator import DraftAndVerifyGenerator
from tests.pipelines.making import (
    BATCHES,
    SEARCH,
    SIZES,
    WORDS,
    assert_equal,
    assert_same,
    counted,
    forgotten,
    ours,
    sentences,
    stock,
    stock_repaired,
    write_model,
    write_text,
)

OURS = {"user_dir": fairseq_aggdec.__path__[0]}
HOW = {"beam": 4, "max_len_b": 12}
PAIR = ["-s", "de", "-t", "en"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("hubs"), ["de", "en"], [*WORDS, "<mask>"])


def tokens_of(hub: Any, count: int = 4) -> list[torch.Tensor]:
    return [hub.binarize(line) for line in sentences()[:count]]


def load(model: Path, data: Path, kind: Any = TransformerModel, **options: Any) -> Any:
    return kind.from_pretrained(str(model.parent), model.name, str(data), **options)


MANY = [
    "--langs",
    "de,en",
    "--lang-pairs",
    "de-en,en-de",
    "--encoder-langtok",
    "src",
    "--decoder-langtok",
]


def test_multi_simple_whose_own_hub_fails(data: Path, tmp_path: Path) -> None:
    task = "translation_multi_simple_epoch"
    model = write_model(tmp_path / "model.pt", data, task, "transformer", *MANY, *SIZES)
    languages = {"source_lang": "de", "target_lang": "en"}
    with forgotten():
        theirs = load(model, data, **languages)
        tokens = tokens_of(theirs)
        with pytest.raises(TypeError, match="prefix_allowed_tokens_fn"):
            theirs.generate(tokens, **HOW)
        build = theirs.task.build_generator
        theirs.task.build_generator = lambda *args, prefix_allowed_tokens_fn=None: build(*args)
        expected = theirs.generate(tokens, **HOW)
        hub = load(model, data, **languages, **OURS)
        with counted() as taken:
            assert_equal(hub.generate(tokens, **HOW), expected)
        assert taken


def test_mbart_which_stock_cannot_load(data: Path, tmp_path: Path) -> None:
    task = "translation_from_pretrained_bart"
    flags = [*PAIR, "--langs", "de,en", *SIZES]
    model = write_model(tmp_path / "model.pt", data, task, "mbart_base", *flags)
    with forgotten():
        with stock_repaired():
            theirs = load(model, data)
            tokens = tokens_of(theirs)
            build = theirs.task.build_generator
            theirs.task.build_generator = lambda *args, **_: build(*args)
            expected = theirs.generate(tokens, **HOW)
        with counted() as taken:
            assert_equal(load(model, data, **OURS).generate(tokens, **HOW), expected)
        assert taken


class Pieces:
    """A subword tool that leaves words as they are."""

    def encode(self, text: str) -> str:
        return text

    decode = encode


def test_bart(data: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.pt", data, "translation", "bart_base", *PAIR, *SIZES)
    with forgotten():
        theirs, hub = (load(model, data, BARTModel, bpe=None, **more) for more in ({}, OURS))
        theirs.bpe = hub.bpe = Pieces()
        tokens = [theirs.encode(line) for line in sentences()[:4]]
        lines, masked = sentences()[:4], ["w1 w2 <mask> w4", "<mask> w3"]
        settings = {"beam": 4, "lenpen": 2.0, "max_len_b": 14, "min_len": 5}
        with counted() as taken:
            assert_equal(hub.generate(tokens, **settings), theirs.generate(tokens, **settings))
            assert hub.sample(lines, **settings) == theirs.sample(lines, **settings)
            for found, expected in zip(
                hub.fill_mask(masked), theirs.fill_mask(masked), strict=True
            ):
                assert [text for text, _ in found] == [text for text, _ in expected]
        assert len(taken) >= 3


@pytest.fixture
def four(data: Path, tmp_path: Path) -> str:
    """An ensemble."""
    paths = [
        write_model(
            tmp_path / f"{seed}.pt", data, "translation", "transformer", *PAIR, *SIZES, seed=seed
        )
        for seed in range(1, 5)
    ]
    return ":".join(path.name for path in paths)


@pytest.fixture
def fast_bpe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the library of that name, which cuts nothing."""
    module = types.ModuleType("fastBPE")
    cutter = types.SimpleNamespace(apply=lambda lines: list(lines))
    vars(module)["fastBPE"] = lambda codes: cutter
    monkeypatch.setitem(sys.modules, "fastBPE", module)


def test_an_ensemble_of_four_with_moses_and_fastbpe(
    four: str, data: Path, tmp_path: Path, fast_bpe: None
) -> None:
    codes = tmp_path / "codes"
    codes.write_text("")
    text = {"tokenizer": "moses", "bpe": "fastbpe", "bpe_codes": str(codes)}
    arguments = str(tmp_path), four, str(data)
    lines = sentences()[:4]
    with forgotten():
        theirs = TransformerModel.from_pretrained(*arguments, **text)
        expected = theirs.translate(lines, **HOW)
        hub = TransformerModel.from_pretrained(*arguments, **text, **OURS)
        with counted() as taken:
            assert hub.translate(lines, **HOW) == expected
        assert taken
    path = ":".join(str(tmp_path / name) for name in four.split(":"))
    command = [data, "--path", path, *PAIR, *BATCHES, *SEARCH, "--bpe", "fastbpe"]
    command += ["--tokenizer", "moses", "--bpe-codes", codes, "-s", "de", "-t", "en"]
    assert_same(ours(*command), stock(*command))


@pytest.fixture
def adopted(data: Path, tmp_path: Path) -> Any:
    model = write_model(tmp_path / "model.pt", data, "translation", "transformer", *PAIR, *SIZES)
    with forgotten():
        return fairseq_aggdec.adopt(load(model, data))


def test_weights_are_packed_once(adopted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    look = Member._inspect
    monkeypatch.setattr(Member, "_inspect", lambda self: (made.append(self), look(self))[1])
    tokens = tokens_of(adopted)
    first = adopted.generate(tokens, **HOW)
    packed = len(made)
    assert packed
    for more in ({}, {"lenpen": 2.0}, {"beam": 1}, {"temperature": 2.0}):
        adopted.generate(tokens, **HOW | more)
    assert len(made) == packed
    assert_equal(adopted.generate(tokens, **HOW), first)
    with torch.no_grad():
        adopted.models[0].decoder.layers[0].fc1.weight.mul_(-1.5)
    changed = adopted.generate(tokens, **HOW)
    assert len(made) > packed
    assert_equal(changed, adopted.generate(tokens, **HOW, decoding="stock"))


def test_calls_in_two_precisions_pack_weights_once_each(
    adopted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    look = Member._inspect
    monkeypatch.setattr(Member, "_inspect", lambda self: (made.append(self), look(self))[1])
    tokens = tokens_of(adopted)
    for more in ({}, {"low_memory": True}):
        adopted.generate(tokens, **HOW | more)
    packed = len(made)
    for more in ({}, {"low_memory": True}) * 3:
        adopted.generate(tokens, **HOW | more)
    assert len(made) == packed
    assert len(adopted.task.reusable._records) == 2


def test_a_call_with_the_same_options_goes_on_with_what_was_learned(adopted: Any) -> None:
    tokens, kept = tokens_of(adopted), adopted.task.reusable
    for beam in (1, 4, 1, 4, 4):
        adopted.generate(tokens, beam=beam, max_len_b=12)
    one, four = (record.generator for record in kept._records)
    assert isinstance(one, DraftAndVerifyGenerator) and four.budget.batches == 3
    adopted.generate(tokens, **HOW, lenpen=0.5)
    adopted.generate(tokens, **HOW, draft_from="none")
    assert four.budget.batches == 3 and len(kept._records) == 4
    # What the task itself builds has changed, which no option says.
    expected = adopted.generate(tokens, **HOW, decoding="stock", temperature=3.0)
    build = type(adopted.task).taken_over.build_generator

    def other(self: Any, models: Any, args: Any, **kwargs: Any) -> Any:
        args.temperature = 3.0
        return build(self, models, args, **kwargs)

    with mock.patch.object(type(adopted.task).taken_over, "build_generator", other, create=True):
        assert_equal(adopted.generate(tokens, **HOW), expected)
    assert four.budget.batches == 3


def test_a_dropped_hub_is_freed(data: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.pt", data, "translation", "transformer", *PAIR, *SIZES)
    with forgotten():
        hub = load(model, data, **OURS)
    for beam in (1, 4):
        hub.generate(tokens_of(hub), beam=beam, max_len_b=12)
    there = [weakref.ref(hub), weakref.ref(hub.task), weakref.ref(hub.models[0])]
    del hub
    gc.collect()
    assert [one() for one in there] == [None] * 3


@pytest.mark.parametrize("beam", [1, 4])
def test_two_generators_decode_at_the_same_time(beam: int, adopted: Any) -> None:
    models, task = list(adopted.models), adopted.task
    batch = next(iter(adopted._build_batches(tokens_of(adopted), False)))
    one, other = (task.build_generator(models, Namespace(**HOW | {"beam": beam})) for _ in range(2))
    assert one.verifier is other.verifier
    expected = one.generate(models, batch)
    found: list[Any] = []
    begun, inside = threading.Event(), one._decode

    def slowly(*args: Any) -> Any:
        begun.set()
        thread.join()  # the other one has decoded its batch meanwhile
        return inside(*args)

    def decode() -> None:
        begun.wait()
        found.append(other.generate(models, batch))

    one._decode = slowly
    thread = threading.Thread(target=decode)
    thread.start()
    assert_equal(one.generate(models, batch), expected)
    assert_equal(found[0], expected)
    assert one.verifier is not other.verifier
    learned = "drafter" if beam == 1 else "budget"
    assert getattr(one, learned) is not getattr(other, learned)
