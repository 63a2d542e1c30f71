"""End to end where the fast decoder does not apply, and random drafts, options and prefixes all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from fairseq.models.transformer import TransformerEncoder
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_aggdec.engine.plain.support import decoder_gap, encoder_gap
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict
from tests.support import (
    assert_same,
    generate,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
    trained_copier,
)

CONVOLUTIONS = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("kernel_size_list", [3, 3]), ("conv_type", "lightweight"), ("glu", True))
}
CONVOLUTIONS |= {"weight_softmax": True, "weight_dropout": 0.0}
OTHERS: dict[str, dict[str, Any]] = {
    "scaled heads": {"scale_heads": True},
    "scaled residuals": {"scale_resids": True},
    "normalised attention and feed-forward": {"scale_attn": True, "scale_fc": True},
    "adaptive softmax": {"adaptive_softmax_cutoff": "10,20", "adaptive_softmax_dropout": 0.0},
    "lightconv": {"arch": "lightconv", **CONVOLUTIONS},
    "lstm": {"arch": "lstm", "criterion": "", "encoder_hidden_size": 16, "decoder_hidden_size": 16},
    "fconv": {
        "arch": "fconv",
        "encoder_layers": "[(16, 3)] * 2",
        "decoder_layers": "[(16, 3)] * 2",
    },
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("method", ["greedy", "iad"])
def test_other_architectures_equal_stock(name: str, method: str) -> None:
    task = make_task(method)
    model = make_model(task, 3, **OTHERS[name])
    assert decoder_gap(model.decoder) is not None
    for left_pad in (True, False):
        if not left_pad and name in ("lstm", "fconv"):
            continue  # their encoders are told the padding side when they are built
        sources = sorted(random_sources(4, 5), key=len, reverse=True)  # as fairseq collates
        batch = make_batch(sources, left_pad)
        assert_same(generate(task, [model], batch), stock([model], batch))


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize(("method", "beam"), [("greedy", 1), ("iad", 1), ("beam", 1), ("beam", 3)])
@pytest.mark.parametrize("name", OTHERS)
def test_alignments_of_other_architectures(name: str, method: str, beam: int, kind: str) -> None:
    """Attention is shown as a tensor by some decoders, in a dictionary by others."""
    task, options = make_task(method), {"beam": beam, "print_alignment": kind}
    model = make_model(task, 3, **OTHERS[name])
    batch = make_batch(sorted(random_sources(4, 5), key=len, reverse=True))
    found, expected = (
        generate(task, [model], batch, **options),
        stock([model], batch, **options),
    )
    assert_same(found, expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours["attention"], theirs["attention"], atol=1e-4, rtol=1e-4)
        assert len(ours["alignment"]) == len(theirs["alignment"]) > 0


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_decoder_that_shows_no_attention_has_no_alignment(kind: str) -> None:
    task = make_task("iad")
    model = make_model(task, 3, **OTHERS["lstm"], decoder_attention="0")
    batch = make_batch([[5, 6, 7], [8, 9]])
    with pytest.raises(ValueError, match="which the LSTMDecoder of this model does not show"):
        generate(task, [model], batch, print_alignment=kind)


def test_other_and_fast_models_in_one_ensemble() -> None:
    task = make_task("iad")
    models = [make_model(task, 1), make_model(task, 2, scale_heads=True)]
    assert encoder_gap(models[0].encoder) is None
    batch = make_batch(random_sources(6, 5))
    assert_same(generate(task, models, batch), stock(models, batch))


@pytest.mark.parametrize("method", ["greedy", "iad"])
def test_training_goes_on_after_longer_outputs_than_it_has_seen(method: str) -> None:
    """A stock decoder keeps the causal mask of the longest output so far, and training uses it again."""
    model = make_model(make_task(), 3, scale_resids=True)
    generate(make_task(method), [model], make_batch(random_sources(4, 3)), min_len=19)
    batch = make_batch(random_sources(5, 3))
    previous = torch.full((3, 12), 5)
    model.train()(**batch["net_input"], prev_output_tokens=previous)[0].sum().backward()
    assert model.decoder.output_projection.weight.grad is not None


class Pointing(TransformerEncoder):
    """As in fairseq's pointer-generator: more in its output than the encoder that it extends has."""

    def forward(self, src_tokens: Any, *args: Any, **kwargs: Any) -> Any:
        return super().forward(src_tokens, *args, **kwargs) | {"src_tokens": [src_tokens]}


