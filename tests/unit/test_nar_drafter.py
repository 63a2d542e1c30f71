"""The drafter's network: what its positions see, what its mask is, and the encoder that it takes from a verifier."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor

from fairseq_aggdec.methods.shared.loading import load_drafter, load_verifier
from fairseq_aggdec.stored.loading import CheckpointError, load_checkpoint
from tests.support import SIZES, make_batch, make_dictionary, make_model, make_task, random_sources

PAD, UNK, EOS = 1, 3, 2
BLOCK = 3
VARIANTS: dict[str, dict[str, Any]] = {
    "bidirectional": {},
    "causal": {"prefix_attention": "causal"},
    "source copy": {"src_embedding_copy": True, "decoder_learned_pos": True},
    "pre-norm": {"decoder_normalize_before": True, "prefix_attention": "causal"},
    "published": {
        "published_form": True,
        "src_embedding_copy": True,
        "decoder_learned_pos": True,
        "no_scale_embedding": True,
    },
    "next": {"slot_predicts": "next"},
    "next, causal, source copy": {
        "slot_predicts": "next",
        "prefix_attention": "causal",
        "src_embedding_copy": True,
    },
}
ALL = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def drafter(seed: int = 1, **options: Any) -> Any:
    return make_model(make_task(), seed, "nar_drafter", block_size=BLOCK, **options)


def inputs(prefixes: list[list[int]], slots: list[int]) -> Tensor:
    width = max(map(len, prefixes))
    return torch.tensor([[PAD] * (width - len(row)) + row + slots for row in prefixes])


def logits(model: Any, sample: dict[str, Any], tokens: Tensor) -> Tensor:
    with torch.no_grad():
        features = model(**sample["net_input"], prev_output_tokens=tokens)
        found: Tensor = model.decoder.output_layer(features)
    return found


def sees(query: int, key: int, first: int, causal: bool) -> bool:
    """``first``: the position that predicts the first token of the block."""
    return not causal or query >= first or key <= query


def slow_embedding(
    model: Any, sample: dict[str, Any], encoder_out: Any, prefix: list[int], positions: Tensor
) -> Tensor:
    """What the first layer reads of one row, place by place: (1, T, C)."""
    decoder, published = model.decoder, model.decoder.published
    x = torch.zeros_like(positions) if published else positions.clone()
    for place in range(positions.size(1)):
        if place < len(prefix) and not (published and prefix[place] == UNK):
            x[0, place] += decoder.embed_tokens.weight[prefix[place]] * decoder.embed_scale
            continue
        if not published:
            x[0, place] += decoder.mask_embedding * decoder.embed_scale
        if decoder.copy_query is not None:
            embedded = encoder_out["encoder_embedding"][0][0]
            keys = embedded + model.encoder.embed_positions(sample["net_input"]["src_tokens"])[0]
            weights = (keys @ decoder.copy_query(positions[0, place])).softmax(0)
            x[0, place] += weights @ embedded
    return x


def slow_logits(model: Any, source: list[int], prefix: list[int]) -> Tensor:
    """One row, one layer at a time, with what each position sees written out: (k, V)."""
    decoder, sample = model.decoder, make_batch([source])
    encoder_out = model.encoder(**sample["net_input"])
    if decoder.shift:
        prefix = [EOS, *prefix]
    length = len(prefix) + BLOCK - decoder.shift
    positions = decoder.embed_positions(torch.full((1, length), UNK))
    x = slow_embedding(model, sample, encoder_out, prefix, positions)
    mask = torch.zeros(length, length)
    for query in range(length):
        for key in range(length):
            if not sees(query, key, length - BLOCK, decoder.causal_prefix):
                mask[query, key] = -torch.inf
    x = x.transpose(0, 1)
    for layer in decoder.layers:
        if decoder.published:
            x = x + positions.transpose(0, 1)
        x = layer(x, encoder_out["encoder_out"][0], None, self_attn_mask=mask)[0]
    if decoder.layer_norm is not None:
        x = decoder.layer_norm(x)
    found: Tensor = decoder.output_layer(x[-BLOCK:, 0])
    return found


@ALL
def test_ragged_rows_against_one_slow_row_at_a_time(options: dict[str, Any]) -> None:
    model = drafter(**options)
    sources = random_sources(3, 4)
    prefixes = [[], [5], [6, UNK, 7, 8], [9, 10]]
    found = logits(model, make_batch(sources), inputs(prefixes, [model.decoder.mask_index] * BLOCK))
    with torch.no_grad():
        expected = [slow_logits(model, *row) for row in zip(sources, prefixes, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_a_slot_that_predicts_the_next_token_begins_as_the_verifier(tmp_path: Path) -> None:
    """A block of one token after a causal prefix is what the verifier says itself."""
    model, args = build("transformer")
    path = save((model, args), tmp_path / "verifier.pt")
    begin = {"init_decoder_from": path, "init_encoder_from": path}
    options = {"slot_predicts": "next", "prefix_attention": "causal", "activation_fn": "relu"}
    drafter, _ = build("nar_drafter", block_size=1, **begin, **options)
    sample, prefixes = make_batch(random_sources(3, 3)), [[], [5], [6, 7, 8]]
    found = logits(drafter, sample, inputs(prefixes, [drafter.decoder.mask_index]))[:, 0]
    for row, prefix in enumerate(prefixes):
        alone = {name: part[row : row + 1] for name, part in sample["net_input"].items()}
        alone["prev_output_tokens"] = torch.tensor([[EOS, *prefix]])
        with torch.no_grad():
            expected = model(**alone)[0][0, -1]
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-5)


def test_padding_of_the_source_is_not_copied() -> None:
    model = drafter(src_embedding_copy=True)
    sources, tokens = [[5, 6, 7], [8]], inputs([[], [4]], [model.decoder.mask_index] * BLOCK)
    left, right = (make_batch(sources, left_pad=side) for side in (True, False))
    torch.testing.assert_close(logits(model, left, tokens), logits(model, right, tokens))


def test_the_mask_is_not_unk() -> None:
    model = drafter(share_decoder_input_output_embed=False)
    sample, mask = make_batch([[5, 6, 7]]), model.decoder.mask_index
    assert mask == len(make_dictionary())
    hidden, unknown = (inputs([[4, 5]], [slot] * BLOCK) for slot in (mask, UNK))
    assert not torch.allclose(logits(model, sample, hidden), logits(model, sample, unknown))
    features = model(**sample["net_input"], prev_output_tokens=inputs([[4, UNK]], [mask] * BLOCK))
    features.square().sum().backward()
    table = model.decoder.embed_tokens.weight.grad
    read = table.abs().sum(1).nonzero().flatten().tolist()
    assert read == [UNK, 4]  # a real <unk> is read as a token
    assert model.decoder.mask_embedding.grad.abs().sum() > 0


def test_slots_past_the_longest_target_have_positions() -> None:
    model = drafter(decoder_learned_pos=True, max_target_positions=6)
    assert model.max_positions()[1] == 6
    tokens = inputs([[5] * 6], [model.decoder.mask_index] * BLOCK)
    assert logits(model, make_batch([[5]]), tokens).isfinite().all()


@ALL
def test_both_passes_of_training_have_the_same_dropout(options: dict[str, Any]) -> None:
    model = drafter(dropout=0.3, **options).train()
    tokens = inputs([[5], [6, 7]], [model.decoder.mask_index] * BLOCK)
    seen: list[Tensor] = []

    def glance(features: Tensor) -> Tensor:
        assert not features.requires_grad
        seen.append(features)
        return tokens

    torch.manual_seed(1)
    second = model(
        **make_batch([[5, 6], [8]])["net_input"], prev_output_tokens=tokens, glance=glance
    )
    assert torch.equal(seen[0], second)
    assert second.requires_grad
    other = model(**make_batch([[5, 6], [8]])["net_input"], prev_output_tokens=tokens)
    assert not torch.equal(second, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@ALL
def test_half_precision(options: dict[str, Any], dtype: torch.dtype) -> None:
    model = drafter(**options)
    sample = make_batch(random_sources(3, 3))
    tokens = inputs([[], [5], [6, 7]], [model.decoder.mask_index] * BLOCK)
    full = logits(model, sample, tokens)
    half = logits(model.to(dtype), sample, tokens)
    assert half.dtype is dtype
    torch.testing.assert_close(half.float(), full, atol=0.5, rtol=0.1)


# -- the verifier's encoder

VERIFIERS: dict[str, dict[str, Any]] = {
    "scaled, sinusoidal": {},
    "unscaled, learned": {"no_scale_embedding": True, "encoder_learned_pos": True},
    "pre-norm, embedding norm": {"encoder_normalize_before": True, "layernorm_embedding": True},
    "other activation and size": {
        "activation_fn": "tanh",
        "encoder_layers": 1,
        "encoder_ffn_embed_dim": 24,
        "encoder_attention_heads": 4,
    },
    "no positions": {"no_token_positional_embeddings": True},
}


def build(arch: str, task: Any = None, **options: Any) -> tuple[Any, Namespace]:
    """A model as fairseq-train builds it, and the options that it would save."""
    args = Namespace(arch=arch, **(SIZES | options))
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(7)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task or make_task())
    return model.eval(), args


def save(built: tuple[Any, Namespace], path: Path, **languages: str) -> str:
    """A checkpoint as fairseq-train writes it, as far as loading looks at it."""
    model, args = built
    state = {
        "args": None,
        "cfg": {"model": args, "task": languages},
        "model": model.state_dict(),
        "optimizer_history": [{"criterion_name": "", "best_loss": 0, "num_updates": 0}],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, path)
    return str(path)


@pytest.mark.parametrize("option", ["init_encoder_from", "share_verifier_encoder"])
@pytest.mark.parametrize("architecture", VERIFIERS.values(), ids=VERIFIERS)
def test_encoder_is_the_verifiers_function(
    tmp_path: Path, option: str, architecture: dict[str, Any]
) -> None:
    verifier, args = build("transformer", **architecture)
    path = save((verifier, args), tmp_path / "verifier.pt")
    model, _ = build("nar_drafter", **{option: path})
    sample = make_batch(random_sources(3, 4))
    found, expected = (part.encoder(**sample["net_input"]) for part in (model, verifier))
    for name in ("encoder_out", "encoder_embedding"):
        assert torch.equal(found[name][0], expected[name][0])


@pytest.fixture
def verifier(tmp_path: Path) -> str:
    return save(build("transformer", dropout=0.1), tmp_path / "verifier.pt", source_lang="src")


def test_own_dropout_on_the_verifiers_encoder(verifier: str) -> None:
    model, _ = build("nar_drafter", init_encoder_from=verifier, dropout=0.25)
    assert model.encoder.dropout_module.p == 0.25


def test_a_shared_encoder_is_frozen_and_nothing_else(verifier: str) -> None:
    model, _ = build("nar_drafter", share_verifier_encoder=verifier, share_all_embeddings=True)
    model.train()
    assert not model.encoder.training
    assert model.decoder.training
    tokens = inputs([[4]], [model.decoder.mask_index] * BLOCK)
    model(**make_batch([[5]])["net_input"], prev_output_tokens=tokens).square().sum().backward()
    frozen = {name.split(".")[0] for name, part in model.named_parameters() if part.grad is None}
    assert frozen == {"encoder"}
    assert model.decoder.embed_tokens.weight.grad is not None
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight


def test_a_decoder_begins_with_what_fits(tmp_path: Path) -> None:
    model, args = build("transformer", decoder_layers=1)
    path = save((model, args), tmp_path / "verifier.pt")
    drafter, _ = build("nar_drafter", init_decoder_from=path)
    own, other = drafter.decoder.state_dict(), model.decoder.state_dict()
    for name in ("embed_tokens.weight", "layers.0.fc1.weight", "layers.0.encoder_attn.k_proj.bias"):
        assert torch.equal(own[name], other[name])
    words = make_dictionary(["a"])
    with pytest.raises(CheckpointError, match="--init-decoder-from"):
        build("nar_drafter", make_task(source=words, target=words), init_decoder_from=path)


def test_learned_positions_begin_as_the_verifiers(tmp_path: Path) -> None:
    """The drafter has more of them: those of the slots after the longest prefix."""
    options = {"decoder_learned_pos": True, "max_target_positions": 9}
    path = save(build("transformer", **options), tmp_path / "verifier.pt")
    drafter, _ = build("nar_drafter", init_decoder_from=path, **options)
    own = drafter.decoder.embed_positions.weight
    other = load_checkpoint(path)["model"]["decoder.embed_positions.weight"]
    assert len(own) > len(other)
    assert torch.equal(own[: len(other)], other)


def test_a_table_that_both_sides_share_is_the_verifiers_encoders(tmp_path: Path) -> None:
    """Its tables are two: the decoder begins with the encoder's, or the encoder were another function."""
    model, args = build("transformer", share_all_embeddings=False)
    path = save((model, args), tmp_path / "verifier.pt")
    sources = {"init_encoder_from": path, "init_decoder_from": path}
    drafter, _ = build("nar_drafter", share_all_embeddings=True, **sources)
    assert torch.equal(drafter.encoder.embed_tokens.weight, model.encoder.embed_tokens.weight)


