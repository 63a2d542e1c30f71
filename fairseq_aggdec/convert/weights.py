"""The parameters of a Hugging Face model under fairseq's names, with what fairseq has no option for folded in."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.convert.folder import Folder
from fairseq_aggdec.convert.vocabulary import ABSENT, Vocabulary

EOS = 2  # of every fairseq dictionary
FIRST_POSITION = (
    2  # of a learned table: fairseq counts from behind the index of padding, which is 1
)
# Logit of a symbol that the model does not have: its probability is 0 in every precision.
NEVER = -1e4
SAME_NAME = re.compile(r"(en|de)coder\.(layers\.\d+|layer_norm|layernorm_embedding)\..*")


def parameters(
    folder: Folder, weights: Mapping[str, Tensor], source: Vocabulary, target: Vocabulary
) -> dict[str, Tensor]:
    """The ``model`` entry of a checkpoint. Tables that are one in the model are one tensor here.

    Raises:
        ValueError: a parameter is missing or has another shape.
    """
    tensors = {name.removeprefix("model."): value for name, value in weights.items()}
    made = _layers(folder, tensors)
    for part in ("encoder", "decoder"):
        made[f"{part}.version"] = torch.tensor([3.0])
        if folder.kind != "m2m_100":  # it has fairseq's own sinusoids
            made[f"{part}.embed_positions.weight"] = _positions(folder, tensors, part)
    tables = _tables(folder, tensors)
    for table, side in zip(tables, (source, target, target), strict=True):
        count = len(side.rows) - side.rows.count(ABSENT)
        if len(table) != count:
            raise ValueError(
                f"{folder.path}: its weights have {len(table)} types and its configuration {count}"
            )
    bias = tensors.get("final_logits_bias", torch.zeros(1, len(tables[2]))).flatten()
    return made | _embeddings(folder, tables, bias, source, target, made)


def _layers(folder: Folder, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Layers and norms, which have fairseq's names."""
    import transformers

    with torch.device("meta"):  # shapes only
        made = transformers.AutoModelForSeq2SeqLM.from_config(folder.config).model
    shapes = {n: value.shape for n, value in made.state_dict().items() if SAME_NAME.fullmatch(n)}
    wrong = [
        name
        for name, shape in shapes.items()
        if name not in tensors or tensors[name].shape != shape
    ]
    if wrong:
        raise ValueError(f"the weights in {folder.path} lack {wrong[0]}, or its shape is another")
    return {name: tensors[name] for name in shapes}


def _tables(folder: Folder, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The embeddings of source and target and the output's weights (V, C); shared ones are stored under any name."""
    one = getattr(folder.config, "share_encoder_decoder_embeddings", True)
    tied = folder.config.tie_word_embeddings
    names = ["decoder.embed_tokens", *(["lm_head"] if tied else [])]
    target = _first(folder, tensors, ["shared", "encoder.embed_tokens", *names] if one else names)
    source = target if one else _first(folder, tensors, ["encoder.embed_tokens"])
    return source, target, target if tied else _first(folder, tensors, ["lm_head"])


def _first(folder: Folder, tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    for name in names:
        if f"{name}.weight" in tensors:
            return tensors[f"{name}.weight"]
    raise ValueError(f"the weights in {folder.path} lack {' or '.join(names)}")


def _positions(folder: Folder, tensors: Mapping[str, Tensor], part: str) -> Tensor:
    """The table (positions + 2, C) that fairseq's learned positions read."""
    stored = tensors.get(f"{part}.embed_positions.weight")
    if folder.kind != "marian":
        if stored is None:
            raise ValueError(f"the weights in {folder.path} lack {part}.embed_positions")
        return stored  # its first two rows are not read there either
    if stored is None:
        stored = sinusoids(folder.config.max_position_embeddings, folder.config.d_model)
    return torch.cat([stored.new_zeros(FIRST_POSITION, stored.size(1)), stored])


def sinusoids(count: int, width: int) -> Tensor:
    """Marian's positions (count, width): sines, then cosines, with other wavelengths than fairseq's."""
    place = torch.arange(count, dtype=torch.float64)[:, None]
    angle = place / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.cat([angle.sin(), angle[:, : width // 2].cos()], 1).float()


def _embeddings(
    folder: Folder,
    tables: tuple[Tensor, Tensor, Tensor],
    bias: Tensor,
    source: Vocabulary,
    target: Vocabulary,
    layers: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The three tables in the order of the dictionaries, and the norm before the output where it changes."""
    one = tables[0] is tables[1] and source is target
    inputs = _ordered(tables[1], target.rows)
    encoder = inputs if one else _ordered(tables[0], source.rows)
    output = inputs if tables[2] is tables[1] else _ordered(tables[2], target.rows)
    start = folder.config.decoder_start_token_id
    if start is not None and start != target.rows[EOS] and folder.kind != "mbart":
        # fairseq starts with </s>, and the decoder reads it nowhere else.
        inputs = inputs.clone()
        inputs[EOS] = tables[1][start]
    named = {"encoder.embed_tokens.weight": encoder, "decoder.embed_tokens.weight": inputs}
    bias = _ordered(bias, target.rows, NEVER)
    norms = {}
    if bias.any():
        # The norm whose result the output projection reads.
        last = "decoder.layer_norm"
        if folder.kind not in ("m2m_100", "mbart"):
            last = f"decoder.layers.{folder.config.decoder_layers - 1}.final_layer_norm"
        norm = layers[f"{last}.weight"], layers[f"{last}.bias"]
        output, *changed = folded(output, bias, *norm)
        norms = dict(zip((f"{last}.weight", f"{last}.bias"), changed, strict=True))
    return named | {"decoder.output_projection.weight": output} | norms


def _ordered(table: Tensor, rows: Sequence[int], absent: float = 0.0) -> Tensor:
    """The rows of a table in another order, those that are absent filled with a number."""
    if list(rows) == list(range(len(table))):
        return table
    index = torch.tensor(rows)
    ordered = table[index.clamp(min=0)]
    ordered[index == ABSENT] = absent
    return ordered


def folded(weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
    """An output projection without bias, and the norm before it, that give the same logits as one with bias.

    A normalised vector z sums to zero. With gain 1 and shift 1 the norm gives z + 1, whose sum is its width C, so a
    column of ``bias / C`` everywhere adds the bias. The old gain and shift go into the weights.

    Args:
        weight: (V, C).
        bias: (V,) of the logits.
        gain, shift: (C,) of the norm.

    Returns:
        The new weight, gain and shift.
    """
    scaled = weight.double() * gain.double()
    constant = bias.double() + weight.double() @ shift.double()
    even = scaled - scaled.mean(1, keepdim=True)  # sums to zero, so that the shift adds nothing
    centred = even + constant[:, None] / weight.size(1)
    return centred.to(weight.dtype), torch.ones_like(gain), torch.ones_like(shift)


def shared(state: Mapping[str, Any]) -> dict[str, bool]:
    """fairseq's options about which of the three tables are one."""
    encoder, decoder, output = (
        state[f"{name}.weight"]
        for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
    )
    return {
        "share_decoder_input_output_embed": decoder is output,
        "share_all_embeddings": encoder is decoder is output,
    }
