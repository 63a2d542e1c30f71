"""``--int8``: every method gives what greedy gives in 8 bits, bit for bit, in every batch; and that is the 8-bit model.

The oracle of the last tests is stock fairseq on a model whose linear layers are replaced by their definition in 8 bits,
with sums in fp64: it shares no code with ours.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.int8 import Int8Linear
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.switches import INSTRUCTIONS, VARIABLE
from fairseq_aggdec.methods import gad as gad_method
from fairseq_aggdec.windows.window import Window
from tests.equality.test_blockwise import FIRST, LAYOUTS, headed
from tests.equality.test_gad import ALL, drafter
from tests.equality.test_lossless import DRAFTERS, Propose, ScriptedDrafter
from tests.support import (
    ACTIVATED,
    generate,
    generate_all,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
    trained_copier,
)

SAMPLE = Path(__file__).resolve().parents[2] / "checkpoints" / "ua_gec"
KINDS: dict[str, dict[str, Any]] = {
    "norm behind": {},
    "norm before": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "embedding norm, learned": {"layernorm_embedding": True, "decoder_learned_pos": True},
    "odd sizes": {
        "encoder_embed_dim": 24,
        "decoder_embed_dim": 40,
        "encoder_ffn_embed_dim": 50,
        "decoder_ffn_embed_dim": 70,
        "no_scale_embedding": True,
        "no_token_positional_embeddings": True,
    },
    "heads of 32": {
        "decoder_embed_dim": 64,
        "encoder_embed_dim": 64,
        "decoder_input_dim": 16,
        "decoder_output_dim": 16,
    },
    # Feed-forward layers of odd sizes: a row's end is no vector's end.
    **{
        name: {
            **options,
            "encoder_ffn_embed_dim": 37,
            "decoder_ffn_embed_dim": 51,
        }
        for name, options in ACTIVATED.items()
    },
}
MODELS = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


@pytest.fixture(params=["none", *INSTRUCTIONS])
def _instructions(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without kernels, and with those for each set of instructions that this processor has."""
    monkeypatch.setenv(VARIABLE, request.param)
    kernels.cache_clear()
    found = kernels()
    if request.param != "none" and (
        found is None or INSTRUCTIONS[found.aggdec_instructions()] != request.param
    ):
        kernels.cache_clear()
        pytest.skip(f"no kernels for {request.param}")
    yield
    kernels.cache_clear()


ANYHOW = pytest.mark.usefixtures("_instructions")


def decode(decoding: str, model: Any, sample: dict[str, Any], **options: Any) -> Any:
    task = make_task(decoding, model.encoder.dictionary, model.decoder.dictionary, int8=True)
    return generate(task, [model], sample, **options)


def one_by_one(
    model: Any, sources: list[list[int]], int8: bool = True, **options: Any
) -> list[dict[str, Any]]:
    """Greedy decoding in 8 bits, each sentence alone: what everything else is compared with."""
    task = make_task("greedy", model.encoder.dictionary, model.decoder.dictionary, int8=int8)
    return generate_all(task, [model], [make_batch([source]) for source in sources], **options)


def assert_identical(found: Any, expected: Any) -> None:
    """Tokens and scores, bit for bit."""
    assert len(found) == len(expected)
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist(), f"sentence {index}"
        assert torch.equal(ours["positional_scores"], theirs["positional_scores"])


@ANYHOW
@MODELS
def test_batches_and_windows_change_nothing(options: dict[str, Any]) -> None:
    model = make_model(make_task(), 4, **options)
    sources = random_sources(4, 9)
    expected = one_by_one(model, sources)
    samples = [make_batch(sources, left_pad) for left_pad in (True, False)]
    for decoding in ("greedy", "iad"):
        found = generate_all(make_task(decoding, int8=True), [model], samples)
        assert_identical(found, 2 * expected)


