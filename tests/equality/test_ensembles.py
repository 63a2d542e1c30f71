"""Ensembles in the compiled library against stock fairseq: every method that searches whole batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.linear import fast_kernels
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.search.compiled import reader
from tests.equality.test_beam import WorkingBlocker
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
)

pytestmark = pytest.mark.skipif(not fast_kernels(), reason="no compiled kernels for fp32")
SMALLER: dict[str, Any] = {
    "decoder_embed_dim": 16,
    "encoder_embed_dim": 16,
    "decoder_layers": 1,
    "encoder_layers": 1,
    "decoder_normalize_before": True,
}
MEMBERS = {"two": ({}, {}), "three": ({}, SMALLER, {})}
# beam, options of generation
WAYS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "greedy": ("greedy", 1, {}),
    "greedy, rules": ("greedy", 1, {"temperature": 0.7, "min_len": 4, "unkpen": 1.0}),
    "iad": ("iad", 1, {}),
    "iad, n-grams": ("iad", 1, {"no_repeat_ngram_size": 2}),
    **{f"beam {size}": ("beam", size, {}) for size in (2, 3, 4, 5)},
    "beam, rules": ("beam", 3, {"temperature": 1.5, "lenpen": 0.6, "no_repeat_ngram_size": 2}),
}


@pytest.fixture
def iterations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The windows that Python reads while a sample is decoded."""
    seen: list[str] = []

    def read(self: Any, *arguments: Any) -> Any:
        seen.append("read")
        return real(self, *arguments)

    real = Verifier.read
    monkeypatch.setattr(Verifier, "read", read)
    return seen


def found_by(
    method: str, models: Sequence[Any], sample: Any, iterations: list[str], **options: Any
) -> Any:
    task = make_task(method)
    generator = task.build_generator(list(models), generation_options(**options))
    if method == "stock" and generator.repeat_ngram_blocker is not None:
        generator.repeat_ngram_blocker = WorkingBlocker(generator.repeat_ngram_blocker)
    del iterations[:]  # of the sentence that warms up
    return task.inference_step(generator, list(models), sample)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("members", MEMBERS)
def test_as_stock_and_without_python(members: str, way: str, iterations: list[str]) -> None:
    method, beam, options = WAYS[way]
    options = options | {"beam": beam}
    for seed in range(3):
        models = [
            make_model(make_task(), 7 * seed + n, **own) for n, own in enumerate(MEMBERS[members])
        ]
        sample = make_batch(random_sources(seed, 1 + 2 * seed, longest=12))
        found = found_by(method, models, sample, iterations, **options)
        assert iterations == []
        expected = found_by("stock", models, sample, iterations, **options)
        for mine, other in zip(found, expected, strict=True):
            assert_same(mine, other)


@pytest.mark.parametrize("method", ["greedy", "iad", "beam"])
def test_the_same_bits_window_by_window(
    method: str, iterations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in 8 bits, whatever is decided together, and with a pause after every window."""
    models = [make_model(make_task(), seed, **own) for seed, own in ((3, {}), (4, SMALLER))]
    sample = make_batch(random_sources(5, 6))
    for precision in ("none", "all"):
        found = []
        for part, pause, whole in ((6 << 20, 1.0, True), (200, 0.0, True), (1, 1.0, False)):
            with monkeypatch.context() as patch:
                patch.setattr(reader, "TOGETHER", part)
                patch.setattr(reader, "PAUSE", pause)
                if not whole:
                    told = "fairseq_aggdec.search.engines.read_by_windows"
                    patch.setattr(told, lambda request: "told so")
                task = make_task(method, int8=precision)
                options = generation_options(beam=3 if method == "beam" else 1)
                generator = task.build_generator(models, options)
                generator.ahead = False  # of beam search
                del iterations[:]
                found.append(task.inference_step(generator, models, sample))
            assert bool(iterations) is not whole
        for other in found[1:]:
            for mine, theirs in zip(found[0], other, strict=True):
                for one, same in zip(mine, theirs, strict=True):
                    assert torch.equal(one["tokens"], same["tokens"])
                    assert torch.equal(one["positional_scores"], same["positional_scores"])


def test_mean_probabilities() -> None:
    """As PyTorch's in double precision, also of tokens that are impossible, and NaN where a model gives NaN."""
    chance, library = random.Random(1), kernels()
    for models in (1, 2, 3, 8):
        for types in (5, 16, 37, 1003):
            own = torch.Generator().manual_seed(chance.randrange(1 << 30))
            logits = torch.randn(models, 6, types, generator=own) * 5
            logits[:, 1, 3] = logits[0, 2, 0] = -torch.inf
            logits[-1, 4, 2] = torch.nan
            log_probs = logits.double().log_softmax(-1)
            expected = torch.logsumexp(log_probs, 0) - torch.tensor(models).double().log()
            rows = logits.shape[1]
            library.aggdec_average(logits.data_ptr(), models, rows, types, 2)
            torch.testing.assert_close(
                logits[0], expected.float(), atol=1e-5, rtol=0, equal_nan=True
            )
