"""``--strict``: in half precision drafting gives what greedy decoding gives, bit for bit; in fp32 what stock gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.methods import gad as gad_method
from fairseq_aggdec.windows.grid import Grid, GridWindow
from fairseq_aggdec.windows.window import Window
from tests.equality.test_blockwise import FIRST, LAYOUTS, headed
from tests.equality.test_gad import ALL, drafter
from tests.equality.test_int8 import KINDS, assert_identical
from tests.equality.test_lossless import DRAFTERS, Propose, ScriptedDrafter
from tests.support import (
    assert_same,
    generate,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PRECISIONS = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
WIDTH = 6
# Wide enough for the kernels of products to cut their rows into blocks.
WIDER = {
    "encoder_embed_dim": 64,
    "decoder_embed_dim": 64,
    "encoder_ffn_embed_dim": 256,
    "decoder_ffn_embed_dim": 256,
}


def decode(
    decoding: str, models: list[Any], sample: dict[str, Any], strict: int = WIDTH, **options: Any
) -> Any:
    dictionaries = models[0].encoder.dictionary, models[0].decoder.dictionary
    task = make_task(decoding, *dictionaries, strict=strict)
    return generate(task, models, sample, **options)


def mostly_right(row: int, position: int, oracle: list[int]) -> int:
    return oracle[position] if position < len(oracle) and (7 * position + row) % 5 else 5


def prompted(model: Any, sample: dict[str, Any], strict: int, expected: Any, **options: Any) -> Any:
    """Decoded with drafts of which most stand, longer than a window has slots for."""

    def prepare(generator: Any) -> None:
        generator.drafter = ScriptedDrafter(expected, mostly_right, longest=9)

    return decode("greedy", [model], sample, strict, prepare=prepare, **options)


@PRECISIONS
@pytest.mark.parametrize("options", [*KINDS.values(), WIDER], ids=[*KINDS, "wider"])
@pytest.mark.parametrize("width", [2, 16])
def test_drafts_change_nothing(options: dict[str, Any], dtype: torch.dtype, width: int) -> None:
    model = make_model(make_task(), width, **options).to(dtype)
    for rows in (1, 7):
        sample = make_batch(random_sources(width, rows), left_pad=rows > 1)
        expected = decode("greedy", [model], sample, width)
        if dtype is torch.float32:
            assert_same(expected, stock([model], sample))
        assert_identical(decode("iad", [model], sample, width), expected)
        assert_identical(prompted(model, sample, width, expected), expected)


def test_without_it_they_do() -> None:
    """In fp16; products of the compiled library, which takes bfloat16, do not."""
    model = make_model(make_task(), 1, **WIDER).half()
    sample = make_batch(random_sources(1, 7))
    expected = decode("greedy", [model], sample, 0)
    with pytest.raises(AssertionError):
        assert_identical(prompted(model, sample, 0, expected), expected)


@HALF
@pytest.mark.parametrize("seed", range(6))
def test_random_models_and_batches(seed: int, dtype: torch.dtype) -> None:
    model = make_model(make_task(), seed).to(dtype)
    sample = make_batch(random_sources(100 + seed, 3 + 4 * seed, longest=40))
    expected = decode("greedy", [model], sample, max_len_b=30)
    assert_identical(decode("iad", [model], sample, max_len_b=30), expected)
    assert_identical(prompted(model, sample, WIDTH, expected, max_len_b=30), expected)


@HALF
@pytest.mark.parametrize("propose", DRAFTERS)
def test_adversarial_drafters(propose: Propose, dtype: torch.dtype) -> None:
    model = make_model(make_task(), 7).to(dtype)
    sample = make_batch(random_sources(11, 6))
    expected = decode("greedy", [model], sample)

    def prepare(generator: Any) -> None:
        generator.drafter = ScriptedDrafter(expected, propose)

    assert_identical(decode("greedy", [model], sample, prepare=prepare), expected)


@HALF
def test_an_ensemble_and_forced_prefixes(dtype: torch.dtype) -> None:
    models = [make_model(make_task(), seed).to(dtype) for seed in (1, 2)]
    sample, prefix = make_batch(random_sources(5, 3)), torch.tensor([[5, 6], [9, 1], [7, 1]])
    expected = decode("greedy", models, sample, prefix=prefix)
    assert_identical(decode("iad", models, sample, prefix=prefix), expected)


@PRECISIONS
@ALL
def test_drafters(
    variant: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier, model = make_model(make_task(), 5), drafter(**variant)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: model)
    sample = make_batch(random_sources(3, 7))
    oracle = stock([verifier], sample)
    expected = decode("greedy", [verifier.to(dtype)], sample, 4)
    if dtype is torch.float32:
        assert_same(expected, oracle)
    for nodes in (None, "9"):
        task = make_task("gad", drafter_path="drafter.pt", strict=4, draft_tree=nodes)
        assert_identical(generate(task, [verifier], sample), expected)
        assert task.counters.drafted > 0


@PRECISIONS
@LAYOUTS
@FIRST
def test_block_heads(layout: str, identity: bool, dtype: torch.dtype) -> None:
    model, sample = headed(layout, identity).to(dtype), make_batch(random_sources(4, 7))
    expected = decode("greedy", [model], sample)
    if dtype is torch.float32:
        assert_same(expected, stock([model], sample))
    assert_identical(decode("blockwise", [model], sample), expected)


def test_every_call_has_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the promise stands on: rows, slots and keys, also where rows have ended."""
    shapes, whole = set(), Grid.lay_out

    def seen(grid: Grid, window: Window) -> Any:
        laid_out, slots = whole(grid, window)
        if grid.shape[0] > 1:  # not the sentence that the generator warms up with
            shapes.add((*laid_out.tokens.shape, *laid_out.mask(torch.float32).shape))
        return laid_out, slots

    monkeypatch.setattr(Grid, "lay_out", seen)
    model, sample = make_model(make_task(), 3), make_batch(random_sources(3, 5))
    found = decode("greedy", [model], sample)
    assert len({len(hypothesis["tokens"]) for hypothesis in found}) > 1
    decode("iad", [model], sample)
    assert shapes == {(5 * WIDTH, 5, 1, WIDTH, 21)}


def test_the_step_is_one_graph() -> None:
    """Nothing in a call of fixed shape asks the host: a compiler sees all of it, whatever the numbers are."""
    model = make_model(make_task(), 3)
    verifier = Verifier([model], Precision(pack=False, strict=3))
    sample = make_batch(random_sources(3, 2))
    with torch.inference_mode():
        verifier.start(sample["net_input"], 8)

        def step(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return verifier.read(GridWindow(tokens, positions, (2, 3, 8))).logits

        def window(starts: list[int], widths: list[int]) -> GridWindow:
            assert verifier.grid is not None
            return verifier.grid.lay_out(Window(torch.arange(5, 5 + sum(widths)), starts, widths))[
                0
            ]

        verifier.read(window([0, 0], [1, 1]))  # makes the table of positions and the mask's numbers
        torch._dynamo.reset()
        compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="eager")
        for stance, starts, widths in (
            ("default", [0, 0], [1, 3]),
            ("fail_on_recompile", [1, 2], [2, 1]),
            ("fail_on_recompile", [3], [3]),
        ):
            laid_out = window(starts, widths)
            with torch.compiler.set_stance(stance):
                found = compiled(laid_out.tokens, laid_out.positions)
            torch.testing.assert_close(found, verifier.read(laid_out).logits)
