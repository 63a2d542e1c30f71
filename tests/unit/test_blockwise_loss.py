"""Targets of the heads and the accepted block that a reference would give, against one position at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.logging import metrics
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairseq_aggdec.criterions.blockwise_loss import (
    BlockwiseLoss,
    BlockwiseLossConfig,
    accepted_on_reference,
    shift,
)
from fairseq_aggdec.models.block_heads import DENSE, PER_HEAD, BlockHeads
from tests.support import make_batch, make_model, make_task, random_sources

PAD = 1
TOKENS = st.integers(2, 5)


def padded(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])


@given(
    st.lists(st.lists(TOKENS, min_size=1, max_size=6), min_size=1, max_size=3), st.integers(0, 3)
)
def test_a_head_learns_nothing_past_the_end(rows: list[list[int]], head: int) -> None:
    shifted = shift(padded(rows), head, PAD).tolist()
    width = max(map(len, rows))
    for row, found in zip(rows, shifted, strict=True):
        assert found == [row[i + head] if i + head < len(row) else PAD for i in range(width)]


@given(st.data())
def test_accepted_block_against_one_position_at_a_time(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(TOKENS, min_size=1, max_size=6), min_size=1, max_size=3))
    target, heads = padded(rows), data.draw(st.integers(1, 4))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    predicted = [torch.randint(2, 4, target.shape) for _ in range(heads)]
    gained = 0
    for row, tokens in enumerate(rows):
        for start in range(len(tokens)):
            block = 1
            while (
                block < heads
                and start + block < len(tokens)
                and predicted[block][row, start] == predicted[0][row, start + block]
            ):
                block += 1
            gained += block
    found, positions = accepted_on_reference(predicted, target, PAD)
    assert (int(found), int(positions)) == (gained, sum(map(len, rows)))


@pytest.mark.parametrize("layout", [DENSE, PER_HEAD])
@pytest.mark.parametrize("identity", [False, True])
def test_heads_begin_as_the_base_and_one_at_a_time_equals_all(layout: str, identity: bool) -> None:
    heads = BlockHeads(3, 4, 5, layout, identity)
    features = torch.randn(2, 6, 4)
    assert torch.equal(heads(features, range(3)), features.unsqueeze(2).expand(-1, -1, 3, -1))
    torch.nn.init.normal_(heads.contract.weight)
    together = heads(features, range(3))
    for head in range(3):
        alone = heads(features, [head]).squeeze(2)
        torch.testing.assert_close(alone, together[:, :, head])
        assert torch.equal(alone, features) == (identity and head == 0)


def criterion(head_loss: str, decay: float = 1.0, positions: float = 1.0) -> BlockwiseLoss:
    config = BlockwiseLossConfig(label_smoothing=0.1, sentence_avg=False, head_decay=decay)
    config.head_loss, config.head_positions = head_loss, positions
    return BlockwiseLoss(config, make_task())


def sample_with_targets(sources: list[list[int]] | None = None) -> dict[str, Any]:
    sources = random_sources(1, 4) if sources is None else sources
    sample = make_batch(sources)
    sample["target"] = padded([[*source, 2] for source in sources])
    previous = padded([[2, *source] for source in sources])
    sample["net_input"]["prev_output_tokens"] = previous
    sample["ntokens"] = int((sample["target"] != PAD).sum())
    return sample


@pytest.mark.parametrize(("decay", "weights"), [(1.0, (1, 1, 1)), (0.5, (4, 2, 1))])
def test_drawn_heads_average_to_the_mean_of_all(
    decay: float, weights: tuple[int, int, int]
) -> None:
    model = make_model(make_task(), 2, "blockwise_transformer", block_size=3, head_hidden_dim=8)
    model.train()
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
        if hasattr(module, "dropout_module"):
            module.dropout_module.p = 0.0
    sample = sample_with_targets()
    mean, size, _ = criterion("mean", decay)(model, sample)
    drawn: dict[int, float] = {}
    sampling, counts = criterion("sample", decay), [0, 0, 0]
    for seed in range(200):
        torch.manual_seed(seed)
        (head,) = sampling._heads(model)
        counts[head] += 1
        if counts[head] > 1:
            continue
        torch.manual_seed(seed)
        loss, sample_size, logging = sampling(model, sample)
        assert sample_size == size == sample["ntokens"]
        assert f"nll_{head + 1}" in logging
        drawn[head] = float(loss.detach())
    expected = sum(weights[head] * drawn[head] for head in range(3)) / sum(weights)
    assert float(mean.detach()) == pytest.approx(expected, rel=1e-4)
    assert counts == pytest.approx([200 * weight / sum(weights) for weight in weights], abs=25)


@pytest.mark.parametrize("layout", [DENSE, PER_HEAD])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_nearly_the_same_gradient(dtype: torch.dtype, layout: str) -> None:
    """As ``--fp16`` and ``--bf16`` have it, which fairseq trains on accelerators only: the whole model is cast."""
    options = {"block_size": 3, "head_hidden_dim": 8, "head_layout": layout}
    model = make_model(make_task(), 2, "blockwise_transformer", **options)
    found = {}
    for kind in (torch.float32, dtype):
        model.to(kind).zero_grad()
        loss, size, _ = criterion("mean")(model, sample_with_targets())
        assert loss.dtype == torch.float32
        (loss / size).backward()
        gradients = [p.grad.float().flatten() for p in model.parameters() if p.grad is not None]
        found[kind] = torch.cat(gradients)
    assert torch.isfinite(found[dtype]).all()
    # bfloat16 has eight bits, and processors round their products differently.
    least = 0.99 if dtype == torch.float16 else 0.95
    assert torch.cosine_similarity(found[dtype], found[torch.float32], dim=0) > least


def test_a_chain_learns_from_the_token_before_each_head() -> None:
    """Heads alone and heads that are told the true token count half each; head 1 hears nothing."""
    sizes = {"block_size": 3, "head_hidden_dim": 8, "slot_chain": True}
    model = make_model(make_task(), 2, "blockwise_transformer", **sizes)
    sample = sample_with_targets([[5, 6, 7, 8], [9, 10]])
    with torch.no_grad():
        outputs = model(**sample["net_input"], heads=range(3)).unbind(2)
    decoder, target, nll = model.decoder, sample["target"], []
    for head, output in enumerate(outputs):
        sums = []
        for told in (False, True) if head else (False,):
            total = 0.0
            for row, tokens in enumerate(target.tolist()):
                for place in range(len(tokens) - head):
                    if tokens[place + head] == PAD:
                        continue
                    features = output[row, place]
                    if told:
                        features = decoder.chained(features, target[row, place + head - 1])
                    log_probs = decoder.output_projection(features).log_softmax(-1)
                    total -= float(log_probs[tokens[place + head]].detach())
            sums.append(total)
        nll.append(sums)
    config = BlockwiseLossConfig(label_smoothing=0.0, sentence_avg=False)
    config.head_loss = "mean"
    found, _, logging = BlockwiseLoss(config, make_task())(model.eval(), sample)
    expected = sum(sum(sums) / len(sums) for sums in nll) / 3
    assert float(found.detach()) == pytest.approx(expected, rel=1e-4)
    for head in range(3):
        assert float(logging[f"nll_{head + 1}"]) == pytest.approx(nll[head][-1], rel=1e-4)


def test_a_frozen_base_leaves_the_chain_to_learn_and_every_parameter_has_a_gradient() -> None:
    options = {"identity_first_head": True, "freeze_base": True, "head_hidden_dim": 8}
    model = make_model(
        make_task(), 2, "blockwise_transformer", block_size=2, slot_chain=True, **options
    )
    for head_loss in ("mean", "sample"):
        model.train().zero_grad()
        loss, _, _ = criterion(head_loss)(model, sample_with_targets())
        loss.backward()
        learning = {name for name, p in model.named_parameters() if p.grad is not None}
        wanted = {n for n, _ in model.named_parameters() if ".heads." in n or ".chain." in n}
        assert learning == wanted


@pytest.mark.parametrize("layers", [0, 1])
def test_some_positions_teach_on_average_what_all_do(layers: int) -> None:
    """Each update draws its own; the loss of a position does not depend on which others are drawn."""
    options = {"block_size": 3, "head_hidden_dim": 8, "head_layers": layers, "slot_chain": True}
    model = make_model(make_task(), 2, "blockwise_transformer", **options, dropout=0.0).train()
    sample = sample_with_targets()
    columns = sample["target"].size(1) + (layers > 0)
    whole, size, _ = criterion("mean")(model, sample)
    learning = criterion("mean", positions=1 / columns)
    found: dict[int, tuple[float, int]] = {}
    for seed in range(200):
        torch.manual_seed(seed)
        (place,) = learning._places(torch.zeros(1, columns))
        if int(place) not in found:
            torch.manual_seed(seed)
            loss, count, _ = learning(model, sample)
            found[int(place)] = float(loss.detach()), count
    assert sorted(found) == list(range(columns))
    assert sum(loss for loss, _ in found.values()) == pytest.approx(float(whole.detach()), rel=1e-4)
    assert sum(count for _, count in found.values()) == size
    validated, of_all, _ = learning(model.eval(), sample)
    assert (of_all, float(validated.detach())) == (
        size,
        pytest.approx(float(whole.detach()), rel=1e-4),
    )


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_of_positions_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"--head-positions {share}"):
        criterion("mean", positions=share)


def test_a_decay_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--head-decay 1\.5"):
        criterion("mean", 1.5)


def test_a_frozen_identity_head_is_never_drawn() -> None:
    options = {"identity_first_head": True, "freeze_base": True, "head_hidden_dim": 8}
    model = make_model(make_task(), 2, "blockwise_transformer", block_size=3, **options).train()
    assert list(model.trained_heads) == [1, 2]
    assert not model.encoder.training
    assert model.decoder.heads.training
    loss, _, _ = criterion("mean")(model, sample_with_targets())
    loss.backward()
    learning = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learning
    assert all(name.startswith("decoder.heads.") for name in learning)


@pytest.mark.parametrize("words", [5, 0])
@pytest.mark.parametrize("identity", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("layers", [0, 1])
def test_whatever_head_is_drawn_every_trained_parameter_has_a_gradient(
    words: int, identity: bool, frozen: bool, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training on several GPUs waits for all of them; of empty sentences only head 1 has targets."""
    options = {"identity_first_head": identity, "freeze_base": frozen, "head_hidden_dim": 8}
    options["head_layers"] = layers
    model = make_model(make_task(), 2, "blockwise_transformer", block_size=3, **options).train()
    sample = sample_with_targets([[4] * words])
    for head in model.trained_heads:
        monkeypatch.setattr(BlockwiseLoss, "_heads", lambda *_, drawn=head: range(drawn, drawn + 1))
        model.zero_grad()
        criterion("sample")(model, sample)[0].backward()
        for name, parameter in model.named_parameters():
            assert (parameter.grad is not None) == parameter.requires_grad, name