@ANYHOW
def test_ensembles() -> None:
    models = [make_model(make_task(), seed) for seed in (4, 5)]
    sources = random_sources(4, 9)
    tasks = {name: make_task(name, int8=True) for name in ("greedy", "iad")}
    expected = generate_all(tasks["greedy"], models, [make_batch([source]) for source in sources])
    for task in tasks.values():
        assert_identical(generate(task, models, make_batch(sources)), expected)
    alone = one_by_one(models[0], sources)
    assert any(
        a["tokens"].tolist() != b["tokens"].tolist() for a, b in zip(alone, expected, strict=True)
    )


@pytest.mark.parametrize("propose", DRAFTERS)
def test_adversarial_drafters(propose: Propose) -> None:
    """With the library: without it stock fairseq decodes what is drafted in Python."""
    model = make_model(make_task(), 7)
    sources = random_sources(11, 6)
    expected = one_by_one(model, sources)

    def prepare(generator: Any) -> None:
        generator.drafter = ScriptedDrafter(expected, propose)

    assert_identical(decode("greedy", model, make_batch(sources), prepare=prepare), expected)


@pytest.mark.parametrize("seed", range(12))
def test_random_models_and_batches(seed: int) -> None:
    model = make_model(make_task(), seed)
    sources = random_sources(100 + seed, 24, longest=60 if seed % 2 else 30)
    options = {"max_len_b": 40}
    expected = one_by_one(model, sources, **options)
    for size in (1, 5, 24):
        for decoding in ("greedy", "iad"):
            firsts = range(0, len(sources), size)
            samples = [make_batch(sources[first : first + size]) for first in firsts]
            task = make_task(decoding, int8=True)
            assert_identical(generate_all(task, [model], samples, **options), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"max_len_a": 0.0, "max_len_b": 3},
        {"min_len": 6, "max_len_b": 9},
        {"unkpen": -3.0},
        {"temperature": 2.0},
        {"no_repeat_ngram_size": 2},
    ],
    ids=str,
)
def test_generation_options(options: dict[str, Any]) -> None:
    model = make_model(make_task(), 6)
    sources = random_sources(6, 8)
    expected = one_by_one(model, sources, **options)
    assert_identical(decode("iad", model, make_batch(sources), **options), expected)


@ALL
def test_drafters(variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    verifier, model = make_model(make_task(), 5), drafter(**variant)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: model)
    sources = random_sources(3, 7)
    expected = one_by_one(verifier, sources)
    task = make_task("gad", drafter_path="drafter.pt", int8=True)
    assert_identical(generate(task, [verifier], make_batch(sources)), expected)
    assert task.counters.drafted > 0


@LAYOUTS
@FIRST
def test_block_heads(layout: str, identity: bool) -> None:
    model, sources = headed(layout, identity), random_sources(4, 7)
    expected = one_by_one(model, sources)
    assert_identical(decode("blockwise", model, make_batch(sources)), expected)
    decoder = CachedDecoder(model.decoder, Precision(int8=True))
    packed, heads = decoder.packed, decoder.heads
    assert heads is not None
    heads.propose(torch.randn(2, packed.decoder.output_projection.in_features), 2, True)
    assert heads.drafting is heads.exact  # the weights are not laid out twice
    assert packed.draft_projection(True) is packed.project_vocabulary


