"""Converting: the parts, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from torch.nn.functional import layer_norm

import fairseq_aggdec
from fairseq_aggdec.cli import doctor
from fairseq_aggdec.cli.convert import TO_PIECES
from fairseq_aggdec.convert import folder as reading
from fairseq_aggdec.convert.checkpoint import convert
from fairseq_aggdec.convert.weights import folded, sinusoids
from fairseq_aggdec.options.options import Options
from fairseq_aggdec.stored.loading import CheckpointError, check_checkpoint
from tests import hugging_face_folders as folders

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_bias_on_logits_goes_into_weights_and_norm(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    weight, x = torch.randn(50, 16, dtype=dtype), torch.randn(9, 16, dtype=dtype)
    bias, gain, shift = (torch.randn(size, dtype=dtype) for size in (50, 16, 16))
    gain[3] = 0  # no case for itself
    bias[7] = -1e4
    expected = layer_norm(x, (16,), gain, shift) @ weight.T + bias
    new, *norm = folded(weight, bias, gain, shift)
    error = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(layer_norm(x, (16,), *norm) @ new.T, expected, atol=error, rtol=1e-6)


@pytest.mark.parametrize("width", [6, 8])
def test_positions_are_those_of_marian(width: int) -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    table = MarianSinusoidalPositionalEmbedding(20, width)
    table._init_weight()
    torch.testing.assert_close(sinusoids(20, width), table.weight.data, atol=1e-6, rtol=0)


def test_a_piece_that_looks_like_a_language_stays_a_piece(tmp_path: Path) -> None:
    """M2M100 has the piece `en` and the language `__en__`; rows without a token get a name too."""
    folders.make("m2m_100", tmp_path / "hf")
    vocabulary = tmp_path / "hf" / "vocab.json"
    tokens = json.loads(vocabulary.read_text())
    tokens["en"] = tokens.pop(next(token for token, row in tokens.items() if row == 9))
    vocabulary.write_text(json.dumps(tokens))
    convert(tmp_path / "hf", tmp_path / "out", "en", "fr")
    dictionary = Dictionary.load(str(tmp_path / "out" / "dict.txt"))
    assert dictionary.index("en") == 9 and dictionary.index("__en__") > 60
    assert dictionary.symbols[-1].startswith("madeupword")
    assert (tmp_path / "out" / "languages.txt").read_text().split()[:2] == ["af", "am"]


def test_the_checkpoint_holds_data_only_and_shared_tables_once(tmp_path: Path) -> None:
    for kind in ("m2m_100", "marian"):
        other, _ = folders.make(kind, tmp_path / kind)
        convert(tmp_path / kind, tmp_path / f"{kind}-out", *folders.PAIRS.get(kind, (None, None)))
        state: Any = check_checkpoint(str(tmp_path / f"{kind}-out" / "model.pt"))
        tables = [name for name in state["model"] if "embed_tokens" in name or "output_p" in name]
        different = {state["model"][name].data_ptr() for name in tables}
        assert (len(tables), len(different)) == (3, 1 if kind == "m2m_100" else 3)
        assert state["cfg"]["model"]["share_all_embeddings"] == (kind == "m2m_100")
        assert not other.training


@pytest.mark.parametrize("suffix", ["", "</s>"])
def test_text_becomes_pieces_with_its_code_whole(suffix: str, tmp_path: Path) -> None:
    """The Python command that is printed where ``--bpe`` does not do."""
    made = folders.tokenizer("marian", tmp_path)
    arguments = [str(tmp_path / "source.spm"), *suffix.split()]
    found = subprocess.run(
        [sys.executable, "-c", TO_PIECES, *arguments],
        input=f">>fra<< {folders.LINES[0]}\n{folders.LINES[1]}\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    expected = [made.tokenize(f">>fra<< {folders.LINES[0]}"), made.tokenize(folders.LINES[1])]
    assert [line.split() for line in found.stdout.splitlines()] == [
        [*row, *suffix.split()] for row in expected
    ]


def test_a_model_of_several_targets_is_told_how_to_name_one(tmp_path: Path) -> None:
    _, made = folders.make("marian", tmp_path / "hf")
    tokens = made.encoder | {">>fra<<": made.encoder.pop([*made.encoder][5])}
    (tmp_path / "hf" / "vocab.json").write_text(json.dumps(tokens))
    found = convert(tmp_path / "hf", tmp_path / "out", None, "mul")
    assert found.suffix == "" and any(">>fra<< Hello" in note for note in found.notes)
    assert Dictionary.load(str(tmp_path / "out" / "dict.mul.txt")).index(">>fra<<") > 3


def as_bin(folder: Path) -> None:
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def as_shards(folder: Path) -> None:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").exists()


@pytest.mark.parametrize("stored", [as_bin, as_shards])
def test_other_ways_to_store_weights(stored: Callable[[Path], None], tmp_path: Path) -> None:
    folders.make("nllb", tmp_path)
    expected = reading.weights(tmp_path)
    stored(tmp_path)
    found = reading.weights(tmp_path)
    assert found.keys() >= expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_half_precision_stays(tmp_path: Path) -> None:
    model, _ = folders.make("marian", tmp_path / "hf")
    model.half().save_pretrained(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "out", None, None)
    state: Any = check_checkpoint(str(tmp_path / "out" / "model.pt"))
    kinds = {value.dtype for name, value in state["model"].items() if "version" not in name}
    assert torch.float16 in kinds
    assert all(value.isfinite().all() for value in state["model"].values())


def test_the_authors_search_is_kept(tmp_path: Path) -> None:
    """Options of bart-large-cnn; fairseq counts neither the start nor the end of a text."""
    folders.make("bart", tmp_path / "hf")
    search = {"num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 3}
    lengths = {"max_length": 142, "min_length": 56}
    (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(search | lengths))
    made = convert(tmp_path / "hf", tmp_path / "out", None, None)
    expected = {"beam": 4, "max_len_b": 140, "min_len": 55, "lenpen": 2.0}
    assert made.generation == expected | {"no_repeat_ngram_size": 3}


def edit(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def save(folder: Path, **tensors: torch.Tensor) -> None:
    from safetensors.torch import load_file, save_file

    save_file(load_file(folder / "model.safetensors") | tensors, folder / "model.safetensors")


def drop(folder: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    kept = load_file(folder / "model.safetensors")
    del kept[name]
    save_file(kept, folder / "model.safetensors")


def with_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.ones(1), "code": folder}, folder / "pytorch_model.bin")


def search(folder: Path, text: str) -> None:
    (folder / "generation_config.json").write_text(text)


INT8 = torch.ones(4, dtype=torch.int8)
WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (lambda f: [p.unlink() for p in f.iterdir()] and f.rmdir(), "hf$"),
    "no config": (lambda f: (f / "config.json").unlink(), "it has no config.json"),
    "damaged config": (lambda f: (f / "config.json").write_text("["), "config.json is damaged"),
    "other kind": (lambda f: edit(f, model_type="t5"), "model_type 't5' cannot be converted"),
    "quantised": (lambda f: edit(f, quantization_config={"bits": 4}), "quantised weights"),
    "int8": (lambda f: save(f, **{"model.shared.weight": INT8}), "quantised weights"),
    "activation": (lambda f: edit(f, activation_function="mish"), "activation 'mish'"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "holds no weights"),
    "damaged": (lambda f: (f / "model.safetensors").write_bytes(b"x" * 99), "cannot be read"),
    "code": (with_code, "would run as code"),
    "no pieces": (
        lambda f: (f / "sentencepiece.bpe.model").unlink(),
        "tokenizer .* cannot be read",
    ),
    "NaN": (
        lambda f: save(f, **{"model.encoder.layers.0.fc1.bias": torch.full((64,), torch.nan)}),
        "fc1.bias holds numbers that are NaN",
    ),
    "search": (lambda f: search(f, "["), "generation_config.json is damaged"),
    "beam": (lambda f: search(f, '{"num_beams": "x"}'), "num_beams 'x', which must be a whole"),
    "no beam": (lambda f: search(f, '{"num_beams": -1}'), "num_beams -1, which must be .* least 1"),
    "half a beam": (lambda f: search(f, '{"num_beams": 2.5}'), "num_beams 2.5"),
    "a switch": (lambda f: search(f, '{"num_beams": true}'), "num_beams True"),
    "no length": (lambda f: search(f, '{"max_length": 1}'), "max_length 1, .* of at least 2"),
    "lengths": (
        lambda f: search(f, '{"max_length": 9, "min_length": 50}'),
        "min_length 50 above max_length 9",
    ),
    "penalty": (lambda f: search(f, '{"length_penalty": NaN}'), "length_penalty nan, .* finite"),
    "n-grams": (lambda f: search(f, '{"no_repeat_ngram_size": -2}'), "no_repeat_ngram_size -2"),
    "giant vocabulary": (lambda f: edit(f, vocab_size=10**12), "has vocab_size 1000000000000"),
    "giant width": (lambda f: edit(f, d_model=10**12), "has d_model 1000000000000"),
    "giant depth": (lambda f: edit(f, encoder_layers=10**6), "has encoder_layers 1000000"),
    "no layers": (lambda f: edit(f, decoder_layers=-1), "has decoder_layers -1"),
    "no heads": (lambda f: edit(f, encoder_attention_heads=0), "has encoder_attention_heads 0"),
    "heads in words": (lambda f: edit(f, decoder_attention_heads="x"), "attention_heads"),
    "odd heads": (lambda f: edit(f, encoder_attention_heads=5), "5, which do not divide"),
    "a switch for layers": (lambda f: edit(f, encoder_layers=True), "encoder_layers"),
    "giant inner width": (lambda f: edit(f, decoder_ffn_dim=10**12), "has decoder_ffn_dim"),
    "an activation of parts": (lambda f: edit(f, activation_function={"a": 1}), "activation"),
    "a start that is no type": (
        lambda f: edit(f, decoder_start_token_id=10**6),
        "decoder_start_token_id 1000000, which is none of",
    ),
    "a million positions": (lambda f: edit(f, max_position_embeddings=10**6), "max_position_emb"),
    "many positions": (lambda f: edit(f, max_position_embeddings=10**10), "max_position_emb"),
    "no layer": (
        lambda f: drop(f, "model.encoder.layers.1.fc1.bias"),
        "lack encoder.layers.1.fc1.bias",
    ),
    "other layer": (
        lambda f: save(f, **{"model.decoder.layers.0.fc2.bias": torch.ones(3)}),
        "decoder.layers.0.fc2.bias, or its shape",
    ),
    "no table": (lambda f: drop(f, "model.shared.weight"), "lack shared"),
    "other size": (lambda f: save(f, **{"model.shared.weight": torch.ones(9, 32)}), "have 9 types"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_cannot_be_converted_gets_a_sentence(fault: str, tmp_path: Path) -> None:
    folders.make("mbart50", tmp_path / "hf")
    spoil, says = WRONG[fault]
    spoil(tmp_path / "hf")
    with pytest.raises((CheckpointError, FileNotFoundError, ValueError), match=says):
        convert(tmp_path / "hf", tmp_path / "out", "en_XX", "fr_XX")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pair", [(None, "fr_XX"), ("en_XX", "xx"), ("en_XX", "en_XX")])
def test_languages_must_be_the_models(pair: tuple[str | None, str], tmp_path: Path) -> None:
    folders.make("mbart50", tmp_path / "hf")
    with pytest.raises(
        ValueError, match=r"--target-lang xx: the model|--source-lang and --target-lang"
    ):
        convert(tmp_path / "hf", tmp_path / "out", *pair)


@pytest.mark.parametrize("name", ["../../x", "/x", "a\nb", "", ".."])
def test_a_language_is_no_path(name: str, tmp_path: Path) -> None:
    """A downloaded tokenizer names the languages of Marian, and they name files."""
    folders.make("marian", tmp_path / "hf")
    path = tmp_path / "hf" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"source_lang": name}))
    with pytest.raises(ValueError, match="is no name of a language"):
        convert(tmp_path / "hf", tmp_path / "deep" / "out", None, None)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["hf"]


@pytest.mark.parametrize("kind", ["marian", "m2m_100"])
def test_two_tokens_of_one_row_are_refused(kind: str, tmp_path: Path) -> None:
    """One of them would silently be ``<unk>``."""
    folders.make(kind, tmp_path / "hf")
    path = tmp_path / "hf" / "vocab.json"
    tokens = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(tokens | {"another": 9}), encoding="utf-8")
    with pytest.raises(ValueError, match="and 'another' have one row, 9"):
        convert(tmp_path / "hf", tmp_path / "out", *folders.PAIRS.get(kind, (None, None)))


def test_python_decodes_with_the_search_of_the_authors(tmp_path: Path) -> None:
    """As the command that is printed; what a caller says counts more."""
    folders.make("m2m_100", tmp_path / "hf")
    given = {"max_length": 12, "length_penalty": 0.5, "no_repeat_ngram_size": 3, "num_beams": 2}
    search(tmp_path / "hf", json.dumps(given))
    convert(tmp_path / "hf", tmp_path / "out", "en", "fr")
    path = tmp_path / "out" / "model.pt"
    model = fairseq_aggdec.from_pretrained(path, tmp_path / "out", device="cpu")
    options = Options.of(model.generator)
    found = options.max_len_b, options.len_penalty, options.no_repeat_ngram_size, options.beam_size
    assert found == (10, 0.5, 3, 5)
    model = fairseq_aggdec.from_pretrained(path, tmp_path / "out", device="cpu", max_len_b=7)
    assert Options.of(model.generator).max_len_b == 7
    doctor.main([str(tmp_path / "out"), "--path", str(path)])