def test_encoder_with_a_forward_of_its_own_runs_as_it_is() -> None:
    model = make_model(make_task(), 3)
    assert encoder_gap(model.encoder) is None
    model.encoder.__class__ = Pointing
    assert "forward() of its own" in str(encoder_gap(model.encoder))


class NumberMask(TransformerEncoder):
    """Says in numbers what is padding."""

    kind = torch.uint8

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        return found | {"encoder_padding_mask": [found["encoder_padding_mask"][0].to(self.kind)]}


class LongMask(NumberMask):
    kind = torch.int64


class FloatMask(NumberMask):
    kind = torch.float32


class Sampling(TransformerEncoder):
    """Draws its states, as dropout does that is on when a model decodes."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        states = torch.nn.functional.dropout(found["encoder_out"][0], 0.5, training=True)
        return found | {"encoder_out": [states]}


@pytest.mark.parametrize("method", ["greedy", "iad"])
@pytest.mark.parametrize("kind", [NumberMask, LongMask, FloatMask, Sampling])
def test_what_an_encoder_of_its_own_may_return(kind: Any, method: str) -> None:
    model, batch = make_model(make_task(), 3), make_batch(random_sources(5, 3))
    model.encoder.__class__ = kind
    torch.manual_seed(4)
    expected = stock([model], batch)
    torch.manual_seed(4)
    assert_same(generate(make_task(method), [model], batch), expected)


class RandomDrafter(Drafter):
    """Drafts of any length and content, right more often than not."""

    def __init__(self, oracle: Sequence[Mapping[str, Any]], seed: int):
        self.oracle = [hypothesis["tokens"].tolist() for hypothesis in oracle]
        self.generator = torch.Generator().manual_seed(seed)

    def _draw(self, limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=self.generator))

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.kept = list(range(len(state.rows)))

    def draft(self, state: DecodeState) -> Draft:
        assert self.kept == [row.index for row in state.rows]
        drafts = []
        for row in state.rows:
            assert row.position <= row.end
            length = self._draw(row.end - row.position + 1)
            draft = (self.oracle[row.index] + [4] * 99)[row.position : row.position + length]
            drafts.append([token if self._draw(5) else self._draw(40) for token in draft])
        return Draft(drafts)

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        for row, emitted, accepted in zip(
            state.rows, verdict.emitted, verdict.accepted, strict=True
        ):
            assert row.tokens[-len(emitted) :] == emitted
            assert emitted
            assert len(emitted) - accepted in (0, 1)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.kept = [self.kept[row] for row in rows]


@pytest.fixture(scope="module")
def models() -> list[Any]:
    return [trained_copier()[1], make_model(make_task(), 1, decoder_normalize_before=True)]


@settings(max_examples=50)
@given(data=st.data())
def test_random_drafts_options_and_prefixes(models: list[Any], data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 999))
    rows = data.draw(st.integers(1, 5))
    options = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "max_len_a": st.floats(0, 1.5),
                "max_len_b": st.integers(8, 20),
                "min_len": st.integers(0, 8),
                "unkpen": st.floats(-2, 4),
                "lenpen": st.floats(0, 2),
                "unnormalized": st.booleans(),
                "temperature": st.floats(0.5, 3),
            },
        )
    )
    width = data.draw(st.sampled_from([0, 0, 1, 2, 5, 25]))
    # An end in the prefix must not follow a free position: stock refuses that with an assertion.
    free, ended = st.sampled_from([1, 3, 5, 9, 20, 30]), st.sampled_from([2, 3, 5, 9, 20, 30])
    row = st.one_of(*(st.lists(token, min_size=width, max_size=width) for token in (free, ended)))
    prefix = torch.tensor(data.draw(st.lists(row, min_size=rows, max_size=rows)))
    batch = make_batch(random_sources(seed, rows), left_pad=data.draw(st.booleans()))
    arguments: tuple[Any, ...] = (batch, prefix if width else None)
    model = models[data.draw(st.integers(0, 1))]
    expected = stock([model], *arguments, **options)

    def prepare(generator: Any) -> None:
        generator.drafter = RandomDrafter(expected, seed)

    assert_same(
        generate(make_task("greedy"), [model], *arguments, prepare=prepare, **options), expected
    )
    assert_same(generate(make_task("iad"), [model], *arguments, **options), expected)