def test_heads_of_later_micro_batches_are_not_lost() -> None:
    """fairseq adds up the names of the first logging output, on several GPUs as on one."""
    model = make_model(make_task(), 2, "blockwise_transformer", block_size=3, head_hidden_dim=8)
    model.train()
    sampling, sample, logs = criterion("sample"), sample_with_targets(), []
    for seed in range(20):
        torch.manual_seed(seed)
        logs.append(sampling(model, sample)[2])
    summed = {name: sum(log[name] for log in logs) for name in logs[0]}
    with metrics.aggregate() as together:
        BlockwiseLoss.reduce_metrics([summed])
    with metrics.aggregate() as apart:
        BlockwiseLoss.reduce_metrics(logs)
    assert together.get_smoothed_values() == apart.get_smoothed_values()
    assert {"nll_1", "nll_2", "nll_3"} <= set(together.get_smoothed_values())
    with metrics.aggregate() as one:
        BlockwiseLoss.reduce_metrics(logs[:1])
    drawn = [name for name in one.get_smoothed_values() if name.startswith("nll_")]
    assert len(drawn) == 1  # the others have no targets and no line in the log


def test_a_model_without_heads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs a model with block heads \(--arch blockwise_"):
        criterion("mean")(make_model(make_task(), 2), sample_with_targets())


def test_validation_reports_every_head_and_the_accepted_block() -> None:
    model = make_model(make_task(), 2, "blockwise_transformer", block_size=3, head_hidden_dim=8)
    _, _, logging = criterion("sample")(model, sample_with_targets())
    assert {"nll_1", "nll_2", "nll_3", "gained", "positions"} <= set(logging)
    with metrics.aggregate() as gathered:
        BlockwiseLoss.reduce_metrics([logging])
    values = gathered.get_smoothed_values()
    assert 1 <= values["mean_accepted"] <= 3
    assert 0 <= values["acc_1"] <= 100


def test_heads_with_layers_learn_how_an_output_begins() -> None:
    """Behind a position before the first, whose token is ``</s>`` and which head 1 does not learn."""
    options = {"block_size": 3, "head_hidden_dim": 8, "head_layers": 1, "slot_chain": True}
    model = make_model(make_task(), 2, "blockwise_transformer", **options).eval()
    sample, decoder = sample_with_targets(), model.decoder
    target, net_input = sample["target"], sample["net_input"]
    with torch.no_grad():
        encoder_out = model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])
        opening = decoder.head_layers.opening.expand(len(target), 1, -1)
        chosen = torch.full((len(target), 1), 2)
        begun = decoder.head_features(opening, range(1, 3), chosen, encoder_out)
        outputs = model(**net_input, heads=range(3), chosen=torch.cat([chosen, target], 1))
        torch.testing.assert_close(outputs[:, :1, 1:], begun)
        _, _, logging = criterion("mean")(model, sample)
    tokens = [len(row[row != PAD]) for row in target]
    assert [int(logging[f"count_{head}"]) for head in (1, 2, 3)] == [
        sum(tokens),
        sum(tokens),
        sum(count - 1 for count in tokens),
    ]
    told = decoder.chained(begun[:, 0, 0], torch.tensor(2))
    first = decoder.output_projection(told).argmax(-1) == target[:, 0]
    model.decoder.head_layers.opening.data += 5  # another beginning, the same everywhere else
    with torch.no_grad():
        _, _, moved = criterion("mean")(model, sample)
        begun = decoder.head_features(
            decoder.head_layers.opening.expand(len(target), 1, -1), [1], chosen, encoder_out
        )
    told = decoder.chained(begun[:, 0, 0], torch.tensor(2))
    now = decoder.output_projection(told).argmax(-1) == target[:, 0]
    assert int(moved["hits_2"]) - int(logging["hits_2"]) == int(now.sum()) - int(first.sum())
