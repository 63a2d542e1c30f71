"""The loss of a drafter: what it normalises, reveals, schedules and reports."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fairseq.logging import metrics

from fairseq_aggdec.criterions import acceptance_probe
from fairseq_aggdec.criterions.glancing_loss import GlancingLoss, GlancingLossConfig
from fairseq_aggdec.data.block_targets import cut_blocks, draw_prefix_lengths
from tests.support import make_batch, make_model, make_task, random_sources

PAD, EOS, BLOCK = 1, 2, 4


def criterion(**options: Any) -> GlancingLoss:
    settings: dict[str, Any] = {"sentence_avg": False, "max_update": 100, "seed": 1} | options
    return GlancingLoss(GlancingLossConfig(**settings), make_task())


def drafter(update: int = 0, **options: Any) -> Any:
    model = make_model(make_task(), 3, "nar_drafter", block_size=BLOCK, dropout=0.0, **options)
    model.set_num_updates(update)
    return model


def sample_with_targets(count: int, first: int = 0) -> dict[str, Any]:
    """Sentences ``first`` to ``first + count`` of a fixed set whose targets are their sources."""
    sources = random_sources(4, 8)[first : first + count]
    sample = make_batch(sources)
    sample["id"] = torch.arange(first, first + count)
    targets = [torch.tensor([*source, EOS]) for source in sources]
    sample["target"] = torch.nn.utils.rnn.pad_sequence(targets, True, PAD)
    return sample


def gradients(
    model: Any, samples: list[dict[str, Any]], **options: Any
) -> tuple[dict[str, torch.Tensor], float]:
    """Of the sum over ``samples``, divided by the sum of their sizes, as ``--update-freq`` and several GPUs do."""
    model.zero_grad()
    size = 0.0
    for sample in samples:
        loss, sample_size, _ = criterion(label_smoothing=0.1, **options)(model, sample)
        loss.backward()
        size += float(sample_size)
    return {
        name: parameter.grad / size
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }, size


@pytest.mark.parametrize(("slot_decay", "chain"), [(1.0, False), (0.7, True)])
def test_two_halves_give_the_gradient_of_the_whole(slot_decay: float, chain: bool) -> None:
    model = drafter(update=7, slot_chain=chain).train()
    whole, size = gradients(model, [sample_with_targets(8)], slot_decay=slot_decay)
    parts = [sample_with_targets(3), sample_with_targets(5, first=3)]
    halves, both = gradients(model, parts, slot_decay=slot_decay)
    assert size == pytest.approx(both)
    assert whole.keys() == halves.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(halves[name], gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"prefix_attention": "causal", "src_embedding_copy": True}, {"slot_chain": True}],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_nearly_the_same_gradient(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """As ``--fp16`` and ``--bf16`` have it, which fairseq trains on accelerators only: the whole model is cast."""
    model, sample = drafter(update=7, **options).train(), sample_with_targets(8)
    # What is revealed depends on what the first pass gets right, which rounding may change: nothing is.
    free: dict[str, Any] = {"glancing_start": 0.0, "glancing_end": 0.0}
    found = {}
    for kind in (torch.float32, dtype):
        model.to(kind).zero_grad()
        loss, size, _ = criterion(**free)(model, sample)
        assert loss.dtype == torch.float32
        (loss / size).backward()
        found[kind] = torch.cat(
            [p.grad.float().flatten() for p in model.parameters() if p.grad is not None]
        )
    assert torch.isfinite(found[dtype]).all()
    likeness = torch.cosine_similarity(found[dtype], found[torch.float32], dim=0)
    assert likeness > 0.99


def test_nothing_is_learned_past_the_end_or_where_it_was_revealed() -> None:
    model, sample = drafter(update=3).train(), sample_with_targets(8)
    lengths = (sample["target"] != PAD).sum(1)
    prefixes = draw_prefix_lengths(lengths, sample["id"], 1, 3)
    there = int((lengths - prefixes).clamp(max=BLOCK).sum())
    _, size, free = criterion(glancing_start=0.0, glancing_end=0.0)(model, sample)
    assert int(size) == int(free["ntokens"]) == int(free["slots"]) == there
    _, size, half = criterion(glancing_start=0.5, glancing_end=0.5)(model, sample)
    assert half["slots"] == there
    assert torch.equal(half["right"], free["right"])  # of the first pass, which sees no target
    assert 0 < there - int(size) <= (there - int(half["right"])) // 2


def test_later_slots_weigh_less() -> None:
    """The size is the sum of the weights; the most extreme ones leave the loss of the first slots."""
    model, sample = drafter(update=3).eval(), sample_with_targets(8)
    plain = criterion()(model, sample)[1]
    size = criterion(slot_decay=0.5)(model, sample)[1]
    lengths = (sample["target"] != PAD).sum(1)
    slots = (lengths - draw_prefix_lengths(lengths, sample["id"], 1, -1)).clamp(max=BLOCK)
    assert float(size) == pytest.approx(sum(2 - 0.5 ** (int(n) - 1) for n in slots))
    assert int(plain) == int(slots.sum())
    found, count, _ = criterion(slot_decay=1e-6)(model, sample)
    assert float(count) == pytest.approx(len(slots), rel=1e-4)
    tokens, block = cut_blocks(
        sample["target"],
        draw_prefix_lengths(lengths, sample["id"], 1, -1),
        *(BLOCK, PAD, model.decoder.mask_index),
    )
    source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
    features = model(**source, prev_output_tokens=tokens)
    chances = model.decoder.output_layer(features[:, 0]).log_softmax(-1)
    expected = -chances.gather(1, block[:, :1]).sum()
    assert found.item() == pytest.approx(expected.item(), rel=1e-3)
    with pytest.raises(ValueError, match="--slot-decay 0"):
        criterion(slot_decay=0.0)


@pytest.mark.parametrize("prefixes", ["drawn", "none"])
def test_a_chain_learns_after_the_true_token_and_slots_alone_as_well(prefixes: str) -> None:
    model, sample = drafter(update=3, slot_chain=True).eval(), sample_with_targets(8)
    decoder = model.decoder
    heard: list[torch.Tensor] = []
    chained = decoder.chained
    decoder.chained = lambda features, before: heard.append(before) or chained(features, before)
    loss, size, logging = criterion(prefixes=prefixes)(model, sample)
    chain, decoder.chain = decoder.chain, None
    alone, same_size, plain = criterion(prefixes=prefixes)(model, sample)
    assert size == same_size
    both = (float(plain["nll_loss"]) + float(logging["nll_loss"])) / 2
    assert loss.item() == pytest.approx(both)
    assert loss.item() != pytest.approx(alone.item())
    lengths = (sample["target"] != PAD).sum(1).tolist()
    drawn = draw_prefix_lengths(torch.tensor(lengths), sample["id"], 1, -1).tolist()
    for target, length, prefix, before in zip(
        sample["target"].tolist(), lengths, drawn, heard[0].tolist(), strict=True
    ):
        first = prefix if prefixes == "drawn" else 0
        count = min(BLOCK, length - first)
        assert before[:count] == [EOS, *target][first : first + count]
    decoder.chain = chain


def test_without_prefixes_every_block_is_the_beginning() -> None:
    model, sample = drafter(update=3).train(), sample_with_targets(8)
    seen: list[torch.Tensor] = []
    slot_features = model.decoder.slot_features

    def watched(tokens: torch.Tensor, *reading: Any) -> torch.Tensor:
        seen.append(tokens)
        features: torch.Tensor = slot_features(tokens, *reading)
        return features

    model.decoder.slot_features = watched
    _, size, logging = criterion(prefixes="none", glancing_start=0.0, glancing_end=0.0)(
        model, sample
    )
    lengths = (sample["target"] != PAD).sum(1)
    assert int(size) == int(logging["slots"]) == int(lengths.clamp(max=BLOCK).sum())
    assert [tokens.tolist() for tokens in seen] == 2 * [[[model.decoder.mask_index] * BLOCK] * 8]


def test_revealed_tokens_are_read_by_the_second_pass() -> None:
    """The loss of what is left differs from the same slots' loss without glancing."""
    model, sample = drafter(update=3).train(), sample_with_targets(8)
    seen: list[torch.Tensor] = []
    slot_features = model.decoder.slot_features
    model.decoder.slot_features = lambda tokens, *rest: (
        seen.append(tokens) or slot_features(tokens, *rest)
    )
    criterion(glancing_start=0.9, glancing_end=0.9)(model, sample)
    first, second = seen
    lengths = (sample["target"] != PAD).sum(1)
    prefixes = draw_prefix_lengths(lengths, sample["id"], 1, 3)
    mask = model.decoder.mask_index
    tokens, block = cut_blocks(sample["target"], prefixes, BLOCK, PAD, mask)
    assert torch.equal(first, tokens)
    slots = second[:, -BLOCK:]
    shown = slots != mask
    assert shown.any()
    assert torch.equal(slots[shown], block[shown])
    assert torch.equal(second[:, :-BLOCK], tokens[:, :-BLOCK])


