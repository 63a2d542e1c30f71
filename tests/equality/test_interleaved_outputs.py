"""Search in several places at once: what comes with a hypothesis, what is refused, and that the cache is used."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.methods.config import DecodingConfig
from fairseq_aggdec.search.compiled import reader
from fairseq_aggdec.search.compiled.searches import ENDED, NO_ROOM, WholeSearch
from fairseq_aggdec.search.interleaved.generator import distinct
from tests.equality.test_interleaved import GEOMETRIES, MAX_LEN, built, lively, search, searched
from tests.support import (
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
)
from tests.unit.test_interleaving import plain_order


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.skipif(kernels() is None, reason="no compiled kernels")
@pytest.mark.parametrize("int8", [None, "all"])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_batch_is_one_call_of_the_library(
    beam: int, int8: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back to Python only where the cache needs room, and at the end."""
    ended: list[int] = []
    run = WholeSearch.run
    monkeypatch.setattr(reader, "PAUSE", 1e9)

    def noted(self: Any, *readers: Any) -> int:
        ended.append(run(self, *readers))
        return ended[-1]

    monkeypatch.setattr(WholeSearch, "run", noted)
    model, task = lively(2, 1), make_task()
    for seed in (4, 5):  # the second has the memory of the first
        sample = make_batch(random_sources(seed, 6))
        searched([model], sample, task, beam=beam, int8=int8, min_len=MAX_LEN)
    assert task.counters.calls == 2 * (MAX_LEN + 1) // 2
    assert ended[-1] == ENDED and set(ended) <= {ENDED, NO_ROOM} and ended.count(ENDED) == 2


@pytest.mark.parametrize(("directions", "words"), GEOMETRIES[1:])
def test_8_bits(directions: int, words: int) -> None:
    """The board and the library say the same, which are not the words of fp32 everywhere."""
    models, differs = [lively(directions, words, seed) for seed in (1, 2)], False
    for rows in (1, 5):
        sample = make_batch(random_sources(rows, rows))
        for own in (models[:1], models):
            found = search(own, sample, beam=3, int8="all")
            exact = search(own, sample, beam=3)
            differs |= any(
                float(a[0]["score"]) != float(b[0]["score"])
                for a, b in zip(found, exact, strict=True)
            )
    assert differs


def test_8_bits_are_announced(caplog: pytest.LogCaptureFixture) -> None:
    """They change outputs; so they do where the search is stock's."""
    for directions in (1, 2):
        with caplog.at_level(logging.INFO):
            built(
                DecodingConfig(int8="all"),
                make_task(),
                [lively(directions, 1)],
                generation_options(),
            )
        assert "the output is that of the model in 8 bits" in caplog.text
        caplog.clear()


@pytest.mark.parametrize(
    "options",
    [
        {"lenpen": 0.0},
        {"lenpen": 2.5},
        {"lenpen": 2.5, "length_penalty": "gnmt"},
        {"unnormalized": True},
    ],
)
def test_length_penalty_ranks(options: dict[str, Any]) -> None:
    model, sample = lively(2, 1), make_batch(random_sources(4, 6))
    exponent = 0.0 if "unnormalized" in options else options["lenpen"]
    usual, found = search([model], sample, beam=4), search([model], sample, beam=4, **options)
    changed = 0
    for ours, theirs in zip(found, usual, strict=True):
        scores = [float(h["score"]) for h in ours]
        assert scores == sorted(scores, reverse=True)
        for h in ours:
            total = float(h["positional_scores"].sum())
            length = len(h["tokens"])
            divisor = (5 + length) / 6 if "length_penalty" in options else length
            assert float(h["score"]) == pytest.approx(total / divisor**exponent, rel=1e-5)
        changed += ours[0]["tokens"].tolist() != theirs[0]["tokens"].tolist()
    assert changed > 0


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_alignment_is_that_of_a_pass_over_the_hypothesis(kind: str) -> None:
    model, sources = lively(2, 1), random_sources(4, 4)
    sample = make_batch(sources)
    plain = search([model], sample, beam=3)
    found = search([model], sample, beam=3, print_alignment=kind)
    for row, source in enumerate(sources):
        for ours, theirs in zip(found[row], plain[row], strict=True):
            assert torch.equal(ours["tokens"], theirs["tokens"])
            length = len(ours["tokens"])
            one = make_batch([source])["net_input"]
            previous = torch.cat([ours["tokens"][-1:], ours["tokens"][:-1]])[None]
            weights = model(**one, prev_output_tokens=previous)[1]["attn"][0][0]  # (T, S)
            assert ours["attention"].shape == (sample["net_input"]["src_tokens"].size(1), length)
            torch.testing.assert_close(ours["attention"][-len(source) - 1 :].t(), weights)
            if kind == "hard":
                best = weights[:-1, :-1].argmax(1).tolist()
                assert ours["alignment"] == [(s, t) for t, s in enumerate(best)]


