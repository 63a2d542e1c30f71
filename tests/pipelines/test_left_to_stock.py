"""What stock fairseq decodes itself, which the log says; and what fails in it, with the same error in ours."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import fairseq
import pytest
from fairseq.utils import import_user_module

from fairseq_aggdec.cli import fairseq_commands
from tests.pipelines.making import (
    BATCHES,
    SEARCH,
    SIZES,
    USER_DIR,
    assert_same,
    decode,
    forgotten,
    of_stock,
    stock,
    write_model,
    write_text,
)

EXAMPLES = Path(fairseq.__file__).parent / "examples"
PAIR = shlex.split("-s de -t en")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("left"), ["de", "en"])


@pytest.fixture(scope="module")
def model(data: Path) -> Path:
    return write_model(data / "model.pt", data, "translation", "transformer", *PAIR, *SIZES)


def imported(folder: Path) -> list[str]:
    """The user-dir, known to fairseq by now; flags that name it."""
    with forgotten():
        import_user_module(type("", (), {"user_dir": str(folder)}))
    return ["--user-dir", str(folder)]


STOCK = {
    "sampling": ("transformer", "", "--sampling --seed 4 --nbest 4", "--sampling"),
    "siblings": ("transformer", "", "--diversity-rate 0.5", "--diversity-rate"),
    "lightconv": ("lightconv_iwslt_de_en", "", "", "LightConvDecoder"),
    "fconv": ("fconv_iwslt_de_en", "", "", "FConvDecoder"),
    "lstm": ("lstm", "", "", "LSTMDecoder"),
    "adaptive softmax": ("transformer", "--adaptive-softmax-cutoff 10,20", "", "adaptive"),
}
NARROW = {
    "lstm": shlex.split("--encoder-embed-dim 16 --decoder-embed-dim 16"),
    "fconv": shlex.split(
        "--encoder-embed-dim 16 --decoder-embed-dim 16 --decoder-out-embed-dim 16 "
        "--encoder-layers [(16,3)]*2 --decoder-layers [(16,3)]*2"
    ),
    "lightconv": shlex.split(
        "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 --decoder-embed-dim 16 "
        "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 "
        "--decoder-attention-heads 2 --encoder-conv-dim 16 --decoder-conv-dim 16 "
        "--encoder-kernel-size-list [3,5] --decoder-kernel-size-list [3,5]"
    ),
}


@pytest.mark.parametrize("name", STOCK)
def test_what_is_left_to_stock_is_said(name: str, data: Path, tmp_path: Path) -> None:
    arch, training, decoding, reason = STOCK[name]
    flags = [*shlex.split(training), *NARROW.get(name, SIZES)]
    path = write_model(tmp_path / "m.pt", data, "translation", arch, *PAIR, *flags)
    command = [data, "--path", path, *BATCHES, *SEARCH, *PAIR, *shlex.split(decoding)]
    found, (said,) = of_stock(*command)
    assert reason in said
    assert_same(found, stock(*command))


def test_language_model(data: Path, model: Path, tmp_path: Path) -> None:
    sizes = "--decoder-layers 1 --decoder-embed-dim 16 --decoder-ffn-embed-dim 32 --decoder-attention-heads 2"
    flags = shlex.split(f"{sizes} --tokens-per-sample 64")
    path = write_model(tmp_path / "lm.pt", data, "language_modeling", "transformer_lm", *flags)
    command = [data, "--path", model, *BATCHES, *SEARCH, *PAIR, "--lm-path", path]
    command += ["--lm-weight", "0.7"]
    found, (said,) = of_stock(*command)
    assert "left to stock fairseq: --lm-path" in said
    expected = stock(*command)
    assert_same(found, expected)
    assert expected.nbest != stock(*command[:-4]).nbest


def test_pointer_generator(data: Path, tmp_path: Path) -> None:
    folder = imported(EXAMPLES / "pointer_generator" / "pointer_generator_src")
    flags = [
        *SIZES,
        "--alignment-layer",
        "-1",
        "--alignment-heads",
        "1",
        "--source-position-markers",
        "0",
    ]
    arch = "transformer_pointer_generator"
    path = write_model(tmp_path / "m.pt", data, "translation", arch, *PAIR, *flags)
    command = [data, "--path", path, *BATCHES, *SEARCH, *PAIR, *folder]
    with forgotten():
        found = decode(*command, command=fairseq_commands.generate)
    assert not found.batches
    (said,) = found.left()
    assert (
        "TransformerPointerGeneratorModel" in said or "TransformerPointerGeneratorDecoder" in said
    )
    assert_same(found, stock(*command))


OWN = """
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.models.transformer import TransformerDecoder

