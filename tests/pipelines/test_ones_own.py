"""Tasks and generators of somebody's own: with other arguments and results, other names, and patched at any time."""

from __future__ import annotations

import copy
import logging
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils, search
from fairseq.sequence_generator import EnsembleModel
from fairseq.tasks.translation import TranslationTask

import fairseq_aggdec
from fairseq_aggdec.search.beam.generator import BeamGenerator
from tests.pipelines.making import SIZES, assert_equal, counted, forgotten, write_model, write_text

OPTIONS = {"beam": 4, "max_len_b": 12}
Found = list[list[dict[str, Any]]]


class Set:
    """A test set of ten sentences, a model, and tasks for both."""

    def __init__(self, folder: Path):
        data = write_text(folder / "data", ["de", "en"])
        path = write_model(
            folder / "model.pt", data, "translation", "transformer", "-s", "de", "-t", "en", *SIZES
        )
        with forgotten():
            self.models, _, self.plain = checkpoint_utils.load_model_ensemble_and_task(
                [str(path)], {"data": str(data)}
            )
        self.plain.load_dataset("test")
        dataset = self.plain.dataset("test")
        self.sample = dataset.collater([dataset[i] for i in range(len(dataset))])

    def task(self, kind: Any) -> Any:
        plain = self.plain
        return kind(plain.cfg, plain.source_dictionary, plain.target_dictionary)

    def decode(self, task: Any, change: Callable[[Any], None] = lambda generator: None) -> Found:
        """What a task finds with a generator that was changed after it had been built."""
        generator = task.build_generator(self.models, Namespace(**OPTIONS))
        change(generator)
        found: Found = task.inference_step(generator, self.models, self.sample)
        return found


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Set:
    return Set(tmp_path_factory.mktemp("own"))


# -- arguments and results


class WithArguments(TranslationTask):
    def build_generator(self, models: Any, args: Any, longest: int, **more: Any) -> Any:  # type: ignore[override]
        generator = super().build_generator(models, args, **more)
        generator.max_len_b = longest
        return generator


@pytest.mark.parametrize("by_name", [True, False])
def test_arguments_that_only_the_task_knows(given: Set, by_name: bool) -> None:
    found = []
    for task in (given.task(WithArguments), fairseq_aggdec.adopt(given.task(WithArguments))):
        more: Any = {"longest": 6} if by_name else {}
        places = [] if by_name else [6]
        generator = task.build_generator(given.models, Namespace(**OPTIONS), *places, **more)
        prefix = given.sample["target"][:, :1]
        found.append(task.inference_step(generator, given.models, given.sample, prefix, None))
    assert type(generator) is BeamGenerator
    assert_equal(found[1], found[0])
    assert max(len(ranked[0]["tokens"]) for ranked in found[0]) == 7


def as_pair(found: Found) -> Any:
    return found, 3


def as_mapping(found: Found) -> Any:
    return {"hypotheses": found}


def as_tokens(found: Found) -> Any:
    return [[ranked[0]["tokens"]] for ranked in found]


@pytest.mark.parametrize("make", [as_pair, as_mapping, as_tokens])
@pytest.mark.parametrize("decoding", ["beam", "stock"])
def test_a_step_that_gives_another_thing(given: Set, decoding: str, make: Any) -> None:
    class Own(TranslationTask):
        def inference_step(self, *args: Any, **named: Any) -> Any:
            return make(super().inference_step(*args, **named))

    expected = given.decode(given.task(Own))
    found = given.decode(fairseq_aggdec.adopt(given.task(Own), decoding=decoding))
    assert type(found) is type(expected) and len(found) == len(expected)


class Wider(TranslationTask):
    def build_generator(self, models: Any, args: Any, *more: Any, **named: Any) -> Any:
        generator = super().build_generator(models, Namespace(**vars(args) | {"beam": 3}))
        return generator


@pytest.mark.parametrize("beam", [1, 4])
def test_a_beam_that_the_task_sets(given: Set, beam: int) -> None:
    found = []
    for task in (given.task(Wider), fairseq_aggdec.adopt(given.task(Wider))):
        generator = task.build_generator(given.models, Namespace(**OPTIONS | {"beam": beam}))
        found.append(task.inference_step(generator, given.models, given.sample))
    assert {len(ranked) for ranked in found[0]} == {3}
    assert_equal(found[1], found[0])


