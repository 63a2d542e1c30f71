"""Interleaved decoding against a slow, plain Algorithm 1: lists, one sentence at a time, no cache."""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.engine.plain.support import decoder_gap
from fairseq_aggdec.methods.config import DecodingConfig
from fairseq_aggdec.methods.method import Request
from fairseq_aggdec.methods.options.reading import joined, read_settings
from fairseq_aggdec.methods.options.settings import OF_INTERLEAVED
from fairseq_aggdec.methods.table import method_of
from fairseq_aggdec.search import engines
from fairseq_aggdec.search.beam.generator import AlignedBeamGenerator, BeamGenerator
from fairseq_aggdec.search.interleaved.generator import InterleavedGenerator
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)
from tests.unit.test_interleaving import plain_order

PAD, UNK, EOS = 1, 3, 2
GEOMETRIES = [(1, 1), (2, 1), (2, 2), (4, 1), (1, 2), (1, 4), (2, 3), (4, 2)]
ABLATIONS: list[dict[str, Any]] = [
    {"vanilla_mask": True},
    {"vanilla_positions": True},
    {"middle_to_side": True},
    {"independent_directions": True},
    {"one_by_one": True},
]
MAX_LEN = 13


def lively(directions: int, words: int, seed: int = 1, **options: Any) -> Any:
    """A random model that says other things at every slot and ends now and then."""
    model = make_model(
        make_task(),
        seed,
        "interleaved_transformer",
        directions=directions,
        words_per_direction=words,
        **options,
    )
    with torch.no_grad():
        model.decoder.embed_tokens.weight.mul_(3)
        for layer in model.decoder.layers:
            layer.encoder_attn.out_proj.weight.mul_(0.4)
        rows = model.decoder.output_projection.weight
        rows.mul_(1.2 / rows.norm(dim=1, keepdim=True))
        rows[EOS] *= 1.4
    return model


def built(cfg: DecodingConfig, task: Any, models: list[Any], args: Namespace) -> Any:
    """The generator of ``--decoding interleaved`` with options that a task does not have."""
    method, unused = method_of("interleaved"), mock.Mock()
    request = Request(read_settings(cfg), task, models, args, unused)
    method.refuses(request)
    return method.build(request)


def search(
    models: list[Any],
    sample: dict[str, Any],
    task: Any = None,
    **options: Any,
) -> list[list[dict[str, Any]]]:
    """What is found on the board, and by the library where that decodes the batch."""
    found = searched(models, sample, task or make_task(), **options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engines, "read_by_windows", lambda request: "a test")
        on_board = searched(models, sample, make_task(), **options)
    for ours, theirs in zip(found, on_board, strict=True):
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one["steps"] == other["steps"] and len(one["history"]) == len(other["history"])
            for name in ("score", "positional_scores"):
                torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-5)
    return found


def searched(
    models: list[Any], sample: dict[str, Any], task: Any, **options: Any
) -> list[list[dict[str, Any]]]:
    keys = {name: options.pop(name) for name in OF_INTERLEAVED if name in options}
    cfg = DecodingConfig(
        variant=joined({key.replace("_", "-"): one for key, one in keys.items()}),
        int8=options.pop("int8", None),
    )
    options = {"max_len_b": MAX_LEN} | options
    generator = built(cfg, task, models, generation_options(**options))
    return task.inference_step(generator, models, sample)


