"""``--arch nar_drafter``: the non-autoregressive drafter of generalized aggressive decoding (Ge et al., section 3.2.1).

A Transformer whose decoder reads a prefix of the target and k mask slots and predicts all k tokens at once. It is
trained with ``--criterion glancing_loss`` and drafts through :class:`~fairseq_aggdec.drafters.nar.NarDrafter`.

Where it differs from the official code: a mask slot has an embedding of its own beside the source copy, and positions
are added once instead of before every layer (``--published-form`` has both as the authors do); the encoder can be taken
over from the verifier, and slots can predict the token after them, as a verifier's decoder does.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerEncoder, TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

from fairseq_aggdec.models.base_checkpoint import (
    begin_as,
    encoder_arguments,
    load_encoder,
    take_encoder_options,
)
from fairseq_aggdec.models.nar_decoder import BIDIRECTIONAL, CAUSAL, ITSELF, NEXT, NarDecoder
from fairseq_aggdec.models.options import add_flags, fill_in, option, set_defaults, set_sizes

BERT, STOCK = "bert", "stock"

# Stock options that contradict what a drafter is, with the reason.
REFUSED = {
    "adaptive_input": "the mask needs one table of embeddings",
    "adaptive_softmax_cutoff": "all slots are scored by one projection",
    "cross_self_attention": "the slots read the source through attention of its own",
    "no_cross_attention": "the slots must read the source",
    "no_token_positional_embeddings": "mask slots are told apart by their positions only",
}


@dataclass
class DrafterOptions(FairseqDataclass):
    """Options that a drafter has beside the options of a Transformer."""

    block_size: int = option(10, "tokens drafted at once, k (default: 10)", "K")
    src_embedding_copy: bool = option(
        False, "a mask slot reads a softly aligned copy of the source embeddings"
    )
    prefix_attention: ChoiceEnum([BIDIRECTIONAL, CAUSAL]) = option(  # type: ignore[valid-type]
        BIDIRECTIONAL,
        "bidirectional, as in the paper (default); causal: prefix positions see only what is left of them, so that "
        "decoding keeps them from iteration to iteration",
    )
    slot_predicts: ChoiceEnum([ITSELF, NEXT]) = option(  # type: ignore[valid-type]
        ITSELF,
        "itself: the token in its place, as in the paper (default); next: the token after it, as a verifier's decoder "
        "does: the last accepted token drafts the first and a mask each of the others, so that --init-decoder-from "
        "begins with what the verifier knows",
    )
    published_form: bool = option(
        False,
        "as in the models that the authors published: positions are added before every layer, and a mask slot is the "
        "source copy alone (needs --src-embedding-copy)",
    )
    slot_chain: bool = option(
        False,
        "the slots of a block are told which token was chosen before them, after all layers",
    )
    weight_init: ChoiceEnum([BERT, STOCK]) = option(  # type: ignore[valid-type]
        BERT,
        "how weights begin: bert, normal with deviation 0.02 (default), or as in a stock Transformer",
    )
    init_decoder_from: Optional[str] = option(
        None,
        "begin with what fits of the decoder of this verifier: embeddings, layers, projection",
        "FILE",
    )
    init_encoder_from: Optional[str] = option(
        None, "begin with the encoder of this verifier, its architecture included", "FILE"
    )
    share_verifier_encoder: Optional[str] = option(
        None,
        "use the encoder of this verifier and leave it as it is, so that decoding runs one encoder for both",
        "FILE",
    )


@register_model("nar_drafter")
class NarDrafterModel(TransformerModel):
    """An encoder, a verifier's or its own, and a :class:`NarDecoder`.

    Attributes:
        shares_encoder: the encoder is a verifier's and frozen: neither dropout nor gradients in it.
        num_updates: of the training run, told by fairseq.
    """

    def __init__(self, args: Namespace, encoder: Any, decoder: NarDecoder):
        super().__init__(args, encoder, decoder)
        self.num_updates = 0
        self.shares_encoder = bool(args.shares_encoder)
        if args.weight_init == BERT:
            self.apply(init_bert_params)
            nn.init.normal_(decoder.mask_embedding, std=0.02)
        if self.shares_encoder:
            encoder.requires_grad_(False)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        add_flags(parser, DrafterOptions)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "NarDrafterModel":
        nar_drafter(args)
        if args.share_verifier_encoder and args.init_encoder_from:
            raise ValueError("--share-verifier-encoder does not go with --init-encoder-from")
        path, parameters = args.share_verifier_encoder or args.init_encoder_from, None
        if path:
            args.shares_encoder = bool(args.share_verifier_encoder)
            parameters = take_encoder_options(args, path)
        # What is taken over stands in the drafter's own checkpoints from now on.
        args.share_verifier_encoder = args.init_encoder_from = None
        decoder_path, args.init_decoder_from = args.init_decoder_from, None
        check_drafter_args(args)
        model: NarDrafterModel = super().build_model(args, task)
        if decoder_path:
            begin_as(model.decoder, decoder_path)
        if parameters is not None:  # last: a table that encoder and decoder share is the encoder's
            load_encoder(model.encoder, parameters, path)
        return model

    @classmethod
    def build_encoder(cls, args: Any, src_dict: Any, embed_tokens: Any) -> TransformerEncoder:
        if args.shares_encoder:
            # A table of its own: a tied one would freeze the decoder's embeddings as well.
            embed_tokens = cls.build_embedding(args, src_dict, args.encoder.embed_dim)
        return TransformerEncoder(encoder_arguments(args), src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: Any) -> NarDecoder:
        return NarDecoder(args, tgt_dict, embed_tokens)

    def set_num_updates(self, num_updates: int) -> None:
        super().set_num_updates(num_updates)
        self.num_updates = num_updates

    def train(self, mode: bool = True) -> "NarDrafterModel":
        super().train(mode)
        if self.shares_encoder:
            self.encoder.eval()
        return self

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Only fairseq's tools call this, on the models of ``--path``; a drafter is not one of them."""
        raise ValueError(
            "--path names a drafter (nar_drafter): name the verifier there and the drafter with --drafter-path"
        )

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        glance: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Features (B, k, C) of the slots, to which ``decoder.output_layer`` gives logits.

        Args:
            src_tokens: (B, S) int64.
            src_lengths: (B,) int64.
            prev_output_tokens: (B, P + k) int64, see :meth:`NarDecoder.slot_features`.
            glance: gets the features of a first pass, (B, k, C), and returns the input of the pass whose features are
                returned. Both passes have the same dropout; the first has no gradients.
        """
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        reading = encoder_out, self.source_keys(src_tokens, encoder_out), self.decoder.block_size
        if glance is not None:
            devices = [src_tokens.device] if src_tokens.is_cuda else []
            with torch.no_grad(), torch.random.fork_rng(devices):
                prev_output_tokens = glance(
                    self.decoder.slot_features(prev_output_tokens, *reading)
                )
            # Before 2.11 torch's autocast keeps the casts of weights from the pass without gradients for the next.
            torch.clear_autocast_cache()
        features: Tensor = self.decoder.slot_features(prev_output_tokens, *reading)
        return features

    def source_keys(self, src_tokens: Tensor, encoder_out: dict[str, Any]) -> Tensor | None:
        """Keys of the source copy: embeddings and positions of the source (B, S, C), None without source copy."""
        if self.decoder.copy_query is None:
            return None
        keys: Tensor = encoder_out["encoder_embedding"][0]
        if self.encoder.embed_positions is not None:
            keys = keys + self.encoder.embed_positions(src_tokens)
        return keys


def check_drafter_args(args: Namespace) -> None:
    """Raises ``ValueError`` with one sentence that names the option."""
    for name, reason in REFUSED.items():
        if getattr(args, name, None):
            raise ValueError(
                f"--{name.replace('_', '-')} does not go with --arch nar_drafter: {reason}"
            )
    if int(args.block_size) < 1:
        raise ValueError(f"--block-size {args.block_size}: a block has at least one token")
    if args.published_form and (
        not args.src_embedding_copy or getattr(args, "layernorm_embedding", False)
    ):
        raise ValueError(
            "--published-form needs --src-embedding-copy and goes without --layernorm-embedding"
        )
    if args.src_embedding_copy and args.encoder_embed_dim != args.decoder_embed_dim:
        raise ValueError(
            f"--src-embedding-copy puts source embeddings ({args.encoder_embed_dim} wide) where the decoder's stand "
            f"({args.decoder_embed_dim} wide): make --encoder-embed-dim and --decoder-embed-dim equal"
        )


@register_model_architecture("nar_drafter", "nar_drafter")
def nar_drafter(args: Namespace) -> None:
    """3+3 layers of width 256 unless told otherwise; positions, embedding scale and norms as in a stock Transformer."""
    fill_in(args, DrafterOptions)
    set_defaults(args, shares_encoder=False, encoder_options=None, activation_fn="gelu")
    set_sizes(args, (3, 3), 256, 1024, 4)
    base_architecture(args)


@register_model_architecture("nar_drafter", "nar_drafter_base")
def nar_drafter_base(args: Namespace) -> None:
    """The drafter of the paper's main results: 6+6 layers, 512/2048/8."""
    paper_architecture(args, 512, 2048, 8)


@register_model_architecture("nar_drafter", "nar_drafter_big")
def nar_drafter_big(args: Namespace) -> None:
    """The drafter of the paper's section 4.2.4: 6+6 layers, 1024/4096/16."""
    paper_architecture(args, 1024, 4096, 16)


def paper_architecture(args: Namespace, width: int, hidden: int, heads: int) -> None:
    """Sets what the paper's drafters have in common: 6+6 layers, learned positions, unscaled embeddings, source
    copy."""
    learned = {"encoder_learned_pos": True, "decoder_learned_pos": True}
    set_defaults(args, **learned, no_scale_embedding=True, src_embedding_copy=True)
    set_sizes(args, (6, 6), width, hidden, heads)
    nar_drafter(args)
