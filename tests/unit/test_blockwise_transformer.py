"""``blockwise_transformer``: what it begins as, and what it refuses."""

from __future__ import annotations

import copy
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options

from fairseq_aggdec.models.blockwise_transformer import BlockwiseTransformerModel
from fairseq_aggdec.stored.loading import CheckpointError
from tests.support import SIZES, make_model, make_task


def flags(sizes: dict[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]


def command_line(*arguments: str) -> Namespace:
    """Options as fairseq-train reads them."""
    parser = options.get_training_parser(default_task="translation")
    given = ["data", "--arch", "blockwise_transformer", *flags(SIZES), *arguments]
    args: Namespace = options.parse_args_and_arch(parser, input_args=given)
    return args


def build(args: Namespace) -> BlockwiseTransformerModel:
    return BlockwiseTransformerModel.build_model(args, make_task())


def save_base(folder: Path, **state: Any) -> str:
    """A stock Transformer's checkpoint; ``state`` says which model it holds."""
    parameters = make_model(make_task(), 4).state_dict()
    history = [{"best_loss": 1.0}]
    saved = {"model": parameters, "optimizer_history": history, "extra_state": {}, **state}
    torch.save(saved, folder / "base.pt")
    return str(folder / "base.pt")


def test_sizes_that_were_not_given() -> None:
    heads = build(command_line()).decoder.heads
    assert (heads.block_size, heads.hidden_dim) == (8, SIZES["decoder_ffn_embed_dim"])


@pytest.mark.parametrize("option", ["--block-size", "--head-hidden-dim"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_sizes_of_nothing_are_refused(option: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{option} {value}"):
        build(command_line(option, value))


def test_a_chain_on_a_base_and_checkpoints_that_are_older_than_it(tmp_path: Path) -> None:
    """At first it says nothing; a frozen base leaves it to learn; with one head there is nothing to hear."""
    base = save_base(tmp_path, args=Namespace(arch="transformer", **SIZES))
    given = ["--base-checkpoint", base, "--freeze-base", "--slot-chain"]
    model = build(command_line(*given)).eval()
    features, tokens = torch.randn(3, 16), torch.tensor([5, 6, 7])
    assert torch.equal(model.decoder.chained(features, tokens), features)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(name.startswith(("decoder.heads.", "decoder.chain.")) for name in learning)
    assert any(name.startswith("decoder.chain.") for name in learning)
    args = command_line("--block-size", "3")
    saved = build(args).state_dict()
    del args.slot_chain
    older = build(args)
    older.load_state_dict(saved)
    assert older.decoder.chain is None
    with pytest.raises(ValueError, match="--slot-chain with --block-size 1"):
        build(command_line("--slot-chain", "--block-size", "1"))


def test_layers_of_heads_begin_as_the_last_of_the_base(tmp_path: Path) -> None:
    """A frozen base leaves them to learn; a checkpoint that is older has none."""
    base = save_base(tmp_path, args=Namespace(arch="transformer", **SIZES))
    given = ["--base-checkpoint", base, "--freeze-base", "--head-layers", "1"]
    model = build(command_line(*given))
    (layer,) = model.decoder.head_layers.layers
    for name, value in model.decoder.layers[-1].state_dict().items():
        assert torch.equal(layer.state_dict()[name], value)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(name.startswith(("decoder.heads.", "decoder.head_layers.")) for name in learning)
    assert any(name.startswith("decoder.head_layers.layers.0.") for name in learning)
    model.train()
    assert model.decoder.head_layers.training and not model.decoder.training
    args = command_line("--block-size", "3")
    saved = build(args).state_dict()
    del args.head_layers
    older = build(args)
    older.load_state_dict(saved)
    assert older.decoder.head_layers is None


def test_heads_of_another_model_on_another_base(tmp_path: Path) -> None:
    base = save_base(tmp_path, args=Namespace(arch="transformer", **SIZES))
    options = ["--head-layers", "1", "--slot-chain", "--block-size", "3"]
    other, path = build(command_line(*options)), tmp_path / "heads.pt"
    saved = {
        "optimizer_history": [{"best_loss": 1.0}],
        "extra_state": {},
        "args": Namespace(arch="blockwise_transformer", **SIZES),
    }
    torch.save(saved | {"model": other.state_dict()}, path)
    args = command_line(*options, "--base-checkpoint", base, "--init-heads-from", str(path))
    found = build(args).state_dict()
    expected = make_model(make_task(), 4).state_dict()
    for name, value in found.items():
        of = other.state_dict() if name not in expected else expected
        assert torch.equal(value, of[name]) or name.endswith(".version"), name
    assert args.init_heads_from is None  # a checkpoint of this model needs no other
    options[1] = "2"
    with pytest.raises(CheckpointError, match=r"has other heads: .* is no such parameter there"):
        build(command_line(*options, "--init-heads-from", str(path)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--head-layers", "-1"], "--head-layers -1: it must be at least 0"),
        (["--head-layers", "1", "--block-size", "1"], "--head-layers with --block-size 1"),
        (["--head-layers", "1", "--decoder-output-dim", "8"], "whose output has its own width, 16"),
    ],
)
def test_layers_that_no_head_could_have_are_refused(given: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(command_line(*given))


def test_random_weights_are_not_frozen(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--freeze-base without --base-checkpoint"):
        build(command_line("--freeze-base"))
    base = save_base(tmp_path, args=Namespace(arch="transformer", **SIZES))
    args = command_line("--freeze-base", "--base-checkpoint", base)
    trained = build(args)
    Path(base).unlink()
    saved = copy.deepcopy(args)  # as checkpoints have it
    build(saved).load_state_dict(trained.state_dict())
    del saved.has_base  # as older ones have it
    assert build(saved).frozen


def test_a_base_with_adaptive_softmax_is_refused(tmp_path: Path) -> None:
    base = save_base(
        tmp_path, args=Namespace(arch="transformer", **SIZES, adaptive_softmax_cutoff=[10, 20])
    )
    with pytest.raises(ValueError, match="--adaptive-softmax-cutoff: block heads need"):
        build(command_line("--base-checkpoint", base))


def test_a_base_of_hydra_train(tmp_path: Path) -> None:
    """Its checkpoints hold groups of options, and beside them flat defaults that the model does not have."""
    groups: dict[str, dict[str, Any]] = {"encoder": {}, "decoder": {}}
    for name, value in SIZES.items():
        side, _, rest = name.partition("_")
        if side in groups:
            groups[side][rest] = value
    plain = {name: value for name, value in SIZES.items() if name.startswith("max_")}
    defaults = {"decoder_layers": 6, "decoder_input_dim": 512, "decoder_output_dim": 512}
    config = {"model": {"_name": "transformer", **plain, **groups, **defaults}}
    args = command_line("--base-checkpoint", save_base(tmp_path, cfg=config), "--dropout", "0.3")
    args.decoder_layers = 6
    model = build(args)
    assert len(model.decoder.layers) == SIZES["decoder_layers"]
    assert (args.decoder_output_dim, args.dropout) == (SIZES["decoder_embed_dim"], 0.3)
    expected = make_model(make_task(), 4).state_dict()
    found = model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