def test_a_slot_that_nobody_reads_is_not_revealed() -> None:
    """Slots that predict the token after them read all masks but the last."""
    sample = sample_with_targets(8)
    for predicts in ("itself", "next"):
        learned = torch.zeros(BLOCK, dtype=torch.long)
        for update in range(20):
            model = drafter(update=update, slot_predicts=predicts).train()
            seen: list[torch.Tensor] = []
            slot_features = model.decoder.slot_features
            model.decoder.slot_features = lambda tokens, *rest: (
                seen.append(tokens) or slot_features(tokens, *rest)  # noqa: B023
            )
            criterion(glancing_start=0.9, glancing_end=0.9)(model, sample)
            learned += (seen[1][:, -BLOCK:] != model.decoder.mask_index).sum(0)
        assert bool(learned[-1]) == (predicts == "itself")
        assert learned[:-1].all()


def test_the_share_that_is_revealed_falls_linearly() -> None:
    loss = criterion(glancing_start=0.5, glancing_end=0.3)
    assert [loss.ratio(update) for update in (0, 50, 100, 200)] == pytest.approx(
        [0.5, 0.4, 0.3, 0.3]
    )
    assert criterion(glancing_updates=10).ratio(5) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="--max-update or --glancing-updates"):
        criterion(max_update=0).ratio(5)
    with pytest.raises(ValueError, match="--glancing-start 1"):
        criterion(glancing_start=1.0)