def test_dedup_writes_repeats_once() -> None:
    model, sample = lively(1, 4), make_batch(random_sources(4, 5))
    plain, found = search([model], sample, beam=2), search([model], sample, beam=2, dedup=2)
    removed = 0
    for ours, theirs in zip(found, plain, strict=True):
        for h, original in zip(ours, theirs, strict=True):
            words = original["tokens"].tolist()
            kept = [*distinct(words[:-1], 2), len(words) - 1]
            assert h["tokens"].tolist() == [words[i] for i in kept]
            assert torch.equal(h["positional_scores"], original["positional_scores"][kept])
            assert h["score"] == original["score"]
            removed += len(words) - len(kept)
    assert removed > 0


@pytest.mark.parametrize(("directions", "words"), [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_history_fills_the_sentence_step_by_step(directions: int, words: int) -> None:
    model, sample = lively(directions, words), make_batch(random_sources(4, 3))
    pad, z = make_task().target_dictionary.pad(), directions * words
    for ranked in search([model], sample, beam=2, retain_iter_history=True):
        for found in ranked:
            tokens = found["tokens"].tolist()
            slots = [*plain_order(len(tokens) - 1, directions), len(tokens) - 1]  # </s> comes last
            shown = [item["tokens"].tolist() for item in found["history"]]
            assert len(shown) == math.ceil(len(tokens) / z) <= found["steps"]
            for number, line in enumerate(shown, start=1):
                known = set(slots[: number * z])
                assert line == [x if i in known else pad for i, x in enumerate(tokens)]
            assert shown[-1] == tokens


def test_history_is_kept_only_when_asked_for() -> None:
    ((found,),) = search([lively(2, 1)], make_batch([[5, 6]]), beam=1)
    assert found["history"] == []


def test_counters_count_the_best_hypothesis() -> None:
    model, task = lively(2, 2), make_task()
    found = search([model], make_batch(random_sources(4, 6)), beam=3, task=task)
    best = [hypotheses[0] for hypotheses in found]
    counters = task.counters
    assert counters.sentences == 6
    assert counters.tokens == sum(len(h["tokens"]) for h in best)
    assert counters.iterations == sum(h["steps"] for h in best)
    assert counters.calls == max(h["steps"] for h in best)
    assert max(counters.emitted) == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_decodes(dtype: torch.dtype) -> None:
    model = lively(4, 1)
    sample = make_batch(random_sources(4, 3))
    exact = search([model], sample, beam=2)
    close = search([model.to(dtype)], sample, beam=2)
    for ours, theirs in zip(close, exact, strict=True):
        assert float(ours[0]["score"]) == pytest.approx(float(theirs[0]["score"]), abs=0.3)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("sampling", True),
        ("diverse_beam_groups", 2),
        ("diversity_rate", 0.5),
        ("constraints", "ordered"),
        ("prefix_size", 1),
        ("no_repeat_ngram_size", 3),
        ("lm_path", "lm.pt"),
        ("retain_dropout", True),
    ],
)
def test_what_cannot_be_honoured_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^--{option.replace('_', '-')} does not go with"):
        search([lively(2, 1)], make_batch([[5]]), **{option: value})


def test_forced_tokens_of_a_call_are_refused() -> None:
    model, sample = lively(2, 1), make_batch([[5]])
    task = make_task()
    generator = built(DecodingConfig(), task, [model], generation_options())
    with pytest.raises(ValueError, match="--prefix-size does not go with"):
        task.inference_step(generator, [model], sample, prefix_tokens=torch.tensor([[5]]))


def test_models_that_do_not_fit_are_refused() -> None:
    sample = make_batch([[5]])
    with pytest.raises(ValueError, match="write in the same order"):
        search([lively(2, 1), lively(2, 2)], sample)
    blockwise = make_model(make_task(), 1, "blockwise_transformer")
    with pytest.raises(ValueError, match="needs a model of --arch interleaved"):
        search([blockwise], sample)


def test_cache_is_used() -> None:
    cfg = DecodingConfig()
    task, model = make_task(), lively(2, 1)
    generator = built(cfg, task, [model], generation_options(beam=2))
    task.inference_step(generator, [model], make_batch([[5]]))
    assert type(generator.verifier.members[0].decoder) is CachedDecoder
