"""A drafter that decodes by itself, against a plain loop; where it reads and stands."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairseq_aggdec.bench.table import shares
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.search.compiled import reader
from fairseq_aggdec.search.state import DecodeState, Row
from tests.equality.test_gad import ALL, EOS, drafter, handed_over, saying
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    slow_chain,
    stock,
    without_library,
)


@pytest.fixture
def gad(monkeypatch: pytest.MonkeyPatch) -> Any:
    return handed_over(monkeypatch)


# -- the drafter alone


def plain_nar(
    model: Any, source: list[int], end: int, floor: int = 1, temperature: float = 1.0
) -> tuple[list[int], list[float]]:
    """Block after block with a full forward pass: tokens and their log-probabilities."""
    sample, mask = make_batch([source]), model.decoder.mask_index
    output: list[int] = []
    scores: list[float] = []
    while not output or output[-1] != EOS:
        tokens = torch.tensor([[*output, *[mask] * model.decoder.block_size]])
        with torch.no_grad():
            features = model(**sample["net_input"], prev_output_tokens=tokens)
            logits = model.decoder.output_layer(features)[0]
            if model.decoder.chain is not None:
                last = output[-1] if output else EOS
                logits = slow_chain(model.decoder, features[0], logits, last)[1]
            logits = logits / temperature
        log_probs, first = logits.log_softmax(-1), len(output)
        for slot in range(model.decoder.block_size):
            place, free = first + slot, logits[slot].clone()
            free[1] = -torch.inf
            if place < floor:
                free[EOS] = -torch.inf
            token = EOS if place >= end else int(free.argmax())
            output.append(token)
            scores.append(float(log_probs[slot, token]))
            if token == EOS:
                break
    return output, scores


def test_without_the_library_the_drafter_decodes_or_nobody(
    gad: Any,
) -> None:
    """Stock fairseq has the verifier, whose text is another."""
    verifier, model = make_model(make_task(), 5), drafter(block_size=3)
    sample, options = make_batch(random_sources(21, 6)), {"decoding": "nar", "max_len_b": 8}
    expected = gad(model, [verifier], sample, **options)
    with without_library():
        assert_same(gad(model, [verifier], sample, **options), expected)
        with pytest.raises(ValueError, match="nor can stock fairseq: it has the model of --path"):
            gad(model, [verifier], sample, retain_iter_history=True, **options)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@ALL
def test_drafter_alone_against_a_plain_loop(
    gad: Any, variant: dict[str, Any], temperature: float
) -> None:
    verifier, model = make_model(make_task(), 5), drafter(block_size=3, **variant)
    sources = random_sources(21, 6)
    options = {"min_len": 2, "max_len_b": 8, "temperature": temperature}
    found = gad(model, [verifier], make_batch(sources), decoding="nar", **options)
    for hypothesis, source in zip(found, sources, strict=True):
        tokens, scores = plain_nar(model, source, end=8, floor=2, temperature=temperature)
        assert hypothesis["tokens"].tolist() == tokens
        torch.testing.assert_close(
            hypothesis["positional_scores"], torch.tensor(scores), atol=1e-4, rtol=1e-4
        )
        assert hypothesis["steps"] == -(-len(tokens) // 3)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_drafter_alone_blocks_only_what_it_has_written(gad: Any, size: int) -> None:
    """Repeated n-grams: words of the block that is being chosen are not known, so they ban nothing."""
    model, verifier = saying(EOS, block_size=6), make_model(make_task(), 5)
    options = {"decoding": "nar", "min_len": 4, "no_repeat_ngram_size": size}
    (found,) = gad(model, [verifier], make_batch([[5, 6, 7]]), **options)
    assert len(found["tokens"]) == 5


def test_stock_never_decodes_in_its_place(gad: Any) -> None:
    """Not where a field changes between two batches either: stock would decode with the verifier."""
    verifier, batch = make_model(make_task(), 5), make_batch(random_sources(21, 3))
    expected = gad(drafter(), [verifier], batch, decoding="nar")
    generator = make_task("nar", drafter_path="drafter.pt").build_generator(
        [verifier], generation_options()
    )
    generator.beam_size = 4
    assert_same([ranked[0] for ranked in generator.generate([verifier], batch)], expected)


def test_all_of_its_time_is_drafting(gad: Any) -> None:
    """The drafter's encoder is a part of that: a share of the time below 0 would be left else."""
    verifier, batch = make_model(make_task(), 5), make_batch(random_sources(21, 3))
    gad(drafter(), [verifier], batch, decoding="nar")  # the drafter is handed over from here on
    task = make_task("nar", drafter_path="drafter.pt")
    generator = task.build_generator([verifier], generation_options())
    generator.generate([verifier], batch)  # makes the drafter ready, which is not counted
    before = dict(generator.counters.seconds)
    generator.drafter.encoder_seconds = 0.0
    generator.generate([verifier], batch)
    for part, seconds in before.items():
        generator.counters.seconds[part] -= seconds
    assert generator.counters.seconds["verify"] == 0
    found = shares(generator.counters, generator.drafter)
    assert min(found.values()) >= 0 and found["drafter's encoder"] > 0


