"""Every method on a GPU, or on the strict device in its place, against stock fairseq on the CPU."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.audit.equality import SCORE_TOLERANCE
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES, Case, Hypotheses

SIZES = {"encoder_layers": 2, "decoder_layers": 2}
CHAIN = device_cases.HEADS | {"head_layout": "per-head", "slot_chain": True}
BY_NAME = {case.name: case for case in CASES}
EAGER = {"no_graphs": True}
UNCOUNTED = [  # they go the ways of cases that are counted, but for a line or two
    Case("greedy, a norm behind the embeddings", "greedy", model={"layernorm_embedding": True}),
    Case("greedy, no positions", "greedy", model={"no_token_positional_embeddings": True}),
    Case("unknown words, no graphs", "iad", task=EAGER, generation={"unkpen": -4.0, "min_len": 5}),
    replace(
        BY_NAME["lattice, serial"],
        name="lattice, vocabulary",
        task=BY_NAME["lattice, serial"].task | {"lattice_normalise": "vocabulary"},
    ),
    Case("prefix, no graphs", "iad", task=EAGER, prefix=BY_NAME["prefix, gad"].prefix),
    *[
        Case(
            f"source copy, {name}",
            decoding,
            drafter=("nar_drafter", {"block_size": 5} | device_cases.COPY | model),
            task=task,
            stock=False,
        )
        for name, decoding, model, task in (
            ("nar, shared encoder", "nar", {"shares_encoder": True}, {}),
            ("nar, norm", "nar", {"layernorm_embedding": True, "decoder_learned_pos": False}, {}),
            ("nar, no graphs", "nar", {}, EAGER),
            ("gad, no graphs", "gad", {}, EAGER),
        )
    ],
    *[
        Case(name, "blockwise", "blockwise_transformer", CHAIN, task=task)
        for name, task in (
            ("blockwise, chain", {}),
            ("blockwise, trees, chain", {"draft_tree": "7"}),
        )
    ],
    *[
        Case(name, "blockwise", "blockwise_transformer", CHAIN | {"head_layers": 1}, task=task)
        for name, task in (
            ("blockwise, layers", {}),
            ("blockwise, layers, trees", {"draft_tree": "7"}),
        )
    ],
]
# One of each way through the code that the precision could take.
IN_HALF = [
    "greedy",
    "iad, unique",
    "gad",
    "gad, source copy, causal",
    "gad, next, chain, causal",
    "gad, trees, next, chain, causal",
    "gad, shared encoder",
    "blockwise, dense",
    "blockwise, per head",
    "beam 3",
    "interleaved, one word, beam 3",
]


def assert_equal(
    found: Hypotheses, expected: Hypotheses, device: torch.device, tolerance: float = 1e-4
) -> None:
    assert len(found) == len(expected)
    for sentence, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert len(ours) == len(theirs)
        for hypothesis, reference in zip(ours, theirs, strict=True):
            for name in ("tokens", "positional_scores", "score"):
                assert hypothesis[name].device == device, name
            assert hypothesis["tokens"].tolist() == reference["tokens"].tolist(), sentence
            for name in ("positional_scores", "score"):
                torch.testing.assert_close(
                    hypothesis[name].cpu().float(),
                    reference[name].float(),
                    atol=tolerance,
                    rtol=1e-4,
                )


@pytest.mark.parametrize("case", [*CASES, *UNCOUNTED], ids=lambda case: case.name)
def test_output_is_what_it_must_be(case: Case, gpu: torch.device, tmp_path: Path) -> None:
    """Batches of two sizes in turn: the last one finds what was made for the first."""
    models, drafter = device_cases.random_models(case, SIZES)
    samples = [device_cases.batch(seed, rows) for seed, rows in ((1, 4), (2, 1), (3, 4))]
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    wanted = device_cases.expected(case, models, drafter, tmp_path, samples)
    for sample, reference in zip(samples, wanted, strict=True):
        found = ready.decode(sample, device_cases.prefix_of(case, len(sample["id"])))
        assert_equal(found, reference, gpu)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("name", IN_HALF)
def test_half_precision(name: str, dtype: torch.dtype, gpu: torch.device, tmp_path: Path) -> None:
    """Stock in the same precision on the CPU says the same up to the first token that hardly beats another."""
    case, precision = BY_NAME[name], {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    models, drafter = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(3, 4)
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu, dtype)
    found = ready.decode(sample, None)
    (expected,) = device_cases.expected(case, models, drafter, tmp_path, [sample], dtype)
    alike = 0
    for (ours, *_), (theirs, *_) in zip(found, expected, strict=True):
        pairs = zip(ours["tokens"].tolist(), theirs["tokens"].tolist(), strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(theirs["tokens"]))
        alike += same
        gap = ours["positional_scores"][:same].cpu().float() - theirs["positional_scores"][:same]
        assert gap.abs().amax() <= SCORE_TOLERANCE[precision] if same else True
    tokens = sum(len(hypotheses[0]["tokens"]) for hypotheses in expected)
    assert alike > 0.6 * tokens


DURING_TRAINING = ["greedy", "iad, unique", "gad", "gad, shared encoder", "nar", "blockwise, dense"]


@pytest.mark.parametrize("name", [*DURING_TRAINING, "interleaved, one word, beam 3"])
def test_a_generator_follows_training_to_the_device(
    name: str, gpu: torch.device, tmp_path: Path
) -> None:
    """``--eval-bleu``: made while the model is on the CPU, used when it has moved and its weights have changed."""
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    ready = device_cases.prepared(case, models, drafter, tmp_path, torch.device("cpu"))
    sample = device_cases.batch(4, 3)
    ready.device = gpu
    for model in ready.models:
        model.to(gpu)
    optimizer = torch.optim.SGD([p for m in ready.models for p in m.parameters()], lr=1.0)
    for step in range(3):
        trained = [copy.deepcopy(model) for model in models]
        for model, twin in zip(ready.models, trained, strict=True):
            twin.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
            model.train().eval()
        own = drafter
        if name == "gad, shared encoder":
            own = copy.deepcopy(drafter)
            own.encoder.load_state_dict(trained[0].encoder.state_dict())
        (wanted,) = device_cases.expected(case, trained, own, tmp_path, [sample])
        assert_equal(ready.decode(sample, None), wanted, gpu)
        if name == "gad, shared encoder":
            break  # its verifier must not change
        train(ready.models, optimizer, step)


def train(models: list[Any], optimizer: torch.optim.Optimizer, seed: int) -> None:
    """One update with random gradients, written through ``parameter.data`` as fairseq's optimisers do."""
    generator = torch.Generator().manual_seed(seed)
    for model in models:
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.add_((0.05 * noise).to(parameter.device))
    optimizer.step()