@pytest.mark.parametrize("options", [KINDS["norm behind"], KINDS["norm before"]])
def test_logits_of_any_window(options: dict[str, Any]) -> None:
    """Ragged rows, windows cut anywhere, other sentences beside: the logits are the same bit for bit."""
    model = make_model(make_task(), 8, **options)
    sources = random_sources(8, 3)
    tokens = torch.randint(4, 30, (3, 12), generator=torch.Generator().manual_seed(1))
    verifier = Verifier([model], Precision(int8=True))

    def logits(rows: list[int], cuts: list[list[int]]) -> list[Tensor]:
        """Of each row, its tokens cut into windows."""
        sample = make_batch([sources[row] for row in rows])
        verifier.start(sample["net_input"], 4)
        out: list[list[Tensor]] = [[] for _ in rows]
        for steps in zip(*cuts, strict=True):
            starts = [sum(cut[: len(o)]) for cut, o in zip(cuts, out, strict=True)]
            parts = [tokens[row, s : s + w] for row, s, w in zip(rows, starts, steps, strict=True)]
            window = Window(torch.cat(parts), starts, list(steps))
            for of_row, part in zip(out, verifier.read(window).logits.split(steps), strict=True):
                of_row.append(part)
        return [torch.cat(parts) for parts in out]

    with torch.inference_mode():
        alone = [logits([row], [[1] * 12])[0] for row in range(3)]
        together = logits([2, 0, 1], [[5, 1, 6], [1, 10, 1], [12 - 4, 2, 2]])
    for row, found in zip([2, 0, 1], together, strict=True):
        assert torch.equal(found, alone[row])


class Alternating(Window):
    """Every other slot is another's: a slot sees only those of its own kind, up to itself."""

    def mask(self, dtype: torch.dtype, span: int | None = None) -> Tensor:
        query, key = torch.arange(self.width).unsqueeze(1), torch.arange(self.end)
        hidden = (key > query) | (key % 2 != query % 2)
        return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[None, None]


@ANYHOW
@pytest.mark.parametrize("int8", [True, False])
def test_hidden_keys_are_as_if_they_were_not_there(
    int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for the order of sums: two sentences that take turns in one window, each as if it were alone."""
    decoder = CachedDecoder(
        make_model(make_task(), 3, **KINDS["heads of 32"]).decoder, Precision(int8=int8)
    )
    if decoder.compiled is None and not int8:
        pytest.skip("PyTorch's attention depends on what is hidden")
    states, size = torch.randn(9, 1, 64), 50
    encoder_out: Any = {"encoder_out": [states], "encoder_padding_mask": []}
    x = torch.randn(2, size, 64)

    def run(rows: Tensor, window: Window) -> Tensor:
        decoder.start(encoder_out, 1, len(rows))
        monkeypatch.setattr(type(decoder.embedding), "__call__", lambda *_: rows.clone())
        if decoder.compiled is not None:
            decoder.compiled.embeds = False
        return decoder.features(window)

    with torch.inference_mode():
        tokens = torch.zeros(2 * size, dtype=torch.long)
        turns = run(x.transpose(0, 1).flatten(0, 1), Alternating(tokens, [0], [2 * size]))
        for row in range(2):
            alone = run(x[row], Window(tokens[:size], [0], [size]))
            assert torch.equal(turns[row::2], alone)


def test_it_is_not_fp32() -> None:
    model = make_model(make_task(), 1)
    sample = make_batch(random_sources(1, 8))
    scores = [
        torch.cat([h["positional_scores"] for h in found])
        for found in (
            decode("greedy", model, sample, min_len=19),
            stock([model], sample, min_len=19),
        )
    ]
    assert not torch.allclose(*scores, atol=1e-4)
    decoder = CachedDecoder(model.decoder, Precision(int8=True))
    assert isinstance(decoder.packed.project_vocabulary, Int8Linear)
    assert isinstance(decoder.packed.layers[0].cross_kv, Int8Linear)


def test_what_cannot_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    task = make_task("greedy", int8=True)
    sample = make_batch([[5, 6]])
    with pytest.raises(ValueError, match="--int8 needs models in fp32 on CPU, not bfloat16 on cpu"):
        generate(task, [make_model(task, 1).bfloat16()], sample)
    scaled = make_model(task, 1, scale_heads=True)
    with pytest.raises(ValueError, match="--int8 needs the decoder of a stock Transformer, not"):
        generate(task, [scaled], sample)
    with caplog.at_level("INFO"):
        generate(task, [make_model(task, 1)], sample)
    assert "the output is that of the model in 8 bits" in caplog.text
    with caplog.at_level("WARNING"):
        generate(make_task("stock", int8=True), [make_model(task, 1)], sample)
    assert "--int8 has no effect with --decoding stock" in caplog.text


class InEightBits(nn.Module):
    """A linear layer by the definition of 8 bits: a scale per output, a scale and a zero point per row of the input."""

    def __init__(self, module: nn.Linear):
        super().__init__()
        scale = module.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = module.weight  # fairseq looks at it
        self.levels = ((module.weight.detach() / scale).round() * scale).double().t()
        self.bias = module.bias

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        step = ((high - low) / 255).clamp(min=1e-15)
        zero = (-low / step).round()
        levels = ((x / step).round() + zero).clamp(0, 255) - zero
        y = ((levels * step).double() @ self.levels).float()
        return y if self.bias is None else y + self.bias


def by_definition(model: Any, kind: type[nn.Module] = InEightBits) -> Any:
    """A copy whose linear layers, and nothing else, compute by their definition."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        if isinstance(module, MultiheadAttention):
            # fairseq's own switch: its layers are called as modules
            module.skip_embed_dim_check = True
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, kind(child))
    return model