def test_the_second_pass_has_gradients_under_autocast() -> None:
    model, _ = build("nar_drafter")
    tokens = inputs([[4]], [model.decoder.mask_index] * BLOCK)
    net_input = make_batch([[5]])["net_input"]
    with torch.autocast("cpu", torch.bfloat16):
        features = model(**net_input, prev_output_tokens=tokens, glance=lambda features: tokens)
        features.float().square().sum().backward()
    assert model.decoder.layers[0].fc1.weight.grad is not None


@pytest.mark.parametrize("option", ["init_encoder_from", "share_verifier_encoder"])
def test_its_checkpoint_needs_no_verifier(option: str, verifier: str, tmp_path: Path) -> None:
    model, args = build("nar_drafter", encoder_learned_pos=True, **{option: verifier})
    Path(verifier).unlink()
    loaded = load_drafter(save((model, args), tmp_path / "drafter.pt"), make_task())
    tokens = inputs([[4]], [model.decoder.mask_index] * BLOCK)
    sample = make_batch([[5, 6]])
    assert torch.equal(logits(loaded, sample, tokens), logits(model, sample, tokens))
    assert loaded.shares_encoder == (option == "share_verifier_encoder")


# -- refusals


def test_roles_and_data_are_checked_on_loading(verifier: str, tmp_path: Path) -> None:
    task, drafter = make_task(), build("nar_drafter")
    path = save(drafter, tmp_path / "drafter.pt", source_lang="src", target_lang="tgt")
    with pytest.raises(CheckpointError, match=r"--drafter-path .*verifier.pt is no drafter"):
        load_drafter(verifier, task)
    with pytest.raises(CheckpointError, match=r"--eval-acceptance .*drafter.pt is a drafter"):
        load_verifier(path, task, "--eval-acceptance")
    with pytest.raises(FileNotFoundError, match=r"nothing.pt"):
        load_drafter(str(tmp_path / "nothing.pt"), task)
    other = make_task(target=make_dictionary(["a", "b"]))
    with pytest.raises(CheckpointError, match="target dictionary of 40 types, the data's has 6"):
        load_drafter(path, other)
    other = make_task()
    other.cfg.target_lang = "fr"
    with pytest.raises(CheckpointError, match="trained with --target-lang tgt, not fr"):
        load_drafter(path, other)
    with pytest.raises(ValueError, match="--path names a drafter"):
        load_drafter(path, task).prepare_for_inference_(None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": -1}, "--block-size -1"),
        ({"block_size": 0}, "--block-size 0"),
        ({"no_token_positional_embeddings": True}, "--no-token-positional-embeddings"),
        ({"no_cross_attention": True}, "--no-cross-attention"),
        ({"adaptive_softmax_cutoff": "10"}, "--adaptive-softmax-cutoff"),
        ({"src_embedding_copy": True, "encoder_embed_dim": 8}, "--src-embedding-copy"),
    ],
)
def test_refusals_name_the_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model(make_task(), 1, "nar_drafter", **options)


def test_an_encoder_that_does_not_fit(tmp_path: Path) -> None:
    words = make_dictionary(["a"])
    small = build("transformer", make_task(source=words, target=words))
    path = save(small, tmp_path / "small.pt")
    with pytest.raises(CheckpointError, match=r"does not fit .*\(5, 16\) there"):
        build("nar_drafter", init_encoder_from=path)
    path = save(build("nar_drafter"), tmp_path / "drafter.pt")
    with pytest.raises(CheckpointError, match="is a drafter: the encoder is to be taken"):
        build("nar_drafter", init_encoder_from=path)


@pytest.mark.parametrize(
    ("arch", "sizes"),
    [
        ("nar_drafter", (3, 256, 1024, 4)),
        ("nar_drafter_base", (6, 512, 2048, 8)),
        ("nar_drafter_big", (6, 1024, 4096, 16)),
    ],
)
def test_sizes_of_the_architectures(arch: str, sizes: tuple[int, ...]) -> None:
    args = Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    for side in ("encoder", "decoder"):
        names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
        assert tuple(getattr(args, f"{side}_{name}") for name in names) == sizes
    assert (args.block_size, args.activation_fn, args.weight_init) == (10, "gelu", "bert")
