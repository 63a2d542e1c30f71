"""``--arch interleaved_transformer``: a Transformer whose decoder writes from several places at once.

The interleaved bidirectional decoder of Zhang, Titov and Sennrich (2020) and its relatives, by h ``--directions``
and c ``--words-per-direction``: IBDecoder (2, 1), with semi-autoregression (2, 2) and up, IMDecoder (h even, 1),
vanilla semi-autoregression (1, c), the ordinary Transformer (1, 1). Only the order of the words, their positions,
the mask and the shift of the input differ (:mod:`fairseq_aggdec.data.interleaving`).

The model takes and gives sentences in reading order, so that stock criterions, scorers and data need no change.
Inside, its decoder sees *slots*: :meth:`InterleavedTransformerModel.forward` lays the words out, runs the decoder
and puts its features back before the vocabulary projection. Decoding (``--decoding interleaved``) calls the
decoder on slots.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from fairseq_aggdec.data.interleaving import (
    Geometry,
    hidden_slots,
    inverse,
    pick,
    shifted_slots,
    slot_positions,
    writing_order,
)
from fairseq_aggdec.models.base_checkpoint import take_layers
from fairseq_aggdec.models.options import add_flags, fill_in, option, set_defaults

ABLATIONS = {
    "vanilla_mask": "attention inside a step is causal, as in the ordinary Transformer",
    "vanilla_positions": "positions are those of the ordinary Transformer",
    "middle_to_side": "every direction begins in the middle and ends at the side",
    "independent_directions": "no attention from one direction to another",
    "one_by_one": "one word per step in the order of the directions: the autoregressive model that "
    "scripts/recipes/interleaved/pmi.py compares with",
}


class SlotPositions(nn.Module):
    """Position embeddings of slots (Eq. 5, 7 or 10): sinusoids, and a trained embedding per direction for h > 2.

    Takes the place of fairseq's position module in the decoder.

    Args:
        dim: C.
        first: what is added to positions that begin at 0 (fairseq has the first word at padding index + 1).
    """

    max_positions = int(1e5)  # read by the decoder; sinusoids have no end

    def __init__(self, dim: int, first: int, geometry: Geometry):
        super().__init__()
        self.dim, self.first, self.geometry = dim, first, geometry
        self.waves: Tensor
        self.register_buffer("waves", torch.empty(0, dim), persistent=False)
        self.directions: nn.Embedding | None = None
        if slot_positions(1, geometry)[1] is not None:
            self.directions = nn.Embedding(geometry.directions, dim)
            nn.init.normal_(self.directions.weight, mean=0, std=dim**-0.5)

    def forward(self, slots: Tensor, incremental_state: Any = None) -> Tensor:
        """(B, W) -> (B, W, C); only the width counts, since slots are never padded on the left.

        Raises:
            ValueError: a search that decodes word by word from the left asked.
        """
        if incremental_state is not None:
            raise ValueError(
                f"a model with --directions {self.geometry.directions} --words-per-direction "
                f"{self.geometry.words_per_direction} decodes with --decoding interleaved only"
            )
        rows, width = slots.shape
        if self.waves.size(0) < width:
            self.waves = self._waves(max(256, 2 * width)).to(self.waves)
        table = self.waves[:width]
        if self.directions is not None:
            turns = -(-width // self.geometry.directions)
            table = table + self.directions.weight.repeat(turns, 1)[:width]
        return table.expand(rows, width, self.dim)

    def _waves(self, count: int) -> Tensor:
        """(``count``, C): fairseq's sinusoids of the slots' positions; of -p, the sine changes its sign."""
        positions, _ = slot_positions(count, self.geometry)
        if int(positions.min()) == 0:
            positions = positions + self.first
        half = self.dim // 2
        table = SinusoidalPositionalEmbedding.get_embedding(int(positions.max()) + 1, self.dim)
        waves = table[positions.abs()]
        waves[:, :half] *= positions.sign().unsqueeze(1)
        return waves


class InterleavedDecoder(TransformerDecoder):
    """A stock Transformer decoder over slots: a relaxed mask and positions of its own.

    Its input and output are in writing order; the width of a full input is a multiple of ``geometry.step``.
    """

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding, geometry: Geometry):
        super().__init__(args, dictionary, embed_tokens, no_encoder_attn=args.no_cross_attention)
        self.geometry = geometry
        self._mask = torch.empty(0)
        if geometry != Geometry():
            self.embed_positions = SlotPositions(self.embed_dim, self.padding_idx + 1, geometry)

    def take_directions(self, parameters: dict[str, Tensor]) -> None:
        """Begins with the direction embeddings of a base model, where that has as many."""
        directions = getattr(self.embed_positions, "directions", None)
        trained = parameters.get("decoder.embed_positions.directions.weight")
        if (
            directions is not None
            and trained is not None
            and trained.shape == directions.weight.shape
        ):
            directions.load_state_dict({"weight": trained})

    def buffered_future_mask(self, tensor: Tensor) -> Tensor:
        """(W, W) additive mask for x of shape (W, B, C), Eq. 4."""
        width, mask = tensor.size(0), self._mask
        if mask.size(0) < width or mask.dtype != tensor.dtype or mask.device != tensor.device:
            side = self.geometry.width(max(128, 2 * width))
            hidden = hidden_slots(0, side, self.geometry, tensor.device)
            mask = torch.zeros(side, side, dtype=tensor.dtype, device=tensor.device)
            self._mask = mask.masked_fill_(hidden, -torch.inf)
        return self._mask[:width, :width]


@dataclass
class SlotOptions(FairseqDataclass):
    """Options that say where words are written."""

    directions: int = option(
        2,
        "where the decoder writes: 1 left to right, 2 from both ends, more (an even number) from both ends of H/2 "
        "segments (default: 2)",
        "H",
    )
    words_per_direction: int = option(
        1, "words that each direction writes per step (default: 1)", "C"
    )
    base_checkpoint: Optional[str] = option(
        None,
        "begin as this Transformer, with its sizes; of its decoder, the first --decoder-layers layers (default: all), "
        "or each several times where it has fewer",
        "FILE",
    )


@register_model("interleaved_transformer")
class InterleavedTransformerModel(TransformerModel):
    """A Transformer that is trained to write in several directions, several words per step."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        add_flags(parser, SlotOptions)
        for name, meaning in ABLATIONS.items():
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, action="store_true", help=f"ablation: {meaning}")

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "InterleavedTransformerModel":
        base = take_layers(args)
        interleaved_architecture(args)
        check_geometry(args)
        if getattr(getattr(task, "cfg", None), "left_pad_target", False):
            raise ValueError(
                "--left-pad-target does not go with --arch interleaved_transformer: words are laid out "
                "from the first column"
            )
        model: InterleavedTransformerModel = super().build_model(args, task)
        if base is not None:
            new = () if model.decoder.geometry == Geometry() else "decoder.embed_positions."
            base.load(model, new=new)
            model.decoder.take_directions(base.parameters)
        return model

    @classmethod
    def build_decoder(cls, args: Namespace, tgt_dict: Any, embed_tokens: Any) -> InterleavedDecoder:
        return InterleavedDecoder(args, tgt_dict, embed_tokens, geometry_of(args))

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Computes what a stock Transformer does, in reading order.

        Position i of the result predicts word i, and position n ``</s>``, from the slots that were written before it.

        Returns:
            (B, T, V) logits, or (B, T, C) with ``features_only``; and fairseq's extras, of which ``attn`` (B, T,
            S) is in reading order, ``inner_states`` in writing order.
        """
        decoder, geometry = self.decoder, self.decoder.geometry
        encoder_out = self.encoder(
            src_tokens, src_lengths=src_lengths, return_all_hiddens=return_all_hiddens
        )
        tokens = prev_output_tokens.size(1)
        lengths = prev_output_tokens.ne(decoder.padding_idx).sum(1) - 1
        order = writing_order(lengths, geometry.width(tokens), geometry)
        slots = shifted_slots(prev_output_tokens, order, geometry.step, decoder.padding_idx)
        features, extra = decoder(
            slots,
            encoder_out=encoder_out,
            features_only=True,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
        )
        reading = inverse(order)[:, :tokens]  # (B, T)
        features = pick(features, reading)
        extra["attn"] = [None if attn is None else pick(attn, reading) for attn in extra["attn"]]
        return (features if features_only else decoder.output_layer(features)), extra


def geometry_of(args: Namespace) -> Geometry:
    """The geometry that the options of a model describe."""
    return Geometry(
        directions=int(args.directions),
        words_per_direction=int(args.words_per_direction),
        vanilla_mask=bool(args.vanilla_mask),
        vanilla_positions=bool(args.vanilla_positions),
        middle_to_side=bool(args.middle_to_side),
        independent=bool(args.independent_directions),
        one_by_one=bool(args.one_by_one),
    )


def check_geometry(args: Namespace) -> None:
    """Raises ``ValueError`` with one sentence that names the option which cannot be."""
    directions, words = int(args.directions), int(args.words_per_direction)
    if directions < 1 or (directions > 1 and directions % 2):
        raise ValueError(f"--directions {directions}: it must be 1 or an even number")
    if words < 1:
        raise ValueError(f"--words-per-direction {words}: it must be at least 1")
    if directions == 1:
        needed = "--directions 2 or more"
        _refuse_ablations(args, ("middle_to_side", "independent_directions", "one_by_one"), needed)
    if directions * words == 1:
        needed = "--directions or --words-per-direction 2 or more"
        _refuse_ablations(args, ("vanilla_mask", "vanilla_positions"), needed)
    if args.one_by_one and words > 1:
        raise ValueError("--one-by-one writes one word per step: leave --words-per-direction at 1")
    if args.one_by_one and args.independent_directions:
        raise ValueError(
            "--one-by-one does not go with --independent-directions: a word would not see the one before it"
        )
    if directions * words > 1:
        _check_positions(args)


def _refuse_ablations(args: Namespace, names: Iterable[str], needed: str) -> None:
    for name in names:
        if getattr(args, name):
            raise ValueError(f"--{name.replace('_', '-')} needs {needed}")


def _check_positions(args: Namespace) -> None:
    for name, reason in (
        ("decoder_learned_pos", "slots have sinusoidal positions"),
        ("no_token_positional_embeddings", "positions tell the slots of a step apart"),
    ):
        if getattr(args, name):
            raise ValueError(
                f"--{name.replace('_', '-')} goes with --directions 1 --words-per-direction 1 only: {reason}"
            )


@register_model_architecture("interleaved_transformer", "interleaved_transformer")
def interleaved_architecture(args: Namespace) -> None:
    """Base size unless told otherwise, as the stock ``transformer``; IBDecoder."""
    fill_in(args, SlotOptions)
    set_defaults(args, **dict.fromkeys(ABLATIONS, False))
    if args.base_checkpoint and not hasattr(args, "decoder_layers"):
        # As many as the base has; fairseq's default would count as wanted.
        args.decoder_layers = None
    base_architecture(args)
