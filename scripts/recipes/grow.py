"""Grow a trained Transformer to twice its width, hidden units, heads and layers: where to begin training a larger one.

    python -m scripts.recipes.grow small.pt large.pt

Every unit is there twice, and what read it reads half of each copy, in uneven halves so that the copies part in
training; behind every layer stands one that adds nothing yet (Net2Net: Chen et al. 2016, sections 2.2 and 2.3). With
norms before the layers (--encoder-normalize-before, --decoder-normalize-before) and learned positions the large model
computes what the small one computes; with fairseq's other defaults nearly so: norms are not undone, and sinusoids of
the double width lie between those of the single one. Train it on with --finetune-from-model.

A drafter (--arch nar_drafter) grows too, and keeps its number of layers: it drafts for the verifier that was grown with
the same --seed. Train it on with --init-decoder-from, and with --share-verifier-encoder where the verifier has been
trained on. A model with block heads (--arch blockwise_transformer) grows as its base does; its heads keep the number of
their own layers. Train them on with --init-heads-from, and with --base-checkpoint where the base has been trained on.
"""

import argparse
import math
import re
from pathlib import Path
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_aggdec.distill.average_checkpoints import plain, write
from fairseq_aggdec.stored.loading import load_checkpoint

GROWN = ("transformer", "nar_drafter", "blockwise_transformer")  # models
UNEVEN = 0.25  # the halves of a weight are (1/2 +- up to this) of it
WIDTHS = ("embed_dim", "ffn_embed_dim", "attention_heads")  # of encoder and decoder
NORM = r"(?:self_attn_layer_norm|encoder_attn_layer_norm|final_layer_norm|layernorm_embedding|layer_norm)"
ATTENTION = r"(?:self_attn|encoder_attn)"
# What stands behind the last norm.
BEHIND = r"\.(?:chain\.(?:read_slot|read_token|write)|heads\.(?:expand|contract)|head_layers\.(?:read_token|opening))"


