"""The cached decoder against the model's own full-prefix forward: any windows, ragged rows, rollbacks, removed rows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import Encoded, FastEncoder, StockEncoder
from fairseq_aggdec.engine.member import LeftToStock
from fairseq_aggdec.engine.packed_decoder import PackedDecoder
from fairseq_aggdec.engine.plain.support import decoder_gap, encoder_gap
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.windows.window import Window
from tests.support import ACTIVATED, make_batch, make_model, make_task, random_sources

WIDE = {f"{side}_embed_dim": 64 for side in ("encoder", "decoder")}
ATTENTION_HEADS = {
    heads: {f"{side}_attention_heads": heads for side in ("encoder", "decoder")}
    for heads in (1, 2, 4)
}
VARIANTS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "no positions": {"no_token_positional_embeddings": True},
    "norm on embeddings": {"layernorm_embedding": True},
    "shared embeddings": {"share_all_embeddings": True},
    "unscaled embeddings": {"no_scale_embedding": True},
    **ACTIVATED,
    "wider encoder": {"encoder_embed_dim": 24, "encoder_ffn_embed_dim": 40},
    "other input and output width": {"decoder_input_dim": 8, "decoder_output_dim": 12},
    "bart": {"arch": "bart_base"},
    # The compiled attention has code of its own for these.
    **{f"heads of {64 // heads}": WIDE | ATTENTION_HEADS[heads] for heads in (2, 1)},
}
# What runs by recomputing the prefix.
OTHERS: dict[str, dict[str, Any]] = {
    "scaled heads": {"scale_heads": True, "scale_fc": True},
    "adaptive softmax": {"adaptive_softmax_cutoff": "10,20", "adaptive_softmax_dropout": 0.0},
    "lstm": {
        "arch": "lstm",
        "encoder_hidden_size": 16,
        "decoder_hidden_size": 16,
        "decoder_out_embed_dim": 16,
        "criterion": "",
    },
}
TOLERANCE = 1e-5  # of the largest log-probability; fairseq's own incremental mode is as far from its full forward
ROUNDING = 8  # times the error of stock's own fp32: random models may magnify each rounding


def full_log_probs(
    model: Any, net_input: dict[str, Any], prefixes: list[list[int]]
) -> list[torch.Tensor]:
    """Per row (T, V) log-probabilities of the model's own forward over its whole prefix, each sentence alone."""
    result = []
    for row, prefix in enumerate(prefixes):
        source = net_input["src_tokens"][row]
        one = {
            "src_tokens": source[source != 1][None],
            "src_lengths": net_input["src_lengths"][row : row + 1],
        }
        output = model(**one, prev_output_tokens=torch.tensor([prefix]))
        result.append(model.get_normalized_probs(output, log_probs=True)[0])
    return result


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(
        found, expected, atol=TOLERANCE * expected.abs().max().item(), rtol=0
    )


