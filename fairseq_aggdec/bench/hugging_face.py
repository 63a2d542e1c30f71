"""A fairseq Transformer as a model of Hugging Face transformers, with the same weights and the same output.

Marian there has norms behind the layers, M2M100 before them. FSMT, which was made from fairseq, does not know positions
behind the first when it decodes with its cache (transformers 4.57).
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.utils import convert_padding_direction
from torch import Tensor, nn

from fairseq_aggdec.engine.plain.support import decoder_gap, encoder_gap
from fairseq_aggdec.records.results import write_text

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
}


def gap(model: Any) -> str | None:
    """What neither class can represent of a fairseq encoder-decoder model, None if nothing."""
    encoder, decoder = model.encoder, model.decoder
    if found := encoder_gap(encoder) or decoder_gap(decoder):
        return found
    parts = (encoder, decoder)
    if any(type(part.embed_positions) is not SinusoidalPositionalEmbedding for part in parts):
        return "positions that are not sinusoids"
    if any(part.layernorm_embedding is not None for part in parts):
        return "a norm behind the embeddings (--layernorm-embedding)"
    if encoder.embed_tokens.weight.size(1) != decoder.embed_tokens.weight.size(1):
        return "an encoder and a decoder of different widths"
    if decoder.project_in_dim is not None or decoder.project_out_dim is not None:
        return "projections between embeddings and layers"
    if type(decoder.output_projection) is not nn.Linear:
        return "an adaptive softmax"
    if activation(model) is None:
        return "an activation other than ReLU and GELU"
    return _norm_gap(encoder, decoder)


def _norm_gap(encoder: Any, decoder: Any) -> str | None:
    """The same of where norms stand."""
    layers = [*encoder.layers, *decoder.layers]
    if len({layer.normalize_before for layer in layers}) > 1:
        return "norms before the layers of one side only"
    if not layers[0].normalize_before:
        return None
    tables = (encoder.embed_tokens.weight, decoder.output_projection.weight)
    if any(table is not decoder.embed_tokens.weight for table in tables):
        return "norms before the layers and embeddings that are not all shared"
    if encoder.layer_norm is None or decoder.layer_norm is None:
        return "norms before the layers and none behind the last"
    return None


def activation(model: Any) -> str | None:
    """The name of the one activation of all layers, None where there is no such name."""
    sample = torch.linspace(-3, 3, 25)
    layers = [*model.encoder.layers, *model.decoder.layers]
    for name, function in ACTIVATIONS.items():
        if all(torch.equal(layer.activation_fn(sample), function(sample)) for layer in layers):
            return name
    return None


def exported(model: Any, dictionary: Dictionary) -> Any:
    """A transformers model, in fp32 on CPU and in evaluation mode, with a copy of a fairseq model's weights.

    Args:
        model: encoder and decoder of stock layers.
        dictionary: of the target; that of the source has the same special symbols.

    Raises:
        ImportError: transformers is not installed.
        ValueError: names what the classes there cannot represent.
    """
    import transformers

    if found := gap(model):
        raise ValueError(f"Hugging Face transformers has no class for {found}")
    config = _options(model, dictionary)
    if model.decoder.layers[0].normalize_before:
        made: Any = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**config))
    else:
        made = transformers.MarianMTModel(transformers.MarianConfig(**config))
    own = dict(model.named_parameters(remove_duplicate=False))
    own["shared.weight"] = model.decoder.embed_tokens.weight
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if "embed_positions" in name:
                parameter.copy_(_positions(parameter, dictionary.pad()))
            else:
                parameter.copy_(own[name])
        made.lm_head.weight.copy_(model.decoder.output_projection.weight)
    made.generation_config.update(
        do_sample=False, num_beams=1, max_length=None, suppress_tokens=[dictionary.pad()]
    )
    return made.eval()


def _positions(table: Tensor, pad: int) -> Tensor:
    """fairseq's sinusoids for a table (positions, C) whose first row is the first position."""
    count, width = table.shape
    first = pad + 1
    return SinusoidalPositionalEmbedding.get_embedding(first + count, width, pad)[first:]