class Growth:
    """Tensors of the small model -> those of the large one.

    Args:
        head: channels D of an attention head.
        scaled: embeddings are multiplied by the root of the width, which is larger now.
        tied: the output projection is the embedding.

    Attributes:
        features: what the last norm is multiplied by: a tied projection of twice as many channels then gives the same.
    """

    def __init__(self, head: int, scaled: bool, tied: bool, seed: int):
        self.head, self.tied = head, tied
        self.embedding = math.sqrt(0.5) if scaled else 1.0
        self.features = 0.5 / self.embedding if tied else 1.0
        self.random = torch.Generator().manual_seed(seed)

    def twice(self, x: Tensor, dim: int, block: int = 1) -> Tensor:
        """Every block of so many neighbours in dimension `dim`, twice."""
        return x.unflatten(dim, (-1, block)).repeat_interleave(2, dim).flatten(dim, dim + 1)

    def halved(self, weight: Tensor, block: int = 1) -> Tensor:
        """A weight (O, K) that reads every block of inputs twice (O, 2 K): the two shares of a weight add up to it."""
        parts = weight.unflatten(1, (-1, 1, block))  # (O, K / block, 1, block)
        apart = (torch.rand(parts.shape, generator=self.random) * 2 - 1) * UNEVEN
        return torch.cat((parts * (0.5 + apart), parts * (0.5 - apart)), 2).flatten(1)

    def grown(self, name: str, x: Tensor) -> Tensor:
        """
        Raises:
            SystemExit: a parameter that stock fairseq's Transformer does not have.
        """
        inputs, outputs = 1, 1  # blocks that units of both sides come in
        if re.search(r"embed_tokens\.weight$", name):
            return self.twice(x, 1) * self.embedding
        if name.endswith("mask_embedding"):
            return self.twice(x, 0) * self.embedding
        if re.search(BEHIND, name):
            return self._behind_features(name, x)
        if re.search(r"embed_positions\.weight$", name):
            return self.twice(x, 1)
        if name.endswith("output_projection.weight"):
            return self.twice(x, 1) * self.embedding if self.tied else self.halved(x)
        if re.search(rf"{ATTENTION}\.[qkv]_proj\.(weight|bias)$", name):
            outputs = self.head
        elif re.search(rf"{ATTENTION}\.out_proj\.weight$", name):
            inputs = self.head
        elif not re.search(rf"({ATTENTION}\.out_proj|fc[12]|{NORM})\.(weight|bias)$", name):
            raise SystemExit(
                f"error: {name} is not a parameter of a stock Transformer that can be grown"
            )
        return self.twice(x if x.dim() == 1 else self.halved(x, inputs), 0, outputs)

    def _behind_features(self, name: str, x: Tensor) -> Tensor:
        """Of a layer that reads features, or adds to them, or neither."""
        larger = self.twice(self.halved(x) if x.dim() > 1 else x, 0)
        if re.search(r"(chain\.write|heads\.contract|read_token|opening)", name):
            # What a chain has heard stays within it.
            return larger if "chain.read_token" in name else larger * self.features
        reads = re.search(r"(chain\.read_slot|heads\.expand)\.weight$", name)
        return larger / self.features if reads else larger

    def among_heads(self, made: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
        """The heads' own layers, already grown, when they read and write what is as large as features are.

        What is added to it must be as large: with norms before the layers all that they add, with norms behind them
        what the first layer adds before its first norm.
        """
        own, attention = "decoder.head_layers.", r"layers\.0\.self_attn\."
        written, read = rf"{attention}out_proj\.", rf"{attention}[qkv]_proj\.weight"
        last = rf"layers\.{layers - 1}\.final_layer_norm\."
        pre_norm = f"{own}layer_norm.weight" in made
        if pre_norm:
            written, last = r"layers\.\d+\..*(out_proj|fc2)\.", r"layer_norm\."
        found = {}
        for name, value in made.items():
            if re.match(f"{own}({written}|{last})", name):
                found[name] = value * self.features
            elif not pre_norm and re.match(f"{own}{read}", name):
                found[name] = value / self.features
        return found


def silent(layer: dict[str, Tensor], pre_norm: bool) -> dict[str, Tensor]:
    """A layer that adds nothing to what a layer with these parameters wrote, ready to learn."""
    made = {name: value.clone() for name, value in layer.items()}
    for name in made:
        if re.search(r"(out_proj|fc2)\.", name):
            made[name].zero_()
        elif not pre_norm and (norm := re.search(r"_norm\.(weight|bias)$", name)):
            made[name] = layer[f"final_layer_norm.{norm.group(1)}"].clone()
    return made


def deepened(options: dict[str, Any]) -> tuple[str, ...]:
    """The sides that get twice the layers; a drafter's decoder stays as cheap beside its verifier as it was."""
    return ("encoder",) if "slot_predicts" in options else ("encoder", "decoder")


def enlarged(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an architecture at twice the sizes."""
    doubled = {f"{side}_{size}" for side in ("encoder", "decoder") for size in WIDTHS}
    doubled |= {f"{side}_layers" for side in deepened(options)}
    if options.get("head_hidden_dim"):  # else it is that of the decoder
        doubled.add("head_hidden_dim")
    larger = {name: 2 * value if name in doubled else value for name, value in options.items()}
    for name in ("decoder_input_dim", "decoder_output_dim"):
        larger[name] = larger["decoder_embed_dim"]
    if options.get("encoder_options"):  # of a drafter: those of the verifier whose encoder it has
        larger["encoder_options"] = enlarged(options["encoder_options"])
    return larger


def grow(model: dict[str, Tensor], options: dict[str, Any], seed: int = 1) -> dict[str, Tensor]:
    """The parameters of the large model, from those of the small one and the options of its architecture."""
    head = options["encoder_embed_dim"] // options["encoder_attention_heads"]
    if head != options["decoder_embed_dim"] // options["decoder_attention_heads"]:
        raise SystemExit("error: attention heads of encoder and decoder differ in size")
    tied = options["share_all_embeddings"] or options["share_decoder_input_output_embed"]
    growth = Growth(head, not options["no_scale_embedding"], tied, seed)
    made: dict[str, Tensor] = {}
    layers: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, value in model.items():
        kept = name.endswith(("version", "_float_tensor"))
        larger = value if kept else growth.grown(name, value)
        if found := re.match(r"(encoder|decoder)\.layers\.(\d+)\.(.+)", name):
            side, number, rest = found.groups()
            layers.setdefault((side, int(number)), {})[rest] = larger
        else:
            made[name] = larger
    for (side, number), layer in layers.items():
        placed = [layer]
        if side in deepened(options):
            placed.append(silent(layer, bool(options[f"{side}_normalize_before"])))
        for place, of in enumerate(placed, len(placed) * number):
            made |= {f"{side}.layers.{place}.{name}": value for name, value in of.items()}
    last = "decoder.layer_norm"
    if f"{last}.weight" not in made:
        last = f"decoder.layers.{enlarged(options)['decoder_layers'] - 1}.final_layer_norm"
    for part in ("weight", "bias"):
        made[f"{last}.{part}"] = made[f"{last}.{part}"] * growth.features
    if options.get("head_layers"):
        made |= growth.among_heads(made, options["head_layers"])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("small", type=Path, help="checkpoint of fairseq's transformer")
    parser.add_argument("large", type=Path, help="where to write the larger one")
    parser.add_argument("--seed", type=int, default=1, help="of the uneven halves")
    args = parser.parse_args()
    state = load_checkpoint(str(args.small))
    saved: Any = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
    model = saved["model"] or {}
    architecture = dict(model if isinstance(model, dict) else vars(model))
    name = architecture.get("arch", architecture.get("_name"))
    if ARCH_MODEL_NAME_REGISTRY.get(name, name) not in GROWN:
        raise SystemExit(
            f"error: {args.small} holds no Transformer of stock fairseq and none with block heads, and no drafter"
        )
    saved["model"] = enlarged(architecture)
    write(args.large, grow(state["model"], architecture, args.seed), plain(saved), state)


if __name__ == "__main__":
    main()
