"""Models whose numbers are not finite: decoding stops with a sentence and a name; a drafter only stops drafting."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.drafters.nar import FiniteCheck
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.methods import gad as gad_method
from fairseq_aggdec.search.errors import NonFiniteError
from tests.equality.test_blockwise import headed
from tests.equality.test_gad import VARIANTS, drafter
from tests.equality.test_interleaved import lively
from tests.equality.test_lattice import lattice_model
from tests.random_models import random_tables as tables
from tests.support import (
    assert_same,
    generate,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)

NUMBERS = [math.nan, math.inf]
LAYER = "decoder.layers.0.fc2.weight"


def spoil(model: Any, name: str = LAYER, number: float = math.nan, at: int = 5) -> Any:
    """The model with one number of one weight replaced."""
    with torch.no_grad():
        dict(model.named_parameters())[name].view(-1)[at] = number
    return model


@pytest.fixture
def lattice_folder(tmp_path: Path) -> str:
    plain = make_task()
    tables().save(tmp_path / "lattice", plain.source_dictionary, plain.target_dictionary, {})
    return str(tmp_path / "lattice")


def numbered(rows: int) -> dict[str, Any]:
    """A batch of sentences that are the last of a set of 100."""
    sample = make_batch(random_sources(3, rows))
    sample["id"] += 100 - rows
    return sample


MODELS: dict[str, Callable[[], Any]] = {
    "stock": lambda: make_model(make_task(), 5),
    "greedy": lambda: make_model(make_task(), 5),
    "iad": lambda: make_model(make_task(), 5),
    "blockwise": headed,
    "interleaved": lambda: lively(2, 2),
    "lattice": lattice_model,
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("decoding", list(MODELS))
def test_sentence_model_and_weight_are_named(
    decoding: str, rows: int, number: float, lattice_folder: str
) -> None:
    model, sample = MODELS[decoding](), numbered(rows)
    task = make_task(decoding, model_paths="broken.pt", lattice=lattice_folder)
    assert len(generate(task, [model], sample)) == rows
    spoil(model, LAYER, number)
    with pytest.raises(NonFiniteError) as stopped:
        generate(task, [model], sample)
    said = str(stopped.value)
    # Stock search stops without a word about which sentence it was.
    first, last = 100 - rows, 99
    some = decoding == "stock" and rows > 1
    where = f"one of the sentences {first} to {last}" if some else f"sentence {first}"
    assert said.startswith(f"{where}: broken.pt gives scores that are not finite numbers")
    assert f"its weight {LAYER} holds NaN or infinity" in said


@pytest.mark.parametrize(
    ("decoding", "number"),
    [("iad", math.nan), ("beam", math.nan), ("blockwise", math.nan), ("blockwise", math.inf)],
)
def test_in_8_bits_every_weight_ends_decoding_as_in_fp32(decoding: str, number: float) -> None:
    """Each weight of a layer in turn: products in 8 bits round what they read, and must not make numbers of NaN."""
    model, sample = MODELS.get(decoding, MODELS["greedy"])(), numbered(3)
    well = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    names = [name for name in well if ".layers." not in name or ".layers.1." in name]
    said: dict[bool, dict[str, str]] = {False: {}, True: {}}
    for int8, stopped in said.items():
        task = make_task(decoding, model_paths="broken.pt", int8=int8)
        generator = task.build_generator([model], generation_options(beam=2))
        for name in names:
            spoil(model, name, number, at=1)
            try:
                task.inference_step(generator, [model], sample)
            except NonFiniteError as error:
                stopped[name] = str(error)
            model.load_state_dict(well, strict=False)
    assert len(said[False]) > len(names) / 2
    # In fp32 ReLU may make 0 of -inf.
    assert said[True].items() >= said[False].items()
    if math.isnan(number):
        assert said[True] == said[False]


@pytest.mark.parametrize("decoding", ["greedy", "iad", "interleaved", "lattice"])
def test_only_one_sentence_is_broken(decoding: str, lattice_folder: str) -> None:
    """A word whose embedding is NaN: the sentence that has it is named, and the model of two that has it."""
    model, sample = MODELS[decoding](), make_batch([[5, 6, 7], [8, 9, 10], [11, 12, 13]])
    sample["id"] += 40
    task = make_task(decoding, model_paths="well.pt:broken.pt", lattice=lattice_folder)
    width = model.encoder.embed_tokens.embedding_dim
    broken = spoil(MODELS[decoding](), "encoder.embed_tokens.weight", at=9 * width)
    with pytest.raises(NonFiniteError, match=r"^sentence 41: broken.pt gives scores"):
        generate(task, [model, broken], sample)


def test_a_beam_that_breaks_after_others_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word is NaN as input: decoding ends exactly for the words that the search reads, however late."""
    sample, read = numbered(6), set()
    real = Verifier.read

    def watched(self: Verifier, window: Any) -> Any:
        read.update(window.tokens.tolist())
        return real(self, window)

    with monkeypatch.context() as patch:
        patch.setattr(Verifier, "read", watched)
        # The library alone would not tell what it reads.
        told = "fairseq_aggdec.search.engines.read_by_windows"
        patch.setattr(told, lambda request: "told so")
        generate(make_task("interleaved"), [lively(1, 1)], sample, beam=4)
    ended = set()
    for word in range(4, 40):
        model = lively(1, 1)
        width = model.decoder.embed_tokens.embedding_dim
        spoil(model, "decoder.embed_tokens.weight", at=word * width)
        with torch.no_grad():  # as output the word is as it was
            projection = lively(1, 1).decoder.output_projection.weight
            model.decoder.output_projection.weight = torch.nn.Parameter(projection.clone())
        try:
            generate(make_task("interleaved"), [model], sample, beam=4)
        except NonFiniteError:
            ended.add(word)
    assert ended == read & set(range(4, 40))
    assert 2 < len(ended) < 36


