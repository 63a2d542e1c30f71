"""``--arch lattice_transformer``: a Transformer whose shallow decoder scores the edges of a candidate lattice.

The scorer of Deng and Rush (2021), section 3: log P(y_t | y_{t-1}, t, x) for all candidates of position t - 1 at once.
It is a stock decoder, one layer deep unless told otherwise, whose self-attention is cut: at decoding a position sees
itself only, and what it has read is the token before it. In training the order is drawn from bigrams to trigrams, as in
a Markov transformer (Deng and Rush, 2020): positions are parted into blocks of one or two, and see their block only.
Blocks cut the history after the same token in every layer, so that the order does not grow with the depth.
"""

import random
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture
from torch import Tensor, nn

from fairseq_aggdec.models.base_checkpoint import take_layers
from fairseq_aggdec.models.options import add_flags, fill_in, option, set_defaults

ORDERS = {"2": (2,), "3": (3,), "mixed": (2, 3)}


class MarkovDecoder(TransformerDecoder):
    """A stock Transformer decoder in which position t sees the last positions of its block only.

    Attributes:
        order: of the Markov chain: a token depends on at most ``order - 1`` tokens before it. Blocks have
            ``order - 1`` positions.
        offset: where in a block the sentence begins.
    """

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding):
        super().__init__(args, dictionary, embed_tokens, no_encoder_attn=args.no_cross_attention)
        self.orders = ORDERS[args.markov_order]
        self.order, self.offset = 2, 0

    def draw_order(self, update: int) -> None:
        """The order and offset of an update, the same on every worker."""
        draw = random.Random(update)
        self.order = draw.choice(self.orders)
        self.offset = draw.randrange(self.order - 1)

    def buffered_future_mask(self, tensor: Tensor) -> Tensor:
        """(T, T) additive mask for x of shape (T, B, C); bigrams outside training."""
        order, offset = (self.order, self.offset) if self.training else (2, 0)
        position = torch.arange(tensor.size(0), device=tensor.device)
        block = (position + offset) // (order - 1)
        seen = (block.unsqueeze(1) == block) & (position.unsqueeze(1) >= position)
        return torch.zeros_like(seen, dtype=tensor.dtype).masked_fill_(~seen, -torch.inf)

    def forward(self, prev_output_tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Computes what stock does.

        Raises:
            ValueError: a search that decodes word by word asked.
        """
        incremental = args[1] if len(args) > 1 else kwargs.get("incremental_state")
        if incremental is not None:
            raise ValueError("--arch lattice_transformer decodes with --decoding lattice only")
        return super().forward(prev_output_tokens, *args, **kwargs)


@dataclass
class ScorerOptions(FairseqDataclass):
    """Options that a scorer has beside the options of a Transformer."""

    markov_order: ChoiceEnum(list(ORDERS)) = option(  # type: ignore[valid-type]
        "mixed",
        "tokens that a position may depend on in training, itself counted: 2 (bigrams, as in decoding), 3, or drawn "
        "for each update (default: mixed)",
    )
    base_checkpoint: Optional[str] = option(
        None,
        "begin as this Transformer, with its sizes; of its decoder, the first --decoder-layers layers, or each several "
        "times where it has fewer",
        "FILE",
    )


@register_model("lattice_transformer")
class LatticeTransformerModel(TransformerModel):
    """Trained as any translation model, with a stock criterion; decoded with ``--decoding lattice``."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        add_flags(parser, ScorerOptions)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "LatticeTransformerModel":
        base = take_layers(args, default=1)
        lattice_architecture(args)
        check_depth(args)
        model: LatticeTransformerModel = super().build_model(args, task)
        if base is not None:
            base.load(model)
        return model

    @classmethod
    def build_decoder(cls, args: Namespace, tgt_dict: Any, embed_tokens: Any) -> MarkovDecoder:
        return MarkovDecoder(args, tgt_dict, embed_tokens)

    def set_num_updates(self, num_updates: int) -> None:
        super().set_num_updates(num_updates)
        self.decoder.draw_order(num_updates)


def check_depth(args: Namespace) -> None:
    """Raises ``ValueError`` with one sentence that names the option which cannot be."""
    if int(args.decoder_layers) < 1:
        raise ValueError(f"--decoder-layers {args.decoder_layers}: a scorer has at least one layer")
    if args.no_cross_attention:
        raise ValueError("--no-cross-attention: a scorer reads the source")


@register_model_architecture("lattice_transformer", "lattice_transformer")
def lattice_architecture(args: Namespace) -> None:
    """Base size with a scorer of one layer, unless told otherwise."""
    fill_in(args, ScorerOptions)
    set_defaults(args, decoder_layers=1)
    base_architecture(args)