class OwnEmbeddings(TranslationTask):
    """Hands its encoder more than tokens."""

    def inference_step(self, generator: Any, models: Any, sample: Any, *more: Any) -> Any:
        tokens = sample["net_input"]["src_tokens"]
        made = torch.randn(*tokens.shape, 16, generator=torch.Generator().manual_seed(1))
        net_input = sample["net_input"] | {"token_embeddings": made}
        return super().inference_step(generator, models, sample | {"net_input": net_input}, *more)


class Starts(TranslationTask):
    """Has every hypothesis start with another token."""

    def inference_step(self, generator: Any, models: Any, sample: Any, *more: Any) -> Any:
        hypotheses = len(sample["net_input"]["src_tokens"]) * generator.beam_size
        with torch.no_grad():
            return generator.generate(models, sample, bos_token=4 + torch.arange(hypotheses) % 30)


@pytest.mark.parametrize("kind", [OwnEmbeddings, Starts])
@pytest.mark.parametrize("beam", [1, 4])
def test_what_else_stock_reads_of_a_call(given: Set, kind: Any, beam: int) -> None:
    found = []
    for task in (
        given.task(TranslationTask),
        given.task(kind),
        fairseq_aggdec.adopt(given.task(kind)),
    ):
        generator = task.build_generator(given.models, Namespace(**OPTIONS | {"beam": beam}))
        found.append(task.inference_step(generator, given.models, given.sample))
    assert_equal(found[2], found[1])
    plain, other = ([ranked[0]["tokens"].tolist() for ranked in one] for one in found[:2])
    assert plain != other


@pytest.mark.parametrize("beam", [1, 4])
def test_an_input_that_the_encoder_does_not_take(given: Set, beam: int) -> None:
    task = fairseq_aggdec.adopt(given.task(TranslationTask))
    generator = task.build_generator(given.models, Namespace(**OPTIONS | {"beam": beam}))
    net_input = given.sample["net_input"] | {"topics": given.sample["id"]}
    with pytest.raises(TypeError, match="topics"):
        task.inference_step(generator, given.models, given.sample | {"net_input": net_input})


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("beam", [1, 4])
def test_prefixes_of_another_number_of_sentences(given: Set, beam: int, rows: int) -> None:
    task = fairseq_aggdec.adopt(given.task(TranslationTask))
    generator = task.build_generator(given.models, Namespace(**OPTIONS | {"beam": beam}))
    prefix = torch.full((rows, 2), 7)
    with pytest.raises(ValueError, match=f"prefix_tokens: {rows} rows for 10 sentences"):
        task.inference_step(generator, given.models, given.sample, prefix)


@pytest.mark.parametrize("part, padding", [("", 0), ("", 7), ("embed_positions", 2)])
def test_a_decoder_with_another_padding(given: Set, part: str, padding: int) -> None:
    models = copy.deepcopy(given.models)
    models[0].decoder.get_submodule(part).padding_idx = padding
    found = []
    for task in (given.task(TranslationTask), fairseq_aggdec.adopt(given.task(TranslationTask))):
        generator = task.build_generator(models, Namespace(**OPTIONS))
        found.append(task.inference_step(generator, models, given.sample))
    assert_equal(found[1], found[0])


# -- names


class WithSettings(TranslationTask):
    def __init__(self, *args: Any, **named: Any):
        super().__init__(*args, **named)
        self.beam, self.settings = 1, {"beam": 2}

    def build_generator(self, *args: Any, **named: Any) -> Any:
        generator = super().build_generator(*args, **named)
        generator.beam_size = self.settings["beam"]
        return generator


class WithBegin(TranslationTask):
    def begin(self) -> int:
        return 2

    def build_generator(self, *args: Any, **named: Any) -> Any:
        generator = super().build_generator(*args, **named)
        generator.beam_size = self.begin()
        return generator


class WithCounters(TranslationTask):
    def __init__(self, *args: Any, **named: Any):
        super().__init__(*args, **named)
        self.counters = {"batches": 1}