def assert_near(found: Any, expected: Any, least_equal: float) -> None:
    """Equal outputs but where a number in fp32 is rounded to the other level, which turns few choices."""
    equal, errors = 0, []
    for ours, theirs in zip(found, expected, strict=True):
        if ours["tokens"].tolist() == theirs["tokens"].tolist():
            equal += 1
            errors.append((ours["positional_scores"] - theirs["positional_scores"]).abs().max())
    assert torch.stack(errors).median() < 1e-5
    assert max(errors) < 0.1
    assert equal >= least_equal * len(expected)


@pytest.mark.parametrize(
    ("seed", "activation"), [(2, "relu"), (3, "relu"), *((1, name) for name in ACTIVATED)]
)
def test_stock_on_the_model_in_8_bits(seed: int, activation: str) -> None:
    model = make_model(make_task(), seed, **ACTIVATED[activation])
    sample = make_batch(random_sources(20 + seed, 40))
    expected = stock([by_definition(model)], sample)
    assert_near(decode("greedy", model, sample), expected, 0.95)
    same = sum(
        a["tokens"].tolist() == b["tokens"].tolist()
        for a, b in zip(stock([model], sample), expected, strict=True)
    )
    assert same <= 0.8 * len(expected)  # of the model in fp32: equality above is no accident


def test_a_model_that_has_learnt_something() -> None:
    model = trained_copier()[1]
    sources = random_sources(12, 24, longest=25)
    sample = make_batch(sources)
    expected = one_by_one(model, sources)
    assert_identical(decode("iad", model, sample), expected)
    assert_near(decode("iad", model, sample), stock([by_definition(model)], sample), 0.95)


@pytest.mark.skipif(not (SAMPLE / "checkpoint.pt").exists(), reason="no checkpoint in this copy")
def test_the_shipped_corrector() -> None:
    pieces = pytest.importorskip("sentencepiece")
    words = Dictionary.load(str(SAMPLE / "dict.src.txt"))
    task = make_task("greedy", words, words)
    (model,), _ = checkpoint_utils.load_model_ensemble([str(SAMPLE / "checkpoint.pt")], task=task)
    model = model.float().eval()
    reader = pieces.SentencePieceProcessor(model_file=str(SAMPLE / "spm.model"))
    lines = (SAMPLE / "sample.src").read_text(encoding="utf-8").splitlines()[:24]
    sources = [
        [words.index(piece) for piece in reader.encode(line, out_type=str)] for line in lines
    ]
    options = {"max_len_b": 200}
    expected = one_by_one(model, sources, **options)
    for decoding in ("greedy", "iad"):
        assert_identical(decode(decoding, model, make_batch(sources), **options), expected)