class PlainSearch:
    """Algorithm 1, line by line.

    A step's continuations are all combinations of the W best words of each slot; behind ``</s>`` nothing counts.
    With any ending, W is B and every ending counts; else W is 2B and those among the B best of the sentence do.
    """

    def __init__(
        self,
        models: list[Any],
        beam: int,
        all_agree: bool = False,
        any_ending: bool = False,
        **options: Any,
    ):
        self.models, self.beam, self.all_agree = models, beam, all_agree
        self.any_ending, self.width = any_ending, beam if any_ending else 2 * beam
        self.options = {
            "max_len": MAX_LEN,
            "min_len": 1,
            "unkpen": 0.0,
            "temperature": 1.0,
        } | options
        self.geometry = models[0].decoder.geometry
        self.is_stock = self.geometry == Geometry() and not (all_agree or any_ending)

    def log_probs(self, net_input: dict[str, Any], written: list[int]) -> list[list[float]]:
        """(z, V): of the next z slots, with the options applied."""
        step, first = self.geometry.step, len(written)
        read = torch.tensor([[EOS] * step + written])
        probabilities = []
        for model in self.models:
            encoder_out = model.encoder(**net_input)
            logits = model.decoder(read, encoder_out=encoder_out)[0][0, -step:]
            probabilities.append((logits / self.options["temperature"]).softmax(-1))
        scores = (sum(probabilities) / len(self.models)).log()
        scores[:, PAD] = -math.inf
        scores[:, UNK] -= self.options["unkpen"]
        for i in range(step):
            if first + i < self.options["min_len"]:
                scores[i, EOS] = -math.inf
            if first + i >= self.options["max_len"]:
                scores[i, torch.arange(scores.size(1)) != EOS] = -math.inf
        return scores.tolist()

    def continuations(
        self, scores: list[list[float]]
    ) -> list[tuple[float, list[int], list[float]]]:
        best = [sorted(range(len(row)), key=lambda w: -row[w])[: self.width] for row in scores]
        found = {}
        for words in itertools.product(*best):
            if EOS in words:
                words = words[: words.index(EOS) + 1]
            parts = [scores[i][word] for i, word in enumerate(words)]
            if EOS in words and self.all_agree:
                parts[-1] += sum(row[EOS] for row in scores[len(words) :])
            found[words] = (sum(parts), list(words), parts)
        ranked = sorted(found.values(), key=lambda item: -item[0])
        return [item for item in ranked if item[0] > -math.inf][: self.width]

    def run(self, net_input: dict[str, Any]) -> list[tuple[float, list[int], list[float]]]:
        """(score / length, words in reading order, their scores), best first."""
        live: list[tuple[float, list[int], list[float]]] = [(0.0, [], [])]
        finished: list[tuple[float, list[int], list[float]]] = []
        self.steps = 0
        while len(finished) < self.beam and live:
            following = [
                (total + score, written + words, parts + more)
                for total, written, parts in live
                for score, words, more in self.continuations(self.log_probs(net_input, written))
            ]
            following.sort(key=lambda item: -item[0])
            counting = following if self.any_ending else following[: self.beam]
            ended = [item for item in counting if item[1][-1] == EOS]
            finished += ended if self.any_ending else ended[: self.beam - len(finished)]
            live = [item for item in following if item[1][-1] != EOS][: self.beam]
            self.steps += 1
        ranked = [self.restored(*item) for item in finished]
        return sorted(ranked, key=lambda item: -item[0])[: self.beam]

    def restored(
        self, total: float, written: list[int], parts: list[float]
    ) -> tuple[float, list[int], list[float]]:
        count = len(written) - 1
        order = [*plain_order(count, self.geometry.directions, self.geometry.middle_to_side), count]
        words, scores = [0] * len(written), [0.0] * len(written)
        for slot, place in enumerate(order):
            words[place], scores[place] = written[slot], parts[slot]
        return total / len(written), words, scores


