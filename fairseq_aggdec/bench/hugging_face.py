"""A fairseq Transformer as a model of Hugging Face transformers, with the same weights and the same output.

Marian there has norms behind the layers, M2M100 before them. FSMT, which was made from fairseq, does not know positions
behind the first when it decodes with its cache (transformers 4.57).
"""

import copy
import math
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.utils import convert_padding_direction
from torch import Tensor, nn


def exported(model: Any, dictionary: Dictionary) -> Any:
    """A transformers model, in fp32 on CPU and in evaluation mode, with a copy of a fairseq model's weights.

    Args:
        model: encoder and decoder.
        dictionary: of the target; that of the source has the same special symbols.

    Raises:
        ImportError: transformers is not installed.
        ValueError: the classes there cannot represent the model.
    """
    try:
        made = _filled(model, dictionary)
        if _writes_alike(model, made):
            return made
    except (AttributeError, KeyError, RuntimeError):
        pass  # it has other parts than the classes there
    raise ValueError(
        "Hugging Face transformers has no class for this model: with its weights they write other logits. They have "
        "plain layers, sinusoidal positions, ReLU or GELU, sides of one width, no norm behind the embeddings, and with "
        "norms before the layers all embeddings shared"
    )


def _writes_alike(model: Any, made: Any) -> bool:
    """Tells whether two models, fairseq's and its copy, have the same logits but for rounding."""
    exact = copy.deepcopy(model).float().cpu()
    exact.eval()
    first = made.config.eos_token_id
    generator = torch.Generator().manual_seed(0)
    source, target = (
        torch.randint(first + 1, len(side.embed_tokens.weight), (1, 12), generator=generator)
        for side in (exact.encoder, exact.decoder)
    )
    target[0, 0] = first
    with torch.no_grad():
        expected = exact(source, torch.tensor([12]), target)[0]
        logits = made(input_ids=source, decoder_input_ids=target).logits
    return torch.allclose(logits, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def _filled(model: Any, dictionary: Dictionary) -> Any:
    """The class that may fit, with a model's weights."""
    import transformers

    config = _options(model, dictionary)
    if model.decoder.layers[0].normalize_before:
        made: Any = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**config))
    else:
        made = transformers.MarianMTModel(transformers.MarianConfig(**config))
    made._keys_to_ignore_on_save = None  # Marian computes positions of its own when it is loaded
    weights = dict(model.named_parameters(remove_duplicate=False))
    weights["shared.weight"] = model.decoder.embed_tokens.weight
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if "embed_positions" in name:
                parameter.copy_(_positions(parameter, dictionary.pad()))
            else:
                parameter.copy_(weights[name])
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
    sample = torch.linspace(-3, 3, 25)
    activated = decoder.activation_fn(sample)
    activation = "gelu" if torch.equal(activated, nn.functional.gelu(sample)) else "relu"
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
        "activation_function": activation,
        "scale_embedding": math.isclose(model.decoder.embed_scale, math.sqrt(width)),
        "max_position_embeddings": max(model.max_positions()) + 1,
        "bos_token_id": dictionary.bos(),
        "pad_token_id": dictionary.pad(),
        "eos_token_id": dictionary.eos(),
        "decoder_start_token_id": dictionary.eos(),
        "forced_eos_token_id": dictionary.eos(),
    }


@torch.inference_mode()
def translate(
    made: Any, tokens: Tensor, limit: int, least: int = 1, beam: int = 1
) -> list[list[int]]:
    """The best hypothesis of each sentence, ``</s>`` at its end.

    Args:
        made: from :func:`exported`.
        tokens: (B, S) as fairseq collates sources, padded on either side; Marian counts positions from the left edge.
        limit: tokens of the longest output without ``</s>``.
        least: tokens of the shortest.
        beam: of the search, which ends, as stock's does, when it has as many hypotheses; 1 is greedy decoding.
    """
    config = made.config
    ranked = {"num_beams": beam, "length_penalty": 1.0, "early_stopping": True} if beam > 1 else {}
    pad = config.pad_token_id
    tokens = convert_padding_direction(tokens, pad, left_to_right=True)
    outputs = made.generate(
        tokens,
        attention_mask=tokens.ne(pad).long(),
        max_new_tokens=limit + 1,
        min_new_tokens=least,
        **ranked,
    )
    eos = config.eos_token_id
    rows = [row[1:] for row in outputs.tolist()]  # they begin with the start symbol
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]