def _options(model: Any, dictionary: Dictionary) -> dict[str, Any]:
    """Options of the configurations of both classes."""
    encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    source, target = model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight
    types, width = target.shape
    return {
        "vocab_size": len(source),
        "decoder_vocab_size": types,
        "share_encoder_decoder_embeddings": source is target,
        "tie_word_embeddings": model.decoder.output_projection.weight is target,
        "d_model": width,
        "encoder_layers": len(model.encoder.layers),
        "decoder_layers": len(model.decoder.layers),
        "encoder_attention_heads": encoder.self_attn.num_heads,
        "decoder_attention_heads": decoder.self_attn.num_heads,
        "encoder_ffn_dim": encoder.fc1.out_features,
        "decoder_ffn_dim": decoder.fc1.out_features,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "activation_function": activation(model),
        "scale_embedding": math.isclose(model.decoder.embed_scale, math.sqrt(width)),
        "max_position_embeddings": max(model.max_positions()) + 1,
        "bos_token_id": dictionary.bos(),
        "pad_token_id": dictionary.pad(),
        "eos_token_id": dictionary.eos(),
        "decoder_start_token_id": dictionary.eos(),
        "forced_eos_token_id": dictionary.eos(),
    }


def save(model: Any, source: Dictionary, target: Dictionary, folder: Path) -> None:
    """Writes what ``from_pretrained`` of the class reads, and ``vocab-src.json``, ``vocab-tgt.json``: symbol -> id."""
    _write(exported(model, target), folder)
    for name, dictionary in (("src", source), ("tgt", target)):
        text = json.dumps(dictionary.indices, ensure_ascii=False, indent=0)
        write_text(folder / f"vocab-{name}.json", text + "\n")


def _write(made: Any, folder: Path) -> None:
    made._keys_to_ignore_on_save = None  # Marian's own positions are others
    made.save_pretrained(folder)


def in_onnx(made: Any) -> Any:
    """The model of :func:`exported` in ONNX Runtime on CPU, with as many threads as torch has; Optimum exports it.

    Raises:
        ImportError: Optimum or ONNX Runtime is not installed.
    """
    from onnxruntime import SessionOptions
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    options = SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    with tempfile.TemporaryDirectory(prefix="onnx-") as folder:
        _write(made, Path(folder))
        running = ORTModelForSeq2SeqLM.from_pretrained(folder, export=True, session_options=options)
    running.generation_config = made.generation_config
    return running


@torch.inference_mode()
def translate(
    made: Any, tokens: Tensor, limit: int, least: int = 1, beam: int = 1, assistant: Any = None
) -> list[list[int]]:
    """The best hypothesis of each sentence, ``</s>`` at its end.

    Args:
        made: from :func:`exported` or :func:`in_onnx`.
        tokens: (B, S) as fairseq collates sources, padded on either side; Marian counts positions from the left edge.
        limit: tokens of the longest output without ``</s>``.
        least: tokens of the shortest; with an assistant there is no such limit.
        beam: of the search, which ends, as stock's does, when it has as many hypotheses; 1 is greedy decoding.
        assistant: a model of the same dictionary whose drafts are verified (speculative decoding); one sentence only.
    """
    config = made.config
    ranked = {"num_beams": beam, "length_penalty": 1.0, "early_stopping": True} if beam > 1 else {}
    pad = config.pad_token_id
    tokens = convert_padding_direction(tokens, pad, left_to_right=True)
    found = made.generate(
        tokens,
        attention_mask=tokens.ne(pad).long(),
        max_new_tokens=limit + 1,
        min_new_tokens=None if assistant is not None else least,
        assistant_model=assistant,
        **ranked,
    )
    eos = config.eos_token_id
    rows = [row[1:] for row in found.tolist()]  # they begin with the start symbol
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]
