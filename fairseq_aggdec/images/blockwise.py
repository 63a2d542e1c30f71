"""``--arch blockwise_image_transformer``: the image Transformer with block heads (Stern et al., section 7.2)."""

from argparse import ArgumentParser, Namespace
from typing import Any

from fairseq.models import register_model, register_model_architecture

from fairseq_aggdec.images.data import ImageFormat
from fairseq_aggdec.images.transformer import (
    ImageTransformerDecoder,
    add_span_arg,
    check_local_attention,
    image_architecture,
    order_intensities,
    place_positions,
)
from fairseq_aggdec.models.blockwise_transformer import (
    BlockwiseTransformerModel,
    HeadedDecoder,
    set_head_defaults,
)


class BlockwiseImageDecoder(HeadedDecoder, ImageTransformerDecoder):
    """A decoder with local attention and block heads."""


@register_model("blockwise_image_transformer")
class BlockwiseImageTransformerModel(BlockwiseTransformerModel):
    """An image Transformer with block heads, from scratch or on a trained ``image_transformer``."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        BlockwiseTransformerModel.add_args(parser)
        add_span_arg(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "BlockwiseImageTransformerModel":
        blockwise_image_architecture(args)
        check_local_attention(args)
        fresh = not args.base_checkpoint
        model: BlockwiseImageTransformerModel = super().build_model(args, task)
        form = getattr(task, "form", None)
        if fresh and isinstance(form, ImageFormat):
            place_positions(model, form)
            order_intensities(model)
        return model

    @classmethod
    def build_decoder(
        cls, args: Namespace, tgt_dict: Any, embed_tokens: Any
    ) -> BlockwiseImageDecoder:
        decoder = BlockwiseImageDecoder(args, tgt_dict, embed_tokens)
        decoder.add_heads(args)
        return decoder


@register_model_architecture("blockwise_image_transformer", "blockwise_image_transformer")
def blockwise_image_architecture(args: Namespace) -> None:
    """Small, as ``image_transformer``."""
    set_head_defaults(args)
    image_architecture(args)
