"""Blockwise parallel decoding: head 1's greedy output with fewer calls, whatever the other heads propose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.budget.draft_length import DraftLength
from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.chain import CANDIDATES
from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.heads import FastHeads
from fairseq_aggdec.engine.plain.support import decoder_gap
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.state import DecodeState, Row
from tests.support import (
    assert_same,
    generate,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)

LAYOUTS = pytest.mark.parametrize("layout", ["dense", "per-head"])
FIRST = pytest.mark.parametrize("identity", [False, True])


def headed(
    layout: str = "per-head", identity: bool = False, block_size: int = 4, **options: Any
) -> Any:
    """A random model whose heads propose all sorts of things."""
    return make_model(
        make_task(),
        5,
        "blockwise_transformer",
        block_size=block_size,
        head_layout=layout,
        head_hidden_dim=8,
        identity_first_head=identity,
        **options,
    )


def chained(layout: str = "per-head", identity: bool = False) -> Any:
    """The same with a chain that says much; an untrained one says nothing."""
    model = headed(layout, identity, slot_chain=True)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.decoder.chain.parameters():
            parameter.normal_(0, 0.5)
    return model


def blockwise(
    model: Any, sample: dict[str, Any], prefix: Tensor | None = None, **options: Any
) -> Any:
    names = ("draft_tokens", "acceptance", "draft_tree")
    chosen = {name: options.pop(name) for name in names if name in options}
    return generate(make_task("blockwise", **chosen), [model], sample, prefix, **options)


@LAYOUTS
@FIRST
@pytest.mark.parametrize("rows", [1, 8])
def test_output_is_head_1s_own(layout: str, identity: bool, rows: int) -> None:
    model = headed(layout, identity)
    assert decoder_gap(model.decoder) is None
    for seed in range(3):
        sample = make_batch(random_sources(seed, rows))
        assert_same(blockwise(model, sample), stock([model], sample))


@LAYOUTS
@pytest.mark.parametrize("block_size", [1, 2, 3, "auto"])
def test_blocks_smaller_than_trained(layout: str, block_size: int) -> None:
    model = headed(layout)
    sample = make_batch(random_sources(3, 5))
    assert_same(blockwise(model, sample, draft_tokens=block_size), stock([model], sample))


@LAYOUTS
@pytest.mark.parametrize("nodes", ["1", "5", "40", "auto"])
def test_trees(layout: str, nodes: str) -> None:
    model = headed(layout)
    sample = make_batch(random_sources(3, 5))
    prefix = torch.tensor([[5, 6, 7], [9, 1, 1], [4, 4, 1], [5, 1, 1], [1, 1, 1]])
    for options in ({}, {"min_len": 6, "max_len_b": 9}, {"unkpen": -3.0}):
        expected = stock([model], sample, prefix, **options)
        assert_same(blockwise(model, sample, prefix, draft_tree=nodes, **options), expected)


@pytest.mark.parametrize(
    "options", [{"decoder_output_dim": 12}, {"decoder_layers": 0, "head_layers": 2}], ids=str
)
def test_heads_behind_other_layers(options: dict[str, Any]) -> None:
    """Where features are of another size than what layers write, memory was spoilt: they were read beyond their end."""
    model, sample = headed(**options), make_batch(random_sources(3, 4))
    for chosen in ({}, {"draft_tokens": 1}, {"strict": 5, "draft_tokens": 1}):
        assert_same(blockwise(model, sample, **chosen), stock([model], sample))


@LAYOUTS
@FIRST
@pytest.mark.parametrize("rows", [1, 6])
def test_a_chain_over_the_heads(layout: str, identity: bool, rows: int) -> None:
    model = chained(layout, identity)
    assert decoder_gap(model.decoder) is None
    sample = make_batch(random_sources(3, rows))
    prefix = torch.tensor([[5, 6, 7], *[[9, 1, 1]] * (rows - 1)])
    for options in ({}, {"min_len": 6, "max_len_b": 9}):
        expected = stock([model], sample, prefix, **options)
        for chosen in ({}, {"draft_tokens": 2}, {"draft_tokens": "auto"}):
            for nodes in (None, "1", "7", "auto"):
                found = blockwise(model, sample, prefix, draft_tree=nodes, **chosen, **options)
                assert_same(found, expected)


def test_a_chain_drafts_what_goes_together() -> None:
    """Against one head after the other, each told the token that was chosen before it."""
    model = chained()
    drafter, decoder = BlockwiseHeadsDrafter(DraftLength(3)), model.decoder
    verifier, sample = Verifier([model]), make_batch(random_sources(3, 5))
    rows = [Row(i, [2, 5 + i, 9], end=9, floor=0) for i in range(5)]
    state = DecodeState(rows, 2, torch.device("cpu"))
    with torch.inference_mode():
        verifier.start(sample["net_input"], 8)
        drafter.start(sample, verifier, state)
        drafter.features = features = torch.randn(5, 16)
        drafter.places = list(range(5))
        found = drafter.draft(state).tokens
        heads = decoder.heads(features, range(1, 4))
        for row, slots, block in zip(rows, heads, found, strict=True):
            before, expected = row.tokens[-1], []
            for slot in slots:
                told = decoder.output_projection(decoder.chained(slot, torch.tensor(before)))
                likely = decoder.output_projection(slot).topk(CANDIDATES).indices
                before = int(likely[told[likely].argmax()])
                expected.append(before)
            assert block == expected
        alone = decoder.output_projection(heads).argmax(-1).tolist()
    assert [list(block) for block in found] != alone


def test_a_chain_may_say_nothing_and_a_broken_one_ends_drafting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sample = make_batch(random_sources(3, 5))
    model = headed(slot_chain=True)
    plain = blockwise(headed(), sample)
    model.load_state_dict(headed().state_dict(), strict=False)  # as from an older checkpoint
    torch.nn.init.zeros_(model.decoder.chain.write.weight)  # as it begins
    torch.nn.init.zeros_(model.decoder.chain.write.bias)
    assert [h["steps"] for h in blockwise(model, sample)] == [h["steps"] for h in plain]
    with torch.no_grad():
        model.decoder.chain.read_slot.bias[0] = torch.nan
    found = blockwise(model, sample)
    assert_same(found, stock([model], sample))
    assert "block heads have NaN or infinity in their weight" in caplog.text
    assert all(h["steps"] == len(h["tokens"]) for h in found)


def test_heads_that_draft_nothing() -> None:
    model, sample = headed(block_size=1), make_batch(random_sources(3, 5))
    for options in ({}, {"draft_tokens": "auto"}, {"draft_tree": "auto"}):
        assert_same(blockwise(model, sample, **options), stock([model], sample))


def test_wider_trees_save_iterations() -> None:
    model, sample = headed(), make_batch(random_sources(3, 8))
    steps = []
    for nodes in (None, "6", "64"):
        found = blockwise(model, sample, draft_tree=nodes)
        steps.append(sum(hypothesis["steps"] for hypothesis in found))
    assert steps == sorted(steps, reverse=True) and steps[-1] < steps[0]


@LAYOUTS
@FIRST
def test_fast_heads_equal_the_module(layout: str, identity: bool) -> None:
    model = headed(layout, identity)
    decoder = CachedDecoder(model.decoder)
    assert decoder.heads is not None
    features = torch.randn(5, 16)
    with torch.inference_mode():
        expected = model.decoder.heads(features, range(4))
        torch.testing.assert_close(decoder.heads.first(features), expected[:, 0])
        for block_size in (2, 3, 4):
            found = decoder.heads.exact.others(features, block_size)
            torch.testing.assert_close(found, expected[:, 1:block_size])
        _, proposed = decoder.heads.propose(features, 4)
    logits = model.decoder.output_projection(model.decoder.heads(features, range(1, 4)))
    torch.testing.assert_close(proposed, logits)


@LAYOUTS
@FIRST
def test_proposals_in_8_bits_change_no_output(layout: str, identity: bool) -> None:
    model, sample = headed(layout, identity), make_batch(random_sources(4, 5))
    task = make_task("blockwise", int8="drafts")
    assert_same(generate(task, [model], sample), stock([model], sample))
    assert task.counters.drafted > 0


@LAYOUTS
@FIRST
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_fast_heads_in_half_precision(layout: str, identity: bool, dtype: torch.dtype) -> None:
    heads = headed(layout, identity).decoder.heads.to(dtype)
    fast, features = FastHeads(heads), torch.randn(5, 16).to(dtype)
    with torch.inference_mode():
        expected = heads(features, range(4))
        found = torch.cat([fast.first(features).unsqueeze(1), fast.others(features, 4)], dim=1)
    assert found.dtype is dtype
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.02)


class Oracle:
    """Stands in for the heads' proposals: the next tokens of a known output, of which ``right`` are right."""

    def __init__(self, model: Any, output: list[int], right: int):
        self.model, self.output, self.right = model, output, right

    def attach(self, generator: Any) -> None:
        verifier, drafter = generator.verifier, generator.drafter
        state_of = drafter.draft

        def draft(state: Any) -> Any:
            self.position = state.rows[0].position
            drafter.proposer = None  # the library asks the heads themselves
            verifier.heads.propose = self.propose
            return state_of(state)

        drafter.draft = draft

    def propose(self, features: Tensor, block_size: int, *_: Any) -> tuple[Tensor, Tensor]:
        following = self.output[self.position : self.position + block_size - 1]
        wrong = [4 if token != 4 else 5 for token in following[self.right :]]
        block = following[: self.right] + wrong
        tokens = torch.tensor([block + [4] * (block_size - 1 - len(block))])
        types = len(self.model.decoder.dictionary)
        return features, torch.nn.functional.one_hot(tokens, types).float()