def walk(model: Any, seed: int, pack: bool, left_pad: bool, steps: int = 6) -> None:
    """Random windows over random prefixes with random rollbacks; rows leave on the way.

    Every position is compared with the model's own forward in fp64, and may be off by what stock's fp32 is off.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    sources = sorted(random_sources(seed, 4), key=len, reverse=True)  # as fairseq's LSTM wants them
    net_input = make_batch(sources, left_pad)["net_input"]
    verifier = Verifier([model], Precision(pack=pack))
    verifier.start(net_input, capacity=3)
    committed: list[list[int]] = [
        [2] for _ in sources
    ]  # what each row has read so far, start symbol first
    starts = [0] * len(sources)
    alive = list(range(len(sources)))
    exact, error = copy.deepcopy(model).double(), 0.0
    for step in range(steps):
        windows = []
        for row in range(len(alive)):
            fresh = [draw(4, 40) for _ in range(draw(1, 6))]
            kept = committed[row][: starts[row]]
            window = ([2] if starts[row] == 0 else []) + fresh
            committed[row] = kept + window
            windows.append(window)
        flat = torch.tensor([token for window in windows for token in window])
        logits = verifier.read(
            Window(flat, list(starts), [len(window) for window in windows])
        ).logits
        rows = {name: value[torch.tensor(alive)] for name, value in net_input.items()}
        expected = full_log_probs(exact, rows, committed)
        stock = full_log_probs(model, rows, committed)
        errors = [(a - b).abs().max().item() for a, b in zip(stock, expected, strict=True)]
        error = max(error, *errors)
        found = logits.log_softmax(-1).split([len(window) for window in windows])
        for ours, whole, start in zip(found, expected, starts, strict=True):
            off = (ours - whole[start:]).abs().max().item()
            assert off <= max(TOLERANCE * whole.abs().max().item(), ROUNDING * error)
        # Keep a part of each window: the next one overwrites the rest.
        starts = [
            draw(start, len(tokens)) + 1 for start, tokens in zip(starts, committed, strict=True)
        ]
        if step == 2:
            keep = [0, 3, 2]
            verifier.keep_rows(keep)
            alive, starts = [alive[i] for i in keep], [starts[i] for i in keep]
            committed = [committed[i] for i in keep]


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("pack", [True, False])
def test_logits_equal_the_full_forward(name: str, pack: bool) -> None:
    model = make_model(make_task(), 1, **VARIANTS[name])
    assert decoder_gap(model.decoder) is None
    assert encoder_gap(model.encoder) is None
    walk(model, seed=2, pack=pack, left_pad=True)
    walk(model, seed=3, pack=pack, left_pad=False)


@pytest.mark.parametrize("heads", ATTENTION_HEADS)
def test_scores_of_attention_may_be_large(heads: int) -> None:
    """Their exponentials are no numbers of fp32, unless the largest score is taken off first."""
    model = make_model(make_task(), 1, **WIDE, **ATTENTION_HEADS[heads])
    for layer in model.decoder.layers:
        for attention in (layer.self_attn, layer.encoder_attn):
            attention.q_proj.weight.mul_(200)
    walk(model, seed=2, pack=True, left_pad=True)


@pytest.mark.parametrize("heads", ATTENTION_HEADS)
def test_a_source_of_padding_alone_says_nothing(heads: int) -> None:
    """NaN, as in stock, which the search then names; the other row is as ever."""
    model = make_model(make_task(), 1, **WIDE, **ATTENTION_HEADS[heads])
    net_input = make_batch(random_sources(5, 2), left_pad=False)["net_input"]
    net_input["src_tokens"][1] = 1
    verifier = Verifier([model])
    verifier.start(net_input, capacity=4)
    logits = verifier.read(Window(torch.tensor([2, 9, 2, 9]), [0, 0], [2, 2])).logits
    stock = model(**net_input, prev_output_tokens=torch.tensor([[2, 9], [2, 9]]))[0]
    assert logits[2:].isnan().all() and stock[1].isnan().all()
    assert_close(logits[:2], stock[0])


@pytest.mark.parametrize("name", VARIANTS)
def test_encoder_output_equals_stock(name: str) -> None:
    model = make_model(make_task(), 4, **VARIANTS[name])
    for left_pad in (True, False):
        net_input = make_batch(random_sources(5, 4), left_pad)["net_input"]
        found, expected = (
            FastEncoder(model.encoder)(net_input),
            model.encoder(**net_input),
        )
        real = ~expected["encoder_padding_mask"][0].t()
        assert_close(found["encoder_out"][0][real], expected["encoder_out"][0][real])
        assert torch.equal(found["encoder_padding_mask"][0], expected["encoder_padding_mask"][0])
    alone = make_batch([[5, 6, 7]])["net_input"]
    for encoder in (FastEncoder(model.encoder), StockEncoder(model.encoder)):
        assert encoder(alone)["encoder_padding_mask"] == []


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_sources_embedded_in_the_library_give_the_same_bits(name: str, int8: bool) -> None:
    model = make_model(make_task(), 4, **VARIANTS[name])
    precision = Precision(int8=int8)
    encoder, packed = FastEncoder(model.encoder, precision), PackedDecoder(model.decoder, precision)
    if encoder.compiled is None:
        pytest.skip("no compiled library")
    embeds = encoder.compiled.embeds
    assert embeds == (model.encoder.layernorm_embedding is None)
    for net_input in (
        make_batch([[5, 6, 7]])["net_input"],
        *(make_batch(random_sources(5, 4), left)["net_input"] for left in (True, False)),
    ):
        found = []
        for encoder.compiled.embeds in (embeds, False):
            out = encoder(net_input)
            memory, mask = packed.read_source(out)
            states = out["encoder_out"][0].transpose(0, 1)
            one_by_one = [layer.cross_kv(states) for layer in packed.layers]
            assert all(map(torch.equal, memory, one_by_one))
            assert packed.compiled is not None
            again = encoder.encode(packed.compiled, net_input)
            at_once, _ = packed.read_source(again)
            assert not again and again.memory is at_once  # nobody has read the dictionary
            assert torch.equal(again["encoder_out"][0], out["encoder_out"][0])
            hidden = net_input["src_tokens"].eq(1)
            assert torch.equal(at_once[:, ~hidden], torch.stack(one_by_one)[:, ~hidden])
            assert not at_once[:, hidden].any()
            found.append([*out["encoder_out"], *out["encoder_embedding"], *out["src_lengths"]])
            assert (mask is None) == (not out["encoder_padding_mask"])
        assert all(map(torch.equal, *found))
        assert found[0][-1].tolist() == net_input["src_lengths"].view(-1, 1).tolist()


@pytest.mark.parametrize("embeds", [True, False])
def test_source_tokens_may_be_of_four_bytes(embeds: bool) -> None:
    """PyTorch embeds these too, and no others; the library reads eight."""
    net_input = make_batch(random_sources(5, 4))["net_input"]
    encoder = FastEncoder(make_model(make_task(), 4).encoder)
    if encoder.compiled is not None:
        encoder.compiled.embeds = embeds
    expected = encoder(net_input)
    found = encoder(net_input | {"src_tokens": net_input["src_tokens"].int()})
    for name in ("encoder_out", "encoder_embedding", "encoder_padding_mask", "src_lengths"):
        assert all(map(torch.equal, found[name], expected[name])), name
    with pytest.raises(RuntimeError):
        encoder(net_input | {"src_tokens": net_input["src_tokens"].short()})


def test_a_source_token_of_no_dictionary_is_an_error() -> None:
    model = make_model(make_task(), 4)
    net_input = make_batch([[5, 10**6, 7]])["net_input"]
    with pytest.raises(IndexError):
        FastEncoder(model.encoder)(net_input)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close(dtype: torch.dtype) -> None:
    model = make_model(make_task(), 1)
    net_input = make_batch(random_sources(5, 3))["net_input"]
    window = Window(torch.tensor([2, 5, 6, 2, 7, 2]), [0, 0, 0], [3, 2, 1])
    outputs = []
    for precision in (torch.float32, dtype):
        verifier = Verifier([model.to(precision)])
        verifier.start(net_input, capacity=8)
        outputs.append(verifier.read(window).logits)
    error = (outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()
    assert outputs[1].dtype is torch.float32
    assert error < (0.01 if dtype is torch.float16 else 0.08)


def test_ensemble_averages_probabilities() -> None:
    task = make_task()
    models = [make_model(task, seed) for seed in (1, 2)]
    net_input = make_batch(random_sources(5, 2))["net_input"]
    verifier = Verifier(models)
    verifier.start(net_input, capacity=4)
    log_probs = verifier.read(Window(torch.tensor([2, 9, 2]), [0, 0], [2, 1])).logits
    for row, first, prefix in ((0, 0, [2, 9]), (1, 2, [2])):
        members = [full_log_probs(model, net_input, [prefix] * 2)[row].exp() for model in models]
        expected = (sum(members) / 2).log()
        assert_close(log_probs[first : first + len(prefix)], expected)


def test_verifier_notices_changed_weights() -> None:
    """fairseq's optimisers write through .data, which autograd's version counter does not see."""
    model = make_model(make_task(), 1)
    net_input = make_batch(random_sources(5, 1))["net_input"]
    verifier = Verifier([model])
    window = Window(torch.tensor([2]), [0], [1])
    verifier.start(net_input, capacity=4)
    before = verifier.read(window).logits
    for parameter in model.parameters():
        parameter.data.mul_(1.1)
    verifier.start(net_input, capacity=4)
    after = verifier.read(window).logits.log_softmax(-1)
    assert not torch.allclose(after, before.log_softmax(-1), atol=1e-3)
    assert_close(after, full_log_probs(model, net_input, [[2]])[0])


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_are_for_stock_only(name: str) -> None:
    model = make_model(make_task(), 1, **OTHERS[name])
    net_input = make_batch([[5]])["net_input"]
    with pytest.raises(LeftToStock):
        Verifier([model]).start(net_input, capacity=4)


def test_what_a_decoder_reads_is_made_of_tokens_alone() -> None:
    """Padding is not multiplied, and the next batch takes the same memory if nobody has it."""
    model = make_model(make_task(), 4)
    encoder, decoder = FastEncoder(model.encoder), CachedDecoder(model.decoder)
    if decoder.compiled is None:
        pytest.skip("no compiled library")
    given = make_batch(random_sources(5, 4))["net_input"]
    hidden = given["src_tokens"].eq(1)
    found = encoder.encode(decoder.compiled, given)
    assert isinstance(found, Encoded) and isinstance(memory := found.memory, torch.Tensor)
    states = found["encoder_out"][0].transpose(0, 1).contiguous()
    expected = decoder.compiled.read_source(states)
    assert hidden.any() and torch.equal(memory[:, ~hidden], expected[:, ~hidden])
    assert not memory[:, hidden].any()
    del expected
    places = []
    for _ in range(2):
        decoder.encode(encoder, given, 8)
        places.append(decoder.cache.memory.data_ptr())
    assert places[0] == places[1] != memory.data_ptr()
