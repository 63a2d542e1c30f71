"""fairseq models as models of Hugging Face transformers: the same greedy output, or a sentence that says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.bench import hugging_face
from tests.support import make_batch, make_dictionary, make_model, make_task, random_sources, stock

BEFORE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
ALL = {"share_all_embeddings": True}
TIED = {"share_decoder_input_output_embed": True}
FITTING: dict[str, dict[str, Any]] = {
    "norms behind": {},
    "norms behind, all shared": ALL,
    "norms behind, two dictionaries": TIED,
    "norms before": BEFORE | ALL,
    "gelu": {"activation_fn": "gelu"},
    "plain embeddings": {"no_scale_embedding": True, "encoder_layers": 3},
    "uneven": {"encoder_layers": 1, "decoder_layers": 3, "decoder_ffn_embed_dim": 40},
}
OTHERS: dict[str, dict[str, Any]] = {
    "learned": ALL | {"encoder_learned_pos": True},
    "norm": ALL | {"layernorm_embedding": True},
    "two, norms before": BEFORE | TIED,
    "softmax": {"adaptive_softmax_cutoff": "10,20"},
    "one side": ALL | {"encoder_normalize_before": True},
    "tanh": ALL | {"activation_fn": "tanh"},
    "another gelu": ALL | {"activation_fn": "gelu_accurate"},
    "widths": TIED | {"encoder_embed_dim": 24},
}


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    pytest.importorskip("transformers")


def made(options: dict[str, Any], seed: int = 1) -> Any:
    """A random model; where embeddings are shared with the output, the last norm turns features away from them, so that
    it does not repeat its last token."""
    model = make_model(make_task(), seed, **options)
    if not model.decoder.share_input_output_embed:
        return model
    last = model.decoder.layer_norm or model.decoder.layers[-1].final_layer_norm
    with torch.no_grad():
        model.decoder.embed_tokens.weight.mul_(0.5)
        last.weight.mul_(torch.randn(last.weight.shape, generator=torch.Generator().manual_seed(1)))
    return model


@pytest.mark.parametrize("left_pad", [True, False])
@pytest.mark.parametrize("kind", FITTING)
def test_greedy_output_is_that_of_stock(kind: str, left_pad: bool) -> None:
    different = 0
    for seed in range(2):
        model = made(FITTING[kind], seed)
        sample = make_batch(random_sources(seed, 20), left_pad)
        tokens = sample["net_input"]["src_tokens"]
        other = hugging_face.exported(model, make_dictionary())
        found = hugging_face.translate(other, tokens, limit=20)
        expected = [row["tokens"].tolist() for row in stock([model], sample)]
        assert len(set(map(tuple, expected))) >= 5
        different += sum(a != b for a, b in zip(found, expected, strict=True))
    assert different == 0


def test_a_longer_least_length_is_kept() -> None:
    model = made(ALL)
    sample = make_batch(random_sources(3, 8))
    other = hugging_face.exported(model, make_dictionary())
    found = hugging_face.translate(other, sample["net_input"]["src_tokens"], limit=12, least=9)
    expected = stock([model], sample, max_len_b=12, min_len=9)
    assert found == [row["tokens"].tolist() for row in expected]


@pytest.mark.parametrize("kind", OTHERS)
def test_what_no_class_represents_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="no class for this model"):
        hugging_face.exported(made(OTHERS[kind]), make_dictionary())


@pytest.mark.parametrize("kind", ["norms behind", "norms before"])
def test_a_saved_model_is_the_same_when_it_is_loaded(kind: str, tmp_path: Path) -> None:
    import transformers

    made_there = hugging_face.exported(made(FITTING[kind]), make_dictionary())
    made_there.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    tokens = make_batch(random_sources(2, 6))["net_input"]["src_tokens"]
    expected = hugging_face.translate(made_there, tokens, limit=20)
    assert hugging_face.translate(loaded, tokens, limit=20) == expected