class SharperDecoder(TransformerDecoder):
    def get_normalized_probs(self, net_output, log_probs, sample=None):
        return super().get_normalized_probs((net_output[0] * 2.5, *net_output[1:]), log_probs, sample)

@register_model("sharper_{kind}")
class Sharper(TransformerModel):
    {body}

register_model_architecture("sharper_{kind}", "sharper_{kind}")(base_architecture)
"""
BODIES = {
    "decoder": """
    @classmethod
    def build_decoder(cls, args, tgt_dict, embed_tokens):
        return SharperDecoder(args, tgt_dict, embed_tokens)
""",
    "model": """
    def get_normalized_probs(self, net_output, log_probs, sample=None):
        return super().get_normalized_probs((net_output[0] * 2.5, *net_output[1:]), log_probs, sample)
""",
}


@pytest.mark.parametrize(
    ("kind", "task"), [("decoder", "translation"), ("model", "translation_multi_simple_epoch")]
)
def test_probabilities_of_ones_own(
    kind: str, task: str, data: Path, model: Path, tmp_path: Path
) -> None:
    own = tmp_path / f"sharper_{kind}_{task}"
    own.mkdir()
    name = f"{kind}_{task}"
    (own / "__init__.py").write_text(OWN.format(kind=name, body=BODIES[kind].strip()))
    folder = imported(own)
    many = shlex.split("--langs de,en --lang-pairs de-en,en-de --decoder-langtok")
    flags = many if task != "translation" else []
    training = flags or PAIR
    path = write_model(tmp_path / "m.pt", data, task, f"sharper_{name}", *training, *SIZES)
    command = [data, "--path", path, *BATCHES, *SEARCH, *PAIR, *flags, "--task", task, *folder]
    with forgotten():
        found = decode(*command, command=fairseq_commands.generate)
    assert not found.batches
    (said,) = found.left()
    assert "get_normalized_probs" in said
    assert_same(found, stock(*command))


def fails(*arguments: Any, folder: list[str] | None = None) -> str:
    """The error of stock fairseq, which is ours as well.

    Args:
        folder: another user-dir, which our command reads as well.
    """
    ways: list[dict[str, Any]] = [{}, {"command": fairseq_commands.generate} if folder else {}]
    errors = []
    for flags, kwargs in zip((folder or [], folder or USER_DIR), ways, strict=True):
        with forgotten(), pytest.raises(Exception) as caught:
            decode(*arguments, *flags, **kwargs)
        errors.append(f"{type(caught.value).__name__}: {caught.value}")
    assert errors[0] == errors[1]
    return errors[0]


def test_diverse_beam_groups_fail_in_stock(data: Path, model: Path) -> None:
    command = [data, "--path", model, *BATCHES, *SEARCH, *PAIR, "--diverse-beam-groups", "2"]
    assert "IndexError" in fails(*command)


def test_xlm_fails_in_stock(data: Path, model: Path) -> None:
    task = "translation_from_pretrained_xlm"
    error = fails(data, "--path", model, *BATCHES, *SEARCH, *PAIR, "--task", task)
    assert "add_special_symbols" in error


def test_noisy_channel_fails_in_stock(data: Path, model: Path) -> None:
    folder = imported(EXAMPLES / "fast_noisy_channel")
    command = [data, "--path", model, *BATCHES, *SEARCH, *PAIR]
    command += ["--task", "noisy_channel_translation"]
    command += ["--channel-model", model, "--lm-model", model, "--lm-data", data]
    assert "has no attribute 'args'" in fails(*command, folder=folder)
