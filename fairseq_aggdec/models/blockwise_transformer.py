"""``--arch blockwise_transformer``: a Transformer with k heads that predict k tokens from one position.

The combined scoring and proposal model of Stern et al., section 6. As a fairseq model it is an ordinary Transformer
whose output is that of head 1; the other heads are for ``--decoding blockwise`` and for training
(``blockwise_loss``).
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture
from torch import Tensor, nn

from fairseq_aggdec.models.base_checkpoint import check_fit, take_base
from fairseq_aggdec.models.block_heads import DENSE, PER_HEAD, BlockHeads, HeadLayers
from fairseq_aggdec.models.options import add_flags, fill_in, option
from fairseq_aggdec.models.slot_chain import ChainedDecoder, SlotChain
from fairseq_aggdec.stored.loading import load_checkpoint

# What is not the base's
NEW = ("decoder.heads.", "decoder.head_layers.", "decoder.chain.")


@dataclass
class HeadOptions(FairseqDataclass):
    """The options of block heads, for any architecture that has them."""

    block_size: int = option(8, "number of heads: tokens predicted at once (default: 8)", "K")
    head_layout: ChoiceEnum([DENSE, PER_HEAD]) = option(  # type: ignore[valid-type]
        DENSE,
        "dense: every head reads the hidden units of all, as in the paper (default); per-head: its own only, smaller "
        "and faster",
    )
    head_hidden_dim: Optional[int] = option(
        None, "hidden units per head (default: --decoder-ffn-embed-dim, as in the paper)", "N"
    )
    head_layers: int = option(
        0,
        "decoder layers of heads 2 to K, in which each reads the token that head 1 chose, the heads before it and the "
        "source; they begin as the last layers of --base-checkpoint (default: 0, as in the paper)",
        "N",
    )
    identity_first_head: bool = option(
        False,
        "head 1 is the decoder's own output, so that quality is exactly that of the base model",
    )
    slot_chain: bool = option(
        False,
        "heads 2 to K hear which token was chosen before theirs: of the likeliest tokens of every head those are "
        "drafted that go together",
    )
    base_checkpoint: Optional[str] = option(
        None,
        "begin with a trained stock Transformer; the architecture is read from it too",
        "FILE",
    )
    init_heads_from: Optional[str] = option(
        None,
        "begin with the heads of this model, their layers and chain among them, which were trained for another state "
        "of the base",
        "FILE",
    )
    freeze_base: bool = option(False, "train the heads only, the base stays as it is")


class HeadedDecoder(ChainedDecoder):
    """Methods that a Transformer decoder gains from block heads: mixed in before its class.

    Heads 2 to k may have layers of their own, and a chain, which tells each the token before its own; head 1 is the
    model and hears nothing.
    """

    heads: BlockHeads
    head_layers: HeadLayers | None
    output_embed_dim: int

    def __init__(self, args: Namespace, *others: Any):
        super().__init__(args, *others)  # type: ignore[call-arg]
        width, embedding = self.output_embed_dim, self.embed_tokens.embedding_dim
        self.heads = BlockHeads(
            int(args.block_size),
            width,
            args.decoder_ffn_embed_dim if args.head_hidden_dim is None else args.head_hidden_dim,
            layout=args.head_layout,
            identity_first=args.identity_first_head,
            dropout=args.dropout,
        )
        self.head_layers = self.chain = None
        if args.head_layers:
            if width != args.decoder_embed_dim:
                raise ValueError(
                    "--head-layers needs a decoder whose output has its own width, "
                    f"{args.decoder_embed_dim}, not {width}"
                )
            self.head_layers = HeadLayers(args, args.head_layers, embedding)
        if args.slot_chain:
            self.chain = SlotChain(width, embedding)
            nn.init.zeros_(self.chain.write.weight)  # at first the heads say what they say without
            nn.init.zeros_(self.chain.write.bias)

    def output_layer(self, features: Tensor) -> Tensor:
        """Logits of head 1, the model itself: (..., C) -> (..., V)."""
        logits: Tensor = self.output_projection(self.heads(features, [0]))
        return logits.squeeze(-2)

    def head_features(
        self,
        features: Tensor,
        heads: Sequence[int],
        chosen: Tensor | None,
        encoder_out: dict[str, Any],
    ) -> Tensor:
        """Features that consecutive heads (counted from 0) project, layers included: (B, T, C) -> (B, T, len(heads),
        C).

        Args:
            chosen: (B, T) int64, the tokens of head 1, which only layers read.
        """
        last = heads[-1]
        if self.head_layers is None or last == 0:
            return self.heads(features, heads)
        assert chosen is not None
        embedded = self.embed_scale * self.embed_tokens(chosen)
        # Heads see those before them, whichever are wanted.
        others = self.heads(features, range(1, last + 1))
        others = self.head_layers(others, embedded, encoder_out)
        if heads[0] == 0:
            return torch.cat([self.heads(features, [0]), others], dim=-2)
        return others[..., heads[0] - 1 :, :]


class BlockwiseDecoder(HeadedDecoder, TransformerDecoder):
    """A stock Transformer decoder with block heads."""


@register_model("blockwise_transformer")
class BlockwiseTransformerModel(TransformerModel):
    """A Transformer with block heads, from scratch or on a trained base.

    With ``--freeze-base`` only the heads train; the base runs without dropout and without gradients.
    """

    decoder_class: type[HeadedDecoder] = BlockwiseDecoder

    def __init__(self, args: Namespace, encoder: Any, decoder: Any):
        super().__init__(args, encoder, decoder)
        self.frozen = bool(args.freeze_base)
        if self.frozen:
            for name, parameter in self.named_parameters():
                parameter.requires_grad = name.startswith(NEW)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        add_flags(parser, HeadOptions)
        # Becomes true with --base-checkpoint and is saved; checkpoints older than it lack it.
        parser.set_defaults(has_base=False)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "BlockwiseTransformerModel":
        blockwise_architecture(args)
        check_head_args(args)
        base = take_base(args)
        args.has_base = base is not None or getattr(args, "has_base", True)
        if args.adaptive_softmax_cutoff:
            raise ValueError(
                "--adaptive-softmax-cutoff: block heads need a model with one projection to its whole vocabulary"
            )
        model: BlockwiseTransformerModel = super().build_model(args, task)
        if base is not None:
            base.load(model, new=NEW)
            if args.head_layers:  # they begin as the last ones of the decoder
                last = model.decoder.layers[-args.head_layers :]
                for layer, trained in zip(model.decoder.head_layers.layers, last, strict=False):
                    layer.load_state_dict(trained.state_dict())
        if args.init_heads_from:
            load_heads(model, args.init_heads_from)
            args.init_heads_from = None  # as with the base
        return model

    @classmethod
    def build_decoder(cls, args: Namespace, tgt_dict: Any, embed_tokens: Any) -> HeadedDecoder:
        return cls.decoder_class(args, tgt_dict, embed_tokens)

    @property
    def trained_heads(self) -> range:
        """The heads that learn: all, but for one that is a frozen base itself."""
        heads = self.decoder.heads
        return range(int(self.frozen and heads.identity_first), heads.block_size)

    def train(self, mode: bool = True) -> "BlockwiseTransformerModel":
        super().train(mode)
        if mode and self.frozen:
            self.encoder.eval()
            self.decoder.eval()
            self.decoder.heads.train()
            if self.decoder.head_layers is not None:
                self.decoder.head_layers.train()
        return self

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        heads: Sequence[int] | None = None,
        chosen: Tensor | None = None,
        places: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Computes what a stock Transformer does; with ``heads``, what those consecutive heads project: (B, T,
        len(heads), C).

        ``chosen`` (B, T) are then the tokens of head 1, which the heads' layers read. These have one position more, the
        one before the first. With ``places`` (T',) heads run at these positions only: (B, T', len(heads), C).
        """
        if heads is None:
            return super().forward(src_tokens, src_lengths, prev_output_tokens, **options)
        # Without gradients where the base is frozen.
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
            features = self.decoder(
                prev_output_tokens, encoder_out=encoder_out, features_only=True
            )[0]
        if self.decoder.head_layers is not None:
            features = self.decoder.head_layers.opened(features)
        if places is not None:
            features = features[:, places]
            chosen = None if chosen is None else chosen[:, places]
        return self.decoder.head_features(features, heads, chosen, encoder_out)