@pytest.mark.parametrize("right", [0, 1, 3])
def test_calls_when_so_many_proposals_are_right(right: int) -> None:
    model = headed()
    sample = make_batch(random_sources(11, 1))
    expected = stock([model], sample)
    output = expected[0]["tokens"].tolist()
    task, oracle = make_task("blockwise"), Oracle(model, output, right)
    found = generate(task, [model], sample, prepare=oracle.attach)
    assert_same(found, expected)
    # The first call has no draft and gives one token; each further one the right proposals and the correction token.
    assert task.counters.calls == 1 + -(-(len(output) - 1) // (right + 1))


def test_a_batch_takes_as_many_calls_as_its_slowest_row() -> None:
    model, task = headed(), make_task("blockwise")
    sample = make_batch(random_sources(11, 8))
    found = generate(task, [model], sample)
    assert_same(found, stock([model], sample))
    assert task.counters.calls == max(hypothesis["steps"] for hypothesis in found)
    # Rows that are finished are gone.
    assert task.counters.iterations == sum(hypothesis["steps"] for hypothesis in found)


def test_a_relaxed_rule_accepts_more_and_one_of_rank_1_is_exact() -> None:
    model = headed()
    sample = make_batch(random_sources(13, 8))
    exact = blockwise(model, sample)
    assert_same(blockwise(model, sample, acceptance="top-k:1"), exact)
    assert_same(blockwise(model, sample, acceptance="top-beta:1"), exact)
    steps = sum(hypothesis["steps"] for hypothesis in exact)
    relaxed = blockwise(model, sample, acceptance="top-k:12")
    assert sum(hypothesis["steps"] for hypothesis in relaxed) < steps


def test_relaxed_scores_are_those_of_what_was_emitted() -> None:
    model = headed()
    sample = make_batch(random_sources(13, 1))
    (found,) = blockwise(model, sample, acceptance="top-k:12")
    previous = torch.cat([torch.tensor([2]), found["tokens"][:-1]]).unsqueeze(0)
    logits = model(**sample["net_input"], prev_output_tokens=previous)[0][0]
    expected = logits.log_softmax(-1).gather(1, found["tokens"].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(found["positional_scores"], expected, atol=1e-4, rtol=1e-4)


def test_minimum_block() -> None:
    model = headed()
    sample = make_batch(random_sources(17, 1))
    (found,) = blockwise(model, sample, acceptance="min:4")
    tokens = len(found["tokens"])
    assert found["steps"] == 1 + -(-(tokens - 1) // 4)


def test_heads_read_the_features_of_the_last_place_that_stands() -> None:
    """Where whole blocks stand the output is that of the heads by definition, with full forwards."""
    model, sample = headed(), make_batch(random_sources(17, 1))
    (found,) = blockwise(model, sample, acceptance="min:4")
    with torch.inference_mode():
        source = model.encoder(**{k: v for k, v in sample["net_input"].items() if "src" in k})
        tokens, limit = [2], len(found["tokens"]) + 1
        while len(tokens) < limit:
            features, _ = model.decoder(torch.tensor([tokens]), source, features_only=True)
            ahead = model.decoder.heads(features[0, -1:], range(4))  # (1, 4, C)
            logits = model.decoder.output_projection(ahead)[0]
            logits[:, 1] = -torch.inf
            tokens += logits.argmax(-1).tolist()
    assert found["tokens"].tolist()[:-1] == tokens[1 : limit - 1]  # the last is a forced </s>


def test_options_hold_under_relaxed_acceptance() -> None:
    model = headed()
    sample = make_batch(random_sources(19, 6))
    for hypothesis in blockwise(model, sample, acceptance="min:4", min_len=5, max_len_b=7):
        tokens = hypothesis["tokens"].tolist()
        assert 5 <= tokens.index(2) <= 7
        assert 1 not in tokens
