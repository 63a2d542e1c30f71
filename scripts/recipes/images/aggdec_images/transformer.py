"""``--arch image_transformer`` and, with block heads, ``blockwise_image_transformer``: a Transformer whose decoder
attends to a band of the last positions.

Stern et al. (section 7.2) decode images with an Image Transformer (Parmar et al. 2018) with 1-D local attention. There
the sequence is cut into blocks, and a position attends to its own block and the one before. Here the band slides: every
position attends to itself and the ``--attention-span`` positions before it, in every layer. It then sees equally far
wherever it stands, fairseq's incremental state holds ``--attention-span`` keys, and a cached decoder may begin its
window anywhere. The encoder and all the rest are stock.

Two kinds of embeddings begin as sines and cosines instead of noise, and are learned from there. Those of positions: the
place in the image, from 0 to 1 on either axis for both images, so that the decoder finds the part of the input that it
is painting. Those of intensities: the brightness, so that near intensities are alike, to read and to predict.
"""

import math
from argparse import ArgumentParser, Namespace
from typing import Any, Dict, Optional

import torch
import torch.nn.functional as F
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoderBase, TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from aggdec_images.data import INTENSITIES, ImageFormat, intensity_offset
from fairseq_aggdec.models.blockwise_transformer import (
    BlockwiseTransformerModel,
    HeadedDecoder,
    HeadOptions,
)
from fairseq_aggdec.models.options import fill_in, set_defaults, set_sizes

State = Dict[str, Optional[Tensor]]