@pytest.mark.parametrize(
    "kind, name", [(WithSettings, "settings"), (WithBegin, "begin"), (WithCounters, "counters")]
)
def test_a_task_with_a_name_of_ours_is_left_to_stock_and_said(
    given: Set, kind: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = given.task(kind)
    with caplog.at_level(logging.INFO, logger="fairseq_aggdec"), counted() as taken:
        assert fairseq_aggdec.adopt(task) is task
        assert_equal(given.decode(task), given.decode(given.task(kind)))
    assert type(task) is kind and not taken
    assert f"{kind.__name__} is left to stock fairseq: it has a {name} of its own" in caplog.text


def test_a_name_that_an_object_was_given(given: Set) -> None:
    task = given.task(TranslationTask)
    task.counters = 5
    assert type(fairseq_aggdec.adopt(task)) is TranslationTask and task.counters == 5


# -- changed when the generator is there


class Unlikely(torch.nn.Module):
    """A blocker of its own: some words are less likely."""

    def forward(self, tokens: Any, log_probs: Any, *more: Any) -> Any:
        log_probs[:, 10:20] -= 5
        return log_probs


def with_blocker(generator: Any) -> None:
    generator.repeat_ngram_blocker = Unlikely()


def with_step(generator: Any) -> None:
    step = generator.search.step

    def unlikely(number: int, log_probs: Any, *args: Any, **named: Any) -> Any:
        log_probs[..., 10:20] -= 5
        return step(number, log_probs, *args, **named)

    generator.search.step = unlikely


def with_other_search(generator: Any) -> None:
    generator.search = search.DiverseSiblingsSearch(generator.tgt_dict, 2.0)


def with_suppressed(generator: Any) -> None:
    generator.token_indices_to_suppress = torch.arange(5, 15)


def with_decoder(generator: Any) -> None:
    decode = generator.model.forward_decoder

    def unlikely(*args: Any, **named: Any) -> Any:
        log_probs, attention = decode(*args, **named)
        log_probs[..., 10:20] -= 5
        return log_probs, attention

    generator.model.forward_decoder = unlikely


CHANGES = {
    with_blocker: "a repeat_ngram_blocker of type Unlikely",
    with_step: "a BeamSearch with a step() put onto it",
    with_other_search: "--diversity-rate",
    with_suppressed: "tokens_to_suppress",
    with_decoder: "models behind a EnsembleModel of its own",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_put_onto_a_generator_later_is_left_to_stock_and_said(
    given: Set, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    expected = given.decode(given.task(TranslationTask), change)
    task = fairseq_aggdec.adopt(given.task(TranslationTask))
    with caplog.at_level(logging.INFO, logger="fairseq_aggdec"), counted() as taken:
        assert_equal(given.decode(task, change), expected)
    assert not taken and f"left to stock fairseq: {CHANGES[change]}" in caplog.text
    with counted() as taken:
        given.decode(task)
    assert taken


def test_a_blocker_that_the_task_puts_there(given: Set) -> None:
    class Own(TranslationTask):
        def build_generator(self, *args: Any, **named: Any) -> Any:
            generator = super().build_generator(*args, **named)
            generator.repeat_ngram_blocker = Unlikely()
            return generator

    expected = given.decode(given.task(Own))
    assert_equal(given.decode(fairseq_aggdec.adopt(given.task(Own))), expected)


def test_a_class_that_is_patched_later(given: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = EnsembleModel.forward_decoder

    def unlikely(*args: Any, **named: Any) -> Any:
        log_probs, attention = decode(*args, **named)
        log_probs[..., 10:20] -= 5
        return log_probs, attention

    def patch(generator: Any) -> None:
        monkeypatch.setattr(EnsembleModel, "forward_decoder", unlikely)

    task = fairseq_aggdec.adopt(given.task(TranslationTask))
    found = given.decode(task, patch)
    assert_equal(found, given.decode(given.task(TranslationTask)))


def test_a_copied_search_is_plain(given: Set) -> None:
    task = fairseq_aggdec.adopt(given.task(TranslationTask))
    generator = task.build_generator(given.models, Namespace(**OPTIONS))
    generator.search = copy.deepcopy(generator.search)
    with counted() as taken:
        task.inference_step(generator, given.models, given.sample)
    assert taken


def with_shorter(generator: Any) -> None:
    generator.max_len_b = 5


def test_a_changed_generator_changes_no_later_one(given: Set) -> None:
    task = fairseq_aggdec.adopt(given.task(TranslationTask))
    expected = given.decode(given.task(TranslationTask))
    for change in (*CHANGES, with_shorter):
        given.decode(task, change)
        with counted() as taken:
            assert_equal(given.decode(task), expected)
        assert taken