def assert_plain(
    models: list[Any], sample: dict[str, Any], found: list[list[dict[str, Any]]], plain: PlainSearch
) -> None:
    """Equal hypotheses in the same order; scores within fp32 noise. Differences would be shown with their margin."""
    assert len(found) == len(sample["id"])
    for row, hypotheses in enumerate(found):
        source = sample["net_input"]["src_tokens"][row]
        source = source[source != PAD]
        one = {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)])}
        expected = plain.run(one)
        assert [h["tokens"].tolist() for h in hypotheses] == [words for _, words, _ in expected], (
            f"sentence {row}: scores {[float(h['score']) for h in hypotheses]} against {[s for s, _, _ in expected]}"
        )
        for hypothesis, (score, _, parts) in zip(hypotheses, expected, strict=True):
            assert float(hypothesis["score"]) == pytest.approx(score, abs=1e-4)
            assert hypothesis["positional_scores"].tolist() == pytest.approx(parts, abs=1e-3)
            if plain.is_stock:  # which evaluates prefixes ahead
                assert 1 <= hypothesis["steps"] <= plain.steps
            else:
                assert hypothesis["steps"] == plain.steps


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("stop_rule", ["stock", "any"])
@pytest.mark.parametrize("beam", [1, 2, 4])
@pytest.mark.parametrize(("directions", "words"), GEOMETRIES)
def test_search_equals_plain_algorithm_1(
    directions: int, words: int, beam: int, stop_rule: str
) -> None:
    beam = min(beam, {1: 4, 2: 4, 4: 3, 6: 2, 8: 1}[directions * words])  # (2 * beam) ** slots
    model = lively(directions, words)
    assert decoder_gap(model.decoder) is None
    for rows in (1, 5):
        sample = make_batch(random_sources(rows, rows))
        found = search([model], sample, stop_rule=stop_rule, beam=beam)
        plain = PlainSearch([model], beam, any_ending=stop_rule == "any")
        assert_plain([model], sample, found, plain)


@pytest.mark.parametrize("options", ABLATIONS, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize(("directions", "words"), [(2, 1), (2, 2), (4, 1)])
def test_ablations_equal_plain_algorithm_1(
    directions: int, words: int, options: dict[str, Any]
) -> None:
    if "one_by_one" in options:
        words = 1
    model = lively(directions, words, **options)
    sample = make_batch(random_sources(7, 4))
    assert_plain([model], sample, search([model], sample, beam=3), PlainSearch([model], 3))


def test_all_slots_must_agree_on_the_end() -> None:
    shorter = 0
    for directions, words in ((2, 1), (2, 2), (4, 1)):
        model = lively(directions, words)
        sample = make_batch(random_sources(9, 6))
        found = search([model], sample, end_condition="all", beam=3)
        assert_plain([model], sample, found, PlainSearch([model], 3, all_agree=True))
        first = search([model], sample, end_condition="first", beam=3)
        shorter += sum(a[0]["steps"] != b[0]["steps"] for a, b in zip(found, first, strict=True))
    assert shorter > 0


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({"min_len": 5}, {"min_len": 5}),
        ({"max_len_b": 2}, {"max_len": 2}),
        ({"max_len_b": 0, "min_len": 0}, {"max_len": 0, "min_len": 0}),
        ({"unkpen": -4.0}, {"unkpen": -4.0}),
        ({"temperature": 2.5}, {"temperature": 2.5}),
    ],
    ids=str,
)
@pytest.mark.parametrize(("directions", "words"), [(1, 1), (2, 2), (4, 1)])
def test_options(
    directions: int, words: int, options: dict[str, Any], plain: dict[str, Any]
) -> None:
    model = lively(directions, words)
    sample = make_batch(random_sources(4, 4))
    found = search([model], sample, beam=3, **options)
    assert_plain([model], sample, found, PlainSearch([model], 3, **plain))


def test_outputs_as_long_as_the_source() -> None:
    model, sources = lively(2, 2), random_sources(4, 5)
    found = search([model], make_batch(sources), beam=2, match_source_len=True)
    for source, hypotheses in zip(sources, found, strict=True):
        # `</s>` counts in fairseq's source lengths, so stock too writes one word more than the source has.
        assert len(hypotheses[0]["tokens"]) == len(source) + 2
        assert float(hypotheses[0]["positional_scores"][-1]) == 0