def test_a_stock_hypothesis_is_looked_at() -> None:
    """Stock search takes NaN for -inf; where it goes on nevertheless, the score tells."""
    model = make_model(make_task(), 5)
    task = make_task("stock", model_paths="model.pt")
    generator = task.build_generator([model], generation_options())
    real = generator.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        found[1][0]["positional_scores"][0] = -math.inf
        return found

    generator.generate = generate
    with pytest.raises(NonFiniteError, match=r"^sentence 98: model.pt gives"):
        task.inference_step(generator, [model], numbered(3))


def test_a_broken_weight_is_told_before_a_sentence_needs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A word that no sentence has: outputs are right, and the warning says what the file is."""
    (well, model), sample = (make_model(make_task(), 5) for _ in range(2)), numbered(2)
    width = model.encoder.embed_tokens.embedding_dim
    word = next(i for i in range(4, 40) if i not in sample["net_input"]["src_tokens"])
    spoil(model, "encoder.embed_tokens.weight", at=word * width)
    found = generate(make_task("greedy", model_paths="model.pt"), [model], sample)
    assert_same(found, stock([well], sample))
    assert "model.pt: its weight encoder.embed_tokens.weight holds NaN or infinity" in caplog.text


def test_numbers_that_grow_too_large_on_the_way() -> None:
    model = make_model(make_task(), 5)
    with torch.no_grad():
        model.decoder.layers[1].fc2.weight.fill_(3e38)
    with pytest.raises(NonFiniteError, match="its weights are finite, but numbers grow too large"):
        generate(make_task("greedy"), [model], numbered(2))


def test_sentences_without_numbers_are_named_by_their_place() -> None:
    """fairseq-interactive makes such samples."""
    sample = numbered(2)
    del sample["id"]
    with pytest.raises(NonFiniteError, match=r"^sentence 0 of a batch: "):
        generate(make_task("greedy"), [spoil(make_model(make_task(), 5))], sample)


@pytest.mark.parametrize("decoding", ["greedy", "interleaved", "lattice"])
def test_an_infinite_penalty_is_no_fault(decoding: str, lattice_folder: str) -> None:
    """It bans the unknown word, as in stock."""
    model, sample = MODELS[decoding](), numbered(6)
    task = make_task(decoding, lattice=lattice_folder)
    found = generate(task, [model], sample, unkpen=math.inf)
    assert all(3 not in hypothesis["tokens"].tolist() for hypothesis in found)
    if decoding == "greedy":
        assert_same(found, stock([model], sample, unkpen=math.inf))


# -- drafters


def decode_with(
    model: Any, verifier: Any, sample: Any, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, list[dict[str, Any]]]:
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: model)
    task = make_task(options.pop("decoding", "gad"), drafter_path="drafter.pt", **options)
    return task, generate(task, [verifier], sample)


@pytest.mark.parametrize("options", [{}, {"acceptance": "min:3"}])
@pytest.mark.parametrize("variant", ["causal", "next, chain, causal"])
def test_a_broken_drafter_stops_drafting(
    variant: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    verifier, sample = make_model(make_task(), 5), numbered(4)
    model = spoil(drafter(**VARIANTS[variant]))
    task, found = decode_with(model, verifier, sample, monkeypatch, **options)
    assert_same(found, stock([verifier], sample))
    assert task.counters.drafted == 0
    (said,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert f"NaN or infinity in its weight {LAYER}: nothing is drafted" in said


def test_a_drafter_whose_numbers_grow_too_large_stops_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    verifier, sample = make_model(make_task(), 5), numbered(6)
    model = drafter()
    with torch.no_grad():
        model.decoder.layers[1].fc2.weight.fill_(3e38)
    task, found = decode_with(model, verifier, sample, monkeypatch)
    assert_same(found, stock([verifier], sample))
    # what was asked about a draft is known when the next one but one is due
    assert task.counters.drafted <= 5 * 6 * (FiniteCheck.DRAFTS + 1)
    assert task.counters.iterations > 6 * FiniteCheck.DRAFTS
    (said,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "not finite, though its weights are: nothing is drafted" in said


def test_a_drafter_that_is_well_is_not_suspected() -> None:
    check = FiniteCheck()
    for _ in range(20):
        for _ in range(FiniteCheck.DRAFTS - 1):
            check.observe([3, 3], [0, 0])
        check.observe([0, 0], [0, 0])  # nothing was drafted
        assert not check.due
        check.observe([3, 3], [0, 1])
    for _ in range(FiniteCheck.DRAFTS):
        check.observe([3, 0], [0, 0])
    assert check.due


def test_alone_a_broken_drafter_ends_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it is the model whose output counts."""
    verifier, sample = make_model(make_task(), 5), numbered(2)
    with pytest.raises(NonFiniteError, match=rf"^sentence 98: drafter.pt gives .*{LAYER} holds"):
        decode_with(spoil(drafter()), verifier, sample, monkeypatch, decoding="nar")


@pytest.mark.parametrize("least", [1, 3])
def test_broken_heads_stop_drafting(least: int, caplog: pytest.LogCaptureFixture) -> None:
    model, sample = headed(identity=True), numbered(4)
    spoil(model, "decoder.heads.contract.weight")
    task = make_task("blockwise", acceptance=f"min:{least}")
    assert_same(generate(task, [model], sample), stock([model], sample))
    assert task.counters.drafted == 0
    assert "weight contract.weight: nothing is drafted" in caplog.text


def test_outputs_that_are_too_long_for_their_source_are_no_fault() -> None:
    """Where a rewarded word outdoes the end that ``--match-source-len`` forces, stock scores the output -inf."""
    model, sample = make_model(make_task(), 10), make_batch(random_sources(10, 6, longest=15))
    for decoding in ("stock", "beam"):
        options = {"beam": 2, "match_source_len": True, "unkpen": -9.0}
        task = make_task(decoding)
        generator = task.build_generator([model], generation_options(**options))
        found = task.inference_step(generator, [model], sample)
        assert -math.inf in [float(ranked[0]["score"]) for ranked in found]
