"""The interleaved Transformer as a model: equal to stock at (1, 1), nothing seen too early, every position once."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor

from fairseq_aggdec.models.interleaved_transformer import InterleavedTransformerModel
from tests.support import SIZES, make_batch, make_model, make_task, random_sources
from tests.unit.test_interleaving import plain_order

PAD, EOS = 1, 2
GEOMETRIES = [(1, 1), (2, 1), (2, 2), (4, 1), (1, 3), (4, 2)]
TARGETS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14], [15], [16, 17, 18, 19, 20]]


def interleaved(directions: int, words: int, **options: Any) -> Any:
    return make_model(
        make_task(),
        3,
        "interleaved_transformer",
        directions=directions,
        words_per_direction=words,
        **options,
    )


def batch(targets: list[list[int]], longest: int | None = None) -> dict[str, Any]:
    """A training sample; sources do not depend on the targets."""
    width = longest or max(map(len, targets))
    sample = make_batch(random_sources(1, len(targets)))
    rows = [row + [EOS] + [PAD] * (width - len(row)) for row in targets]
    sample["target"] = torch.tensor(rows)
    previous = [[EOS, *row] + [PAD] * (width - len(row)) for row in targets]
    sample["net_input"]["prev_output_tokens"] = torch.tensor(previous)
    sample["ntokens"] = sum(len(row) + 1 for row in targets)
    return sample


def loss_of(model: Any, sample: dict[str, Any]) -> Tensor:
    criterion = LabelSmoothedCrossEntropyCriterion(make_task(), False, 0.1)
    return criterion(model, sample)[0]


def test_one_word_per_step_is_the_stock_transformer() -> None:
    model = interleaved(1, 1)
    stock = make_model(make_task(), 4)
    stock.load_state_dict(model.state_dict())
    sample = batch(TARGETS)
    for trained in (model, stock):
        trained.zero_grad()
        loss_of(trained, sample).backward()
    torch.testing.assert_close(loss_of(model, sample), loss_of(stock, sample), atol=1e-5, rtol=1e-5)
    for (name, ours), theirs in zip(model.named_parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize(("directions", "words"), GEOMETRIES)
def test_only_direction_embeddings_are_new(directions: int, words: int) -> None:
    stock = dict(make_model(make_task(), 4).named_parameters())
    new = dict(interleaved(directions, words).named_parameters())
    extra = {name: tuple(value.shape) for name, value in new.items() if name not in stock}
    expected = {"decoder.embed_positions.directions.weight": (directions, 16)}
    assert extra == (expected if directions > 2 else {})
    assert set(stock) <= set(new)


def saved_base(
    folder: Path, arch: str = "transformer", **options: Any
) -> tuple[dict[str, Tensor], str]:
    """Parameters of a model, and the checkpoint that holds them."""
    parameters = make_model(make_task(), 4, arch, **options).state_dict()
    state = {
        "args": Namespace(arch=arch, **(SIZES | options)),
        "model": parameters,
        "optimizer_history": [{"best_loss": 1.0}],
        "extra_state": {},
    }
    torch.save(state, folder / "base.pt")
    return parameters, str(folder / "base.pt")


@pytest.mark.parametrize(("directions", "layers"), [(1, None), (2, 2), (4, 1)])
def test_it_begins_as_a_transformer(directions: int, layers: int | None, tmp_path: Path) -> None:
    """Also with fewer layers, and where the direction embeddings are new."""
    base, path = saved_base(tmp_path)
    args = Namespace(directions=directions, base_checkpoint=path)
    if layers is not None:
        args.decoder_layers = layers
    model = InterleavedTransformerModel.build_model(args, make_task())
    assert len(model.decoder.layers) == (layers or SIZES["decoder_layers"])
    fresh = {"decoder.embed_positions.directions.weight"} if directions > 2 else set()
    found = model.state_dict()
    assert set(found) - set(base) == fresh
    for name in set(found) - fresh:
        assert torch.equal(found[name], base[name]), name


@pytest.mark.parametrize(("given", "layers"), [([], 2), (["--decoder-layers", "3"], 3)])
def test_the_command_line_leaves_the_depth_to_the_base(
    given: list[str], layers: int, tmp_path: Path
) -> None:
    parser = options.get_training_parser(default_task="translation")
    dims = {f"decoder_{end}_dim": SIZES["decoder_embed_dim"] for end in ("input", "output")}
    _, path = saved_base(tmp_path, **dims)
    start = ["data", "--arch", "interleaved_transformer", "--base-checkpoint", path]
    args = options.parse_args_and_arch(parser, [*start, *given])
    model = InterleavedTransformerModel.build_model(args, make_task())
    assert len(model.decoder.layers) == args.decoder_layers == layers


@pytest.mark.parametrize("directions", [4, 6])
def test_direction_embeddings_of_the_base_go_on(directions: int, tmp_path: Path) -> None:
    """Where it has as many; else they are new."""
    base, path = saved_base(tmp_path, "interleaved_transformer", directions=4)
    args = Namespace(directions=directions, base_checkpoint=path)
    found = InterleavedTransformerModel.build_model(args, make_task()).state_dict()
    same = {name for name in found if name in base and torch.equal(found[name], base[name])}
    fresh = set() if directions == 4 else {"decoder.embed_positions.directions.weight"}
    assert set(found) - same == fresh


def test_a_decoder_without_layers_is_refused(tmp_path: Path) -> None:
    args = Namespace(base_checkpoint=saved_base(tmp_path)[1], decoder_layers=-1)
    with pytest.raises(ValueError, match="--decoder-layers -1"):
        InterleavedTransformerModel.build_model(args, make_task())


def test_a_deeper_decoder_repeats_the_layers_of_its_base(tmp_path: Path) -> None:
    base, path = saved_base(tmp_path)
    assert SIZES["decoder_layers"] == 2
    args = Namespace(base_checkpoint=path, decoder_layers=5)
    found = InterleavedTransformerModel.build_model(args, make_task()).state_dict()
    for layer, source in enumerate((0, 0, 0, 1, 1)):
        for part in ("fc1.weight", "self_attn.q_proj.bias", "final_layer_norm.weight"):
            name = f"decoder.layers.{layer}.{part}"
            assert torch.equal(found[name], base[f"decoder.layers.{source}.{part}"]), name


@pytest.mark.parametrize(("directions", "words"), GEOMETRIES)
def test_every_position_counts_once(directions: int, words: int) -> None:
    """The stock criterion sums over each word and ``</s>`` what a plain pass over the slots of one sentence gives."""
    model = interleaved(directions, words)
    sample, step = batch(TARGETS), directions * words
    log_probs = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)
    total = 0.0
    for row, words_of in enumerate(TARGETS):
        count = len(words_of)
        order = plain_order(count, directions)
        written = [words_of[i] for i in order] + [EOS]
        slots = -(-(count + 1) // step) * step
        read = ([EOS] * step + written[:-1] + [PAD] * step)[:slots]
        source = sample["net_input"]["src_tokens"][row]
        one = {
            "src_tokens": source[source != PAD][None],
            "src_lengths": sample["net_input"]["src_lengths"][row : row + 1],
        }
        alone = model.decoder(torch.tensor([read]), encoder_out=model.encoder(**one))[0]
        expected = alone[0].log_softmax(-1)
        for slot, place in enumerate([*order, count]):
            torch.testing.assert_close(log_probs[row, place], expected[slot], atol=1e-4, rtol=1e-4)
            total -= float(expected[slot, written[slot]].detach())
    criterion = LabelSmoothedCrossEntropyCriterion(make_task(), False, 0.0)
    assert float(criterion(model, sample)[0]) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"vanilla_mask": True},
        {"vanilla_positions": True},
        {"middle_to_side": True},
        {"independent_directions": True},
        {"one_by_one": True},
    ],
    ids=lambda options: next(iter(options), "none"),
)
@pytest.mark.parametrize(("directions", "words"), [(2, 1), (2, 2), (4, 1)])
def test_a_word_is_predicted_from_earlier_steps_only(
    directions: int, words: int, options: dict[str, bool]
) -> None:
    words = 1 if options.get("one_by_one") else words
    step = 1 if options.get("one_by_one") else directions * words
    model = interleaved(directions, words, **options)
    target = TARGETS[0]
    place = plain_order(len(target), directions, "middle_to_side" in options)
    slot_of = {word: slot for slot, word in enumerate(place)} | {len(target): len(target)}
    sample = batch([target])
    before = model(**sample["net_input"])[0]
    for changed in range(len(target)):
        other = list(target)
        other[changed] += 20
        after = model(**batch([other])["net_input"])[0]
        moved = (after - before).abs().amax(-1)[0] > 1e-5  # (T,)
        for word, slot in slot_of.items():
            read = slot_of[changed] + step  # the slot that reads the changed word
            # M(1, 1) hides later slots of the step from each other.
            sees = read <= slot if options.get("vanilla_mask") else read // step <= slot // step
            if options.get("independent_directions"):
                sees = sees and read % directions == slot % directions
            assert bool(moved[word]) is sees, (changed, word)


@pytest.mark.parametrize(("directions", "words"), GEOMETRIES)
def test_padding_changes_nothing(directions: int, words: int) -> None:
    model = interleaved(directions, words)
    narrow, wide = batch(TARGETS), batch(TARGETS, 19)
    expected, found = model(**narrow["net_input"]), model(**wide["net_input"])
    width = narrow["target"].size(1)
    there = narrow["target"] != PAD
    torch.testing.assert_close(found[0][:, :width][there], expected[0][there], atol=1e-4, rtol=1e-4)
    assert not found[0].isnan().any()
    attention = found[1]["attn"][0][:, :width][there]
    torch.testing.assert_close(attention, expected[1]["attn"][0][there])


def test_empty_target() -> None:
    model = interleaved(2, 2)
    assert loss_of(model, batch([[], [5]])).isfinite()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    model, sample = interleaved(4, 1), batch(TARGETS)
    exact = loss_of(model, sample)
    model.to(dtype)
    close = loss_of(model, sample)
    close.backward()
    assert float(close.detach()) == pytest.approx(float(exact.detach()), rel=0.05)
    assert model.decoder.embed_positions.directions.weight.grad.abs().sum() > 0


def build(**options: Any) -> Any:
    task = make_task()
    task.cfg.left_pad_target = options.pop("left_pad_target", False)
    args = Namespace(**(SIZES | options))
    model_class = ARCH_MODEL_REGISTRY["interleaved_transformer"]
    assert model_class is InterleavedTransformerModel
    return model_class.build_model(args, task)


def test_defaults_are_the_bidirectional_decoder() -> None:
    geometry = build().decoder.geometry
    assert (geometry.directions, geometry.words_per_direction, geometry.step) == (2, 1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": 3}, "--directions 3: it must be 1 or an even number"),
        ({"directions": 0}, "--directions 0"),
        ({"words_per_direction": 0}, "--words-per-direction 0"),
        ({"directions": 1, "middle_to_side": True}, "--middle-to-side needs --directions 2"),
        ({"directions": 1, "independent_directions": True}, "--independent-directions needs"),
        ({"directions": 1, "one_by_one": True}, "--one-by-one needs"),
        ({"directions": 1, "vanilla_mask": True}, "--vanilla-mask needs --directions or --words-"),
        ({"directions": 1, "vanilla_positions": True}, "--vanilla-positions needs --directions or"),
        ({"one_by_one": True, "words_per_direction": 2}, "leave --words-per-direction at 1"),
        ({"one_by_one": True, "independent_directions": True}, "does not go with --indep"),
        ({"decoder_learned_pos": True}, "--decoder-learned-pos goes with --directions 1"),
        ({"no_token_positional_embeddings": True}, "--no-token-positional-embeddings goes"),
        ({"left_pad_target": True}, "--left-pad-target does not go with"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**options)