def test_drafter_alone_shows_its_blocks(gad: Any) -> None:
    model, verifier = drafter(block_size=3), make_model(make_task(), 5)
    (found,) = gad(
        model, [verifier], make_batch([[5, 6, 7]]), decoding="nar", retain_iter_history=True
    )
    first = found["history"][0]["tokens"].tolist()
    assert first == found["tokens"][:2].tolist()


def test_sources_longer_than_the_drafter_reads(gad: Any) -> None:
    model = drafter(encoder_learned_pos=True, max_source_positions=8)
    verifier, batch = make_model(make_task(), 5), make_batch([[*range(5, 25)], [5, 6]])
    assert_same(gad(model, [verifier], batch), stock([verifier], batch))
    with pytest.raises(ValueError, match=r"source of 21 tokens .*--drafter-path"):
        gad(model, [verifier], batch, decoding="nar")


@pytest.mark.parametrize("decoding", ["gad", "nar"])
def test_the_drafter_follows_a_verifier_that_is_moved(gad: Any, decoding: str) -> None:
    """--eval-bleu builds the generator before the trainer has moved the model to its precision."""
    verifier, model = make_model(make_task(), 5), drafter()
    gad(model, [verifier], make_batch([[5, 6]]), decoding=decoding)
    task = make_task(decoding, drafter_path="drafter.pt")
    generator = task.build_generator([verifier], generation_options())
    verifier.bfloat16()
    generator.generate([verifier], make_batch([[5, 6, 7]]))
    assert next(model.parameters()).dtype is torch.bfloat16


@pytest.mark.parametrize("shares", [False, True])
def test_on_a_gpu_the_source_is_read_before_the_first_draft(shares: bool) -> None:
    """Only where the drafter reads it itself; what it drafts is the same."""
    verifier, model = make_model(make_task(), 5), drafter()
    model.shares_encoder = shares
    sample = make_batch(random_sources(3, 4))
    found = []
    for device in ("cpu", "cuda"):
        reader, drafting = Verifier([verifier]), NarDrafter(model)
        if shares:
            drafting.verifier_model = verifier
        rows = [Row(i, [EOS], end=9, floor=0) for i in range(4)]
        state = DecodeState(rows, EOS, torch.device(device))
        with torch.inference_mode():
            reader.start(sample["net_input"], 8)
            drafting.start(sample, reader, state)
            assert (drafting.sample is None) == (device == "cuda" and not shares)
            state.rows = [rows[0], rows[2]]
            drafting.keep_rows([0, 2])
            found.append(drafting.draft(state).tokens)
    assert found[0] == found[1]


@pytest.mark.skipif(kernels() is None, reason="no compiled kernels")
@ALL
def test_no_python_between_iterations(
    gad: Any, variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one call, but for sources that are read; by windows it is the same, bit for bit."""
    verifier, model = make_model(make_task(), 5), drafter(block_size=3, **variant)
    sample = make_batch(random_sources(21, 6))
    options = {"min_len": 2, "max_len_b": 11, "no_repeat_ngram_size": 3, "temperature": 0.7}
    monkeypatch.setattr(reader, "PAUSE", 1e9)
    asked: list[int] = []
    logits = NarDrafter.logits

    def noted(self: NarDrafter, state: DecodeState, size: int) -> Any:
        asked.append(size)
        return logits(self, state, size)

    monkeypatch.setattr(NarDrafter, "logits", noted)
    found = gad(model, [verifier], sample, decoding="nar", **options)
    assert not asked
    history = gad(model, [verifier], sample, decoding="nar", retain_iter_history=True, **options)
    monkeypatch.setattr(NarDrafter, "in_library", lambda self, state: None)
    other = gad(model, [verifier], sample, decoding="nar", retain_iter_history=True, **options)
    assert asked
    unseen = gad(model, [verifier], sample, decoding="nar", **options)
    for one, watched, same, last in zip(found, history, other, unseen, strict=True):
        for name in ("tokens", "positional_scores", "steps"):
            assert str(one[name]) == str(watched[name]) == str(same[name]) == str(last[name])
        assert str(watched["history"]) == str(same["history"])
