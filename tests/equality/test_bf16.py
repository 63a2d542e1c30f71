"""Models in bfloat16 on a CPU: products of the compiled library round to it, and nothing else does.

So every method gives what greedy gives, bit for bit, in every batch. The oracle is stock fairseq on a model in fp32.
Its linear layers are replaced by their definition in bfloat16, with sums in fp64. Stock in bfloat16 rounds more.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_aggdec.audit.equality import TIE_MARGIN
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.library import multiplies_bf16
from fairseq_aggdec.methods import gad as gad_method
from fairseq_aggdec.windows.window import Window
from tests.equality.test_blockwise import FIRST, LAYOUTS, headed
from tests.equality.test_gad import ALL, drafter
from tests.equality.test_int8 import (
    ANYHOW,
    MODELS,
    assert_identical,
    assert_near,
    by_definition,
    one_by_one,
)
from tests.equality.test_int8 import _instructions as _instructions
from tests.support import (
    generate,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
    trained_copier,
)


@pytest.fixture(autouse=True)
def _compiled(request: Any) -> None:
    if "_instructions" in request.fixturenames:
        request.getfixturevalue("_instructions")
    if not multiplies_bf16():
        pytest.skip("no compiled products in bfloat16")


def decode(decoding: str, model: Any, sample: dict[str, Any], **options: Any) -> Any:
    task = make_task(decoding, model.encoder.dictionary, model.decoder.dictionary)
    return generate(task, [model], sample, **options)


@ANYHOW
@MODELS
def test_batches_and_windows_change_nothing(options: dict[str, Any]) -> None:
    model = make_model(make_task(), 4, **options).bfloat16()
    sources = random_sources(4, 9)
    expected = one_by_one(model, sources, int8=False)
    sample = make_batch(sources)
    assert_identical(decode("greedy", model, sample), expected)
    assert_identical(decode("iad", model, sample), expected)


@ALL
@pytest.mark.parametrize("int8", [None, "drafts"])
def test_drafters(
    variant: dict[str, Any], int8: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier, model = make_model(make_task(), 5).bfloat16(), drafter(**variant)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: model)
    sources = random_sources(3, 7)
    expected = one_by_one(verifier, sources, int8=False)
    task = make_task("gad", drafter_path="drafter.pt", int8=int8)
    assert_identical(generate(task, [verifier], make_batch(sources)), expected)
    assert task.counters.drafted > 0


@LAYOUTS
@FIRST
def test_block_heads(layout: str, identity: bool) -> None:
    model, sources = headed(layout, identity).bfloat16(), random_sources(4, 7)
    expected = one_by_one(model, sources, int8=False)
    assert_identical(decode("blockwise", model, make_batch(sources)), expected)


def test_ensembles() -> None:
    models = [make_model(make_task(), seed).bfloat16() for seed in (4, 5)]
    sample = make_batch(random_sources(4, 9))
    expected = generate(make_task("greedy"), models, sample)
    assert_identical(generate(make_task("iad"), models, sample), expected)


def test_a_shortlist() -> None:
    verifier = Verifier([make_model(make_task(), 4).bfloat16()])
    sources, said = random_sources(4, 5), []
    with torch.inference_mode():
        for batch in (sources, *([source] for source in sources)):
            verifier.start(make_batch(batch)["net_input"], 4)
            verifier.restrict(torch.tensor([4, 7, 20]))
            rows = len(batch)
            said.append(
                verifier.read(Window(torch.full((rows,), 2), [0] * rows, [1] * rows)).logits
            )
    together, *alone = said
    assert torch.equal(together, torch.cat(alone)) and int(together.isfinite().sum()) == 15


class InBfloat16(nn.Module):
    """A linear layer whose inputs and weights are rounded to bfloat16."""

    def __init__(self, module: nn.Linear):
        super().__init__()
        self.weight, self.bias = module.weight, module.bias  # fairseq looks at the weight
        self.rounded = module.weight.detach().bfloat16().double().t()

    def forward(self, x: Tensor) -> Tensor:
        y = (x.bfloat16().double() @ self.rounded).float()
        return y if self.bias is None else y + self.bias


def defined(model: Any) -> Any:
    """A copy in fp32 of a model in bfloat16, whose linear layers, and nothing else, round to it."""
    return by_definition(copy.deepcopy(model).float(), InBfloat16)


@pytest.mark.parametrize("options", [{}, {"no_token_positional_embeddings": True}], ids=str)
def test_stock_on_the_model_by_definition(options: dict[str, Any]) -> None:
    """Sinusoids are rounded, which the definition in fp32 does not do: they are left out or learned."""
    model = make_model(make_task(), 3, **(options or LEARNED)).bfloat16()
    sample = make_batch(random_sources(23, 40))
    assert_near(decode("greedy", model, sample), stock([defined(model)], sample), 0.95)
    for ours, theirs in zip(
        decode("beam", model, sample, beam=3),
        stock([defined(model)], sample, beam=3),
        strict=True,
    ):
        torch.testing.assert_close(ours["score"], theirs["score"], atol=0.02, rtol=0.02)


LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}


def test_stock_in_bfloat16_rounds_more() -> None:
    """It rounds between products too: fewer of its sentences are those of the same weights in fp32."""
    model = copy.deepcopy(trained_copier()[1]).bfloat16()
    sources = random_sources(12, 60, longest=25)
    sample = make_batch(sources)
    exact = stock([copy.deepcopy(model).float()], sample)
    found, theirs = decode("iad", model, sample), stock([model], sample)
    assert_identical(found, one_by_one(model, sources, int8=False))

    def near(hypotheses: list[dict[str, Any]]) -> int:
        pairs = zip(hypotheses, exact, strict=True)
        return sum(one["tokens"].tolist() == other["tokens"].tolist() for one, other in pairs)

    assert near(found) >= near(theirs) and near(found) >= 0.8 * len(exact)
    for ours, other in zip(found, exact, strict=True):
        if ours["tokens"].tolist() == other["tokens"].tolist():
            error = (ours["positional_scores"] - other["positional_scores"]).abs().max()
            assert error < TIE_MARGIN["bf16"]


def test_the_form_is_fp32_and_the_model_is_left_alone() -> None:
    """But for what is packed in bfloat16: of that there is no copy in fp32."""
    model = make_model(make_task(), 1).bfloat16()
    verifier = Verifier([model])
    verifier.prepare()
    (member,) = verifier.members
    assert member.decoder.packed.precision.bf16 and member.decoder.compiled is not None
    halves = [
        name
        for name, p in member.decoder.decoder.named_parameters()
        if p.dtype is not torch.float32
    ]
    assert halves and all(".layers." in f".{name}" and "norm" not in name for name in halves)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    tied = member.decoder.decoder
    assert (model.decoder.output_projection.weight is model.decoder.embed_tokens.weight) == (
        tied.output_projection.weight is tied.embed_tokens.weight
    )


def test_what_sinusoids_are_does_not_depend_on_what_ran_before() -> None:
    """Stock keeps its table rounded after its first batch."""
    sources = random_sources(4, 9)
    fresh, used = (make_model(make_task(), 4).bfloat16() for _ in range(2))
    stock([used], make_batch(sources))
    assert_identical(*(one_by_one(model, sources, int8=False) for model in (fresh, used)))