@pytest.mark.parametrize("arch", ["transformer", "interleaved_transformer"])
def test_one_word_per_step_is_no_second_beam_search(arch: str) -> None:
    options = {} if arch == "transformer" else {"directions": 1, "words_per_direction": 1}
    model, task = make_model(make_task(), 1, arch, **options), make_task()

    def kind(*generation: Any, **cfg: Any) -> type:
        args = generation_options(beam=3, **dict.fromkeys(generation, True))
        return type(built(DecodingConfig(**cfg), task, [model], args))

    generator = built(DecodingConfig(), task, [model], generation_options())
    assert generator.counters is task.counters
    assert kind() is BeamGenerator
    assert kind("print_alignment") is AlignedBeamGenerator
    assert kind("match_source_len") is InterleavedGenerator
    assert kind("retain_iter_history") is InterleavedGenerator
    for of_its_own in ("end-condition=all", "stop-rule=any", "length-penalty=gnmt", "dedup=1"):
        assert kind(variant=of_its_own) is InterleavedGenerator


def test_no_output_is_longer_than_the_positions() -> None:
    model = lively(2, 3, max_target_positions=16)
    found = search([model], make_batch([[5, 6]]), max_len_b=100, min_len=11)
    assert len(found[0][0]["tokens"]) == 12  # the two whole steps of six that fit into 16 positions


@pytest.mark.parametrize(("directions", "words"), [(1, 1), (2, 1), (4, 1)])
def test_ensembles_average_probabilities(directions: int, words: int) -> None:
    models = [lively(directions, words, seed) for seed in (1, 2)]
    sample = make_batch(random_sources(4, 3))
    assert_plain(models, sample, search(models, sample, beam=3), PlainSearch(models, 3))


def test_other_layers_are_refused() -> None:
    model = lively(2, 2, scale_heads=True)
    with pytest.raises(ValueError, match="nor can stock fairseq: it writes one word per step"):
        search([model], make_batch(random_sources(4, 3)), beam=3)


@pytest.mark.parametrize("arch", ["transformer", "interleaved_transformer"])
def test_one_word_per_step_with_beam_1_is_stock(arch: str) -> None:
    options = {} if arch == "transformer" else {"directions": 1, "words_per_direction": 1}
    model = make_model(make_task(), 1, arch, **options)
    sample = make_batch(random_sources(4, 6))
    found = [hypotheses[0] for hypotheses in search([model], sample, beam=1)]
    assert_same(found, stock([model], sample, max_len_b=MAX_LEN))


@pytest.mark.parametrize("beam", [2, 4])
def test_one_word_per_step_is_stock_beam_search(beam: int) -> None:
    model = lively(1, 1)
    sample = make_batch(random_sources(4, 8))
    generator = SequenceGenerator(
        [model], make_task().target_dictionary, beam_size=beam, max_len_a=0, max_len_b=MAX_LEN
    )
    expected = generator.generate([model], sample)
    found = search([model], sample, beam=beam)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)
    every = search([model], sample, stop_rule="any", beam=beam)
    assert sum(len(h[0]["tokens"]) for h in every) < sum(len(h[0]["tokens"]) for h in found)


@pytest.mark.parametrize(("directions", "words"), GEOMETRIES)
def test_scores_are_those_that_training_sees(directions: int, words: int) -> None:
    """A hypothesis scored as a reference: the model's own forward in reading order gives the same log-probabilities."""
    model, task = lively(directions, words), make_task()
    sample = make_batch(random_sources(8, 5))
    scorer = task.build_generator([model], generation_options(score_reference=True))
    for row, hypotheses in enumerate(search([model], sample, beam=2)):
        source = sample["net_input"]["src_tokens"][row : row + 1]
        for hypothesis in hypotheses:
            tokens = hypothesis["tokens"]
            net_input = {
                "src_tokens": source,
                "src_lengths": sample["net_input"]["src_lengths"][row : row + 1],
                "prev_output_tokens": torch.cat([tokens[-1:], tokens[:-1]])[None],
            }
            reference = {"net_input": net_input, "target": tokens[None]}
            ((scored,),) = scorer.generate([model], reference)
            torch.testing.assert_close(
                scored["positional_scores"], hypothesis["positional_scores"], atol=1e-4, rtol=1e-4
            )