def check_head_args(args: Namespace) -> None:
    """Raises ``ValueError`` with one sentence that names the option."""
    if int(args.block_size) < 1:
        raise ValueError(f"--block-size {args.block_size}: there is at least one head")
    if int(args.block_size) == 1 and args.slot_chain:
        raise ValueError(
            "--slot-chain with --block-size 1: there is no head that could hear of another"
        )
    if args.head_layers < 0:
        raise ValueError(f"--head-layers {args.head_layers}: it must be at least 0")
    if int(args.block_size) == 1 and args.head_layers:
        raise ValueError("--head-layers with --block-size 1: there is no head that would have them")
    if int(args.block_size) == 1 and args.identity_first_head:
        raise ValueError("--block-size 1 with --identity-first-head leaves nothing to train")
    if args.head_hidden_dim is not None and args.head_hidden_dim < 1:
        raise ValueError(f"--head-hidden-dim {args.head_hidden_dim}: a head has a hidden unit")
    if args.freeze_base and not args.base_checkpoint and not getattr(args, "has_base", True):
        raise ValueError("--freeze-base without --base-checkpoint would freeze random weights")


def load_heads(model: nn.Module, path: str) -> None:
    """Gives a model the heads, their layers and their chain of a checkpoint, and nothing else of it.

    Raises:
        CheckpointError: it has other heads, or none.
    """
    built, stored = (
        {name: value for name, value in state.items() if name.startswith(NEW)}
        for state in (model.state_dict(), load_checkpoint(path)["model"])
    )
    check_fit(built, stored, f"--init-heads-from {path} has other heads")
    model.load_state_dict(stored, strict=False)


@register_model_architecture("blockwise_transformer", "blockwise_transformer")
def blockwise_architecture(args: Namespace) -> None:
    """Base size unless told otherwise, as the stock ``transformer``."""
    fill_in(args, HeadOptions)
    base_architecture(args)