def test_validation_is_the_same_every_time_and_comparable_with_training() -> None:
    sample = sample_with_targets(8)
    first = criterion(label_smoothing=0.1)(drafter(update=1), sample)
    second = criterion(label_smoothing=0.1)(drafter(update=9), sample)
    assert torch.equal(first[0], second[0])
    assert "glancing_ratio" not in first[2]
    # With its prefixes, and nothing revealed, training computes the same number.
    model = drafter(update=-1).train()
    free = criterion(label_smoothing=0.1, glancing_start=0.0, glancing_end=0.0)(model, sample)
    torch.testing.assert_close(free[0], first[0])


def test_matched_tokens_stop_at_the_first_wrong_one() -> None:
    model, sample = drafter(), sample_with_targets(1)
    sample["target"] = torch.tensor([[5, 6, 7, 8, EOS]])
    prefix = int(draw_prefix_lengths(torch.tensor([5]), sample["id"], 1, -1))
    assert prefix < 3, "a block of one token cannot tell"
    block = [*[5, 6, 7, 8, EOS][prefix:], *[0] * BLOCK][:BLOCK]
    answers = torch.zeros(BLOCK, len(make_task().target_dictionary))
    for slot, token in enumerate(block):
        answers[slot, 9 if slot == 1 else token] = 1  # the second slot is wrong
    model.decoder.output_layer = lambda rows: rows[:, :1] * 0 + answers[: len(rows)]
    _, _, logging = criterion()(model, sample)
    assert int(logging["matched"]) == 1


def test_metrics_are_ratios_of_sums() -> None:
    logs = [
        {"loss": 2.0, "sample_size": 2, "nll_loss": 1.0, "ntokens": 2, "right": 1, "slots": 4},
        {"loss": 1.0, "sample_size": 4, "nll_loss": 2.0, "ntokens": 4, "right": 3, "slots": 4},
    ]
    training: list[dict[str, Any]] = [log | {"batches": 1, "glancing_ratio": 0.4} for log in logs]
    with metrics.aggregate() as gathered:
        GlancingLoss.reduce_metrics(training)
    values = gathered.get_smoothed_values()
    assert values["loss"] == pytest.approx(3 / 6 / math.log(2), abs=1e-3)
    assert values["nll_loss"] == pytest.approx(3 / 6 / math.log(2), abs=1e-3)
    assert (values["accuracy"], values["glancing_ratio"]) == (50.0, 0.4)
    validation = [
        log | {"nsentences": 2, "matched": 3, "gained": 9.0, "decoded": 3} for log in logs
    ]
    with metrics.aggregate() as gathered:
        GlancingLoss.reduce_metrics(validation)
    values = gathered.get_smoothed_values()
    assert (values["matched"], values["mean_accepted"]) == (1.5, 3.0)


def test_every_probed_sentence_counts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = make_model(make_task(), 5, "transformer")
    monkeypatch.setattr(acceptance_probe, "load_verifier", lambda *_: verifier)
    probe = acceptance_probe.AcceptanceProbe("verifier.pt", 3, make_task())
    model = drafter()
    model.eval()
    whole = probe.decode(model, sample_with_targets(4))
    alone = [probe.decode(model, sample_with_targets(1, first=i)) for i in range(4)]
    assert [len(gains) for gains in alone] == [1, 1, 1, 0]
    assert whole == pytest.approx([gain for gains in alone for gain in gains])
    assert all(1 <= gain <= BLOCK + 1 for gain in whole)
