"""The drafters that the authors of generalized aggressive decoding published, as checkpoints of ``--arch nar_drafter``.

Their code (https://github.com/hemingkx/SpecDec, model ``block``) names the weights as fairseq does, but for the source
copy. Its embeddings are not scaled. Sizes come from the weights, the rest from the options in the file.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.convert.checkpoint import save
from fairseq_aggdec.stored.loading import NEW_ENTRIES, CheckpointError, checked_model

COPY = "decoder.copy_attn.weight"
PAD = 1  # fairseq's dictionaries; tables of learned positions begin behind it
HEAD_WIDTH = 64  # of their architectures, where the file names no heads
# What it does not name is as in their architecture ``block``.
SAME = {
    "activation_fn": "relu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder_normalize_before": False,
    "decoder_normalize_before": False,
}


def convert(path: Path, output: Path, block_size: int | None = None) -> None:
    """Writes OUTPUT/model.pt.

    Args:
        path: a checkpoint of theirs.
        output: a folder that is not there yet.
        block_size: tokens drafted at once; None: as the file says.

    Raises:
        FileNotFoundError, CheckpointError: no file, or no drafter of theirs.
    """
    state = checked_model(str(path))
    if state is None or not isinstance(state.get("model"), dict):
        raise CheckpointError(f"{path} is no checkpoint of fairseq")
    weights = {name: value.clone() for name, value in state["model"].items()}
    if COPY not in weights:
        raise CheckpointError(f"{path} is no drafter of the authors of GAD: it has no {COPY}")
    trained = _options(state)
    size = block_size or trained.get("block_size")
    if not size:
        raise CheckpointError(
            f"{path} does not say how many tokens it drafts at once: name --block-size"
        )
    options = _model_options(weights, trained, int(size))
    weights["decoder.copy_query.weight"] = weights.pop(COPY)
    weights["decoder.mask_embedding"] = torch.zeros(options.decoder_embed_dim)  # read by nobody
    output.mkdir(parents=True)
    task = {name: trained.get(name) for name in ("source_lang", "target_lang")}
    cfg = {"model": options, "task": {"_name": "translation", "data": "", **task}}
    kept = {"args": None, "cfg": cfg, "model": weights, "last_optimizer_state": None}
    save(kept | NEW_ENTRIES, output / "model.pt")


def _options(state: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the run in one dictionary: of model and task, or of the one namespace of older files."""
    options: dict[str, Any] = {}
    cfg = state.get("cfg") or {}
    for part in (state.get("args"), cfg.get("task"), cfg.get("model")):
        values = vars(part) if isinstance(part, Namespace) else dict(part or {})
        options |= {str(name): value for name, value in values.items() if value is not None}
    return options


def _model_options(
    weights: Mapping[str, Tensor], trained: Mapping[str, Any], block_size: int
) -> Namespace:
    tied = [
        torch.equal(weights["decoder.embed_tokens.weight"], weights[name])
        for name in ("encoder.embed_tokens.weight", "decoder.output_projection.weight")
        if name in weights
    ]
    options = {name: trained.get(name, value) for name, value in SAME.items()} | {
        "arch": "nar_drafter",
        "_name": "nar_drafter",
        "block_size": block_size,
        "published_form": True,
        "src_embedding_copy": True,
        "no_scale_embedding": True,
        "share_all_embeddings": all(tied),
        "share_decoder_input_output_embed": tied[-1],
    }
    for side in ("encoder", "decoder"):
        table = weights.get(f"{side}.embed_positions.weight")
        width = weights[f"{side}.embed_tokens.weight"].size(1)
        options |= {
            f"{side}_embed_dim": width,
            f"{side}_ffn_embed_dim": weights[f"{side}.layers.0.fc1.weight"].size(0),
            f"{side}_layers": len(
                {name.split(".")[2] for name in weights if name.startswith(f"{side}.layers.")}
            ),
            f"{side}_attention_heads": trained.get(
                f"{side}_attention_heads", max(width // HEAD_WIDTH, 1)
            ),
            f"{side}_learned_pos": table is not None,
        }
        length = 1000 if table is None else len(table) - PAD - 1
        # Our tables of positions have a block more than the longest target.
        places = "max_source_positions" if side == "encoder" else "max_target_positions"
        options[places] = length - (block_size if side == "decoder" else 0)
    return Namespace(**options)