class LocalAttention(MultiheadAttention):
    """Self-attention whose incremental state forgets what no later position will see.

    Without an incremental state it is stock attention: the decoder's mask holds the band.
    """

    def __init__(self, *args: Any, span: int, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.span = span

    def _set_input_buffer(
        self, incremental_state: Optional[Dict[str, State]], buffer: State
    ) -> Any:
        kept = {
            name: value if value is None else latest(value, self.span)
            for name, value in buffer.items()
        }
        return super()._set_input_buffer(incremental_state, kept)


def latest(cached: Tensor, count: int) -> Tensor:
    """The last ``count`` positions of cached keys or values (B, H, T, D), or of their padding mask (B, T)."""
    return cached[:, :, -count:] if cached.dim() == 4 else cached[:, -count:]


class ImageTransformerDecoder(TransformerDecoderBase):
    """A stock Transformer decoder whose self-attention sees a band.

    Attributes:
        attention_span: how many positions before itself a position attends to.
    """

    def __init__(self, cfg: Any, *args: Any, **kwargs: Any):
        self.attention_span = int(cfg.attention_span)
        super().__init__(cfg, *args, **kwargs)
        self._band = torch.empty(0, 0)

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> Any:
        layer = super().build_decoder_layer(cfg, no_encoder_attn)
        layer.self_attn = LocalAttention(
            layer.embed_dim,
            cfg.decoder.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=True,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
            span=self.attention_span,
        )
        return layer

    def buffered_future_mask(self, tensor: Tensor) -> Tensor:
        """Additive mask (T, T) for ``tensor`` (T, B, C): -inf for keys right of a position or left of its band."""
        length = tensor.size(0)
        band = self._band
        if band.size(0) < length or band.dtype != tensor.dtype or band.device != tensor.device:
            causal = super().buffered_future_mask(tensor)
            passed = torch.ones_like(causal, dtype=torch.bool).tril(-self.attention_span - 1)
            self._band = band = causal.masked_fill(passed, -torch.inf)
        return band[:length, :length]


class ImageModel:
    """Methods that a model of images adds to a Transformer: mixed in before its class."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        super().add_args(parser)  # type: ignore[misc]
        seen = "positions before itself that a position of the decoder attends to"
        seen += " (default: 64, of the paper's size 255)"
        parser.add_argument("--attention-span", type=int, metavar="N", help=seen)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> Any:
        image_architecture(args)
        check_local_attention(args)
        fresh = not getattr(args, "base_checkpoint", None)
        model = super().build_model(args, task)  # type: ignore[misc]
        form = getattr(task, "form", None)
        if fresh and isinstance(form, ImageFormat):
            place_positions(model, form)
            order_intensities(model)
        return model


@register_model("image_transformer")
class ImageTransformerModel(ImageModel, TransformerModel):
    """An encoder-decoder Transformer with 1-D local attention in the decoder."""

    @classmethod
    def build_decoder(
        cls, args: Namespace, tgt_dict: Any, embed_tokens: Any
    ) -> ImageTransformerDecoder:
        return ImageTransformerDecoder(
            args, tgt_dict, embed_tokens, no_encoder_attn=args.no_cross_attention
        )


class BlockwiseImageDecoder(HeadedDecoder, ImageTransformerDecoder):
    """A decoder with local attention and block heads."""


@register_model("blockwise_image_transformer")
class BlockwiseImageTransformerModel(ImageModel, BlockwiseTransformerModel):
    """An image Transformer with block heads (Stern et al., section 7.2), from scratch or on a trained
    ``image_transformer``."""

    decoder_class = BlockwiseImageDecoder


def place_positions(model: TransformerModel, form: ImageFormat) -> None:
    """Sets the learned position embeddings to the places of intensities (in place).

    A position of the encoder stands for the intensity that it reads, one of the decoder for the intensity that it
    predicts; that of ``</s>`` is zero.
    """
    finest = form.high * form.channels
    for part, side in ((model.encoder, form.low), (model.decoder, form.high)):
        table: Any = part.embed_positions
        if isinstance(table, nn.Embedding):
            places = image_places(side, form.channels, finest, table.embedding_dim)
            first = part.padding_idx + 1
            with torch.no_grad():
                table.weight[first : first + len(places)] = places
                table.weight[first + len(places)] = 0


def order_intensities(model: TransformerModel) -> None:
    """Sets the embeddings of intensities to their brightness (in place), each as long as a random one: 1."""
    for part in (model.encoder, model.decoder):
        table = part.embed_tokens.weight
        first, dim = intensity_offset(part.dictionary), table.size(1)
        brightness = waves(centres(INTENSITIES).unsqueeze(1), INTENSITIES, dim)
        with torch.no_grad():
            table[first : first + INTENSITIES] = F.normalize(brightness)


def image_places(side: int, channels: int, finest: int, dim: int) -> Tensor:
    """Positions of the intensities of an image: (side * side * channels, dim) in raster-scan order.

    Args:
        side: pixels of a row and of a column.
        channels: intensities per pixel, places of their own in the row.
        finest, dim: as of :func:`waves`.
    """
    return waves(torch.cartesian_prod(centres(side), centres(side * channels)), finest, dim)


def centres(count: int) -> Tensor:
    """The middles of ``count`` equal parts of 0 to 1."""
    return (torch.arange(count) + 0.5) / count


def waves(places: Tensor, finest: int, dim: int) -> Tensor:
    """Places (N, A) on A axes from 0 to 1, as sines and cosines of growing frequency: (N, dim).

    Args:
        finest: half periods of the highest frequency along an axis; the lowest has one.
        dim: its A-th part for each axis, half of it sines; a remainder is zero.
    """
    frequencies = math.pi * finest ** torch.linspace(0, 1, dim // (2 * places.size(1)))
    angles = places.unsqueeze(-1) * frequencies  # (N, A, dim // 2A)
    found = torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return F.pad(found, (0, dim - found.size(1)))


def check_local_attention(args: Namespace) -> None:
    """Raises ``ValueError`` with one sentence for options that local attention cannot honour."""
    if args.attention_span < 1:
        raise ValueError(f"--attention-span {args.attention_span}: a position sees at least one")
    for option in ("cross_self_attention", "decoder_xformers_att_config"):
        if getattr(args, option, None):
            raise ValueError(f"--{option.replace('_', '-')} does not go with --attention-span")


# Sizes; an option that is given wins.


@register_model_architecture("image_transformer", "image_transformer")
def image_architecture(args: Namespace) -> None:
    """Small: 4x4 to 16x16 grey images on two CPU cores. A position sees the last four rows of such an image."""
    _architecture(args, 64, (2, 4), 128, 512, 4, normalize_before=True)


@register_model_architecture("blockwise_image_transformer", "blockwise_image_transformer")
def blockwise_image_architecture(args: Namespace) -> None:
    """Small, as ``image_transformer``."""
    fill_in(args, HeadOptions)
    image_architecture(args)


@register_model_architecture("image_transformer", "image_transformer_b3")
def image_architecture_b3(args: Namespace) -> None:
    """The paper's size (Tensor2Tensor's ``img2img_transformer_b3``): its blocks of 128 see up to 255 positions back."""
    _architecture(args, 255, (4, 8), 512, 2048, 8)


def _architecture(
    args: Namespace, span: int, layers: tuple[int, int], *sizes: int, normalize_before: bool = False
) -> None:
    """Positions mean places of an image, and both sides speak of intensities; ``sizes`` as of :func:`set_sizes`."""
    set_defaults(args, attention_span=span, share_all_embeddings=True)
    set_sizes(args, layers, *sizes)
    for side in ("encoder", "decoder"):
        own = {"normalize_before": normalize_before, "learned_pos": True}
        set_defaults(args, **{f"{side}_{name}": value for name, value in own.items()})
    base_architecture(args)
