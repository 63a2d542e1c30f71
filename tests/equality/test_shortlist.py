"""``--shortlist`` against stock fairseq with a model that cannot say any other word."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.engine.linear import fast_kernels
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.lattice.candidates import Shortlist
from tests.equality.test_blockwise import headed
from tests.random_models import random_tables
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

PAD, EOS, UNK = 1, 2, 3
COUNT = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "lattice"
    task = make_task()
    random_tables().save(path, task.source_dictionary, task.target_dictionary, {"command": "test"})
    return path


def types_of(sample: dict[str, Any]) -> Tensor:
    return Shortlist(random_tables(), COUNT, "interpolated")(sample["net_input"]["src_tokens"])


def confined(model: Any, types: Tensor) -> Any:
    """A copy of the model to which all other types are impossible."""
    model = copy.deepcopy(model)
    whole: Callable[[Tensor], Tensor] = model.decoder.output_layer
    mask = torch.full((len(model.decoder.dictionary),), -torch.inf)
    mask[types] = 0.0
    model.decoder.output_layer = lambda features: whole(features) + mask
    return model


def test_the_likeliest_words_and_special_symbols() -> None:
    source = torch.tensor([[5, 9, 12, EOS], [30, 31, EOS, PAD]])
    lattice = random_tables().lattice(source, COUNT + 2, "interpolated")
    words = {int(token) for token in lattice.tokens.flatten()}
    found = Shortlist(random_tables(), COUNT, "interpolated")(source)
    assert set(found.tolist()) == words | {PAD, EOS, UNK}
    assert found.tolist() == sorted(set(found.tolist()))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("decoding", ["greedy", "iad", "blockwise"])
def test_one_model_and_several_batches(decoding: str, bias: bool, folder: Path) -> None:
    model = headed() if decoding == "blockwise" else make_model(make_task(), 3)
    if bias:
        projection = model.decoder.output_projection
        projection.bias = torch.nn.Parameter(torch.randn(projection.out_features))
    task = make_task(decoding, shortlist=COUNT, lattice=str(folder))
    generator = task.build_generator([model], generation_options())
    whole = 0
    for seed in range(6):
        sample = make_batch(random_sources(seed, 1 + seed))
        types = types_of(sample)
        found = task.inference_step(generator, [model], sample)
        expected = stock([confined(model, types)], sample)
        assert_same([hypotheses[0] for hypotheses in found], expected)
        for (hypothesis,) in found:
            assert set(hypothesis["tokens"].tolist()) <= set(types.tolist())
        unconfined = stock([model], sample)
        whole += sum(
            a["tokens"].tolist() != b["tokens"].tolist()
            for a, b in zip(expected, unconfined, strict=True)
        )
    assert whole > 0  # else nothing was tested


@pytest.mark.skipif(not fast_kernels(), reason="no compiled kernels for fp32")
@pytest.mark.parametrize("int8", ["none", "all"])
def test_no_python_between_iterations(
    int8: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library multiplies with the types on the list only, and its bits are those of the whole product."""
    model = make_model(make_task(), 3)
    task = make_task("iad", shortlist=COUNT, lattice=str(folder), int8=int8)
    generator = task.build_generator([model], generation_options())
    sample = make_batch(random_sources(2, 5))
    types = types_of(sample)
    monkeypatch.setattr(Verifier, "read", None)
    found = task.inference_step(generator, [model], sample)
    projection = model.decoder.output_projection
    whole = torch.nn.Linear(projection.in_features, projection.out_features)
    whole.weight = projection.weight
    whole.bias = torch.nn.Parameter(torch.full((projection.out_features,), -torch.inf))
    whole.bias.data[types] = 0.0
    model.decoder.output_projection = whole
    generator.shortlist = None
    expected = task.inference_step(generator, [model], sample)
    for (mine,), (other,) in zip(found, expected, strict=True):
        assert torch.equal(mine["tokens"], other["tokens"])
        assert torch.equal(mine["positional_scores"], other["positional_scores"])


def test_ensembles_and_options(folder: Path) -> None:
    models = [make_model(make_task(), seed) for seed in (3, 4)]
    sample = make_batch(random_sources(7, 4))
    options = {"unkpen": 0.5, "min_len": 4, "temperature": 0.7, "lenpen": 0.6}
    task = make_task("iad", shortlist=COUNT, lattice=str(folder))
    expected = stock([confined(model, types_of(sample)) for model in models], sample, **options)
    assert_same(generate(task, models, sample, **options), expected)


def test_a_shortlist_of_everything_is_lossless(folder: Path) -> None:
    model = make_model(make_task(), 3)
    task = make_task("greedy")
    task.cfg.lattice = str(folder)
    sample = make_batch(random_sources(8, 5))
    generator = task.build_generator([model], generation_options())
    generator.shortlist = lambda source: torch.arange(len(task.target_dictionary))
    found = task.inference_step(generator, [model], sample)
    assert_same([hypotheses[0] for hypotheses in found], stock([model], sample))


def test_it_says_that_it_is_not_lossless(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = make_task("greedy", shortlist=COUNT, lattice=str(folder))
    with caplog.at_level(logging.INFO, "fairseq_aggdec"):
        task.build_generator([make_model(make_task(), 3)], generation_options())
    assert "--shortlist 3 is not lossless" in caplog.text


def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path) -> None:
    models = [make_model(make_task(), 3)]

    def build(decoding: str, shortlist: int = COUNT, lattice: Path = folder, **options: Any) -> Any:
        task = make_task(decoding, shortlist=shortlist, lattice=str(lattice))
        return task, task.build_generator(models, generation_options(**options))

    for decoding in ("beam", "lattice", "interleaved", "nar"):
        with pytest.raises(ValueError, match="--shortlist does not go with"):
            build(decoding, beam=2)  # of 1, beam search is iad
    with pytest.raises(ValueError, match="--shortlist -1"):
        build("greedy", -1)
    with pytest.raises(ValueError, match="--prefix-size does not go with --shortlist"):
        build("greedy", prefix_size=1)
    with pytest.raises(FileNotFoundError):
        build("greedy", lattice=tmp_path / "none")
