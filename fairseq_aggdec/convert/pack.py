"""Write a folder with a model's packed weights, which loads in a second and is shared by all processes that load it.

    aggdec pack model.pt data-bin packed --int8
    aggdec serve packed

The folder has the weights as this machine's kernels read them, a checkpoint with all parameters, the dictionaries and
subword models. Whatever takes a checkpoint takes the folder; --int8 or --bf16 need not be said again. Sums of all files
are compared whenever it is opened. On a machine with other kernels its weights are packed anew. MODEL may be a drafter,
whose folder --drafter-path takes, or a model with block heads.
"""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fairseq_aggdec.api.loading import from_pretrained, make_config
from fairseq_aggdec.compat import load_checkpoint
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.kernels.library import kernels, multiplies_bf16
from fairseq_aggdec.kernels.stored import noted
from fairseq_aggdec.methods.shared.loading import load_drafter
from fairseq_aggdec.models.base_checkpoint import MASK_EMBEDDING
from fairseq_aggdec.models.blockwise_transformer import NEW
from fairseq_aggdec.packed.folder import is_folder, write
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aggdec pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a checkpoint")
    add("data", type=Path, metavar="DATA", help="folder with the dictionaries")
    add("output", type=Path, metavar="OUT", help="a new folder")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--int8", action="store_true", help="products in 8 bits, as --int8 of aggdec-generate"
    )
    kinds.add_argument(
        "--bf16", action="store_true", help="products in bfloat16, as --bf16 of aggdec-generate"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(arguments)
    pack(
        args.model, args.data, args.output, "int8" if args.int8 else "bf16" if args.bf16 else "fp32"
    )
    size = sum(path.stat().st_size for path in args.output.iterdir()) / 2**20
    print(f"{args.output}: {size:,.0f} MiB; pack again when MODEL or this package's kernels change")


def pack(model: Path, data: Path, output: Path, kind: str) -> None:
    """Writes the folder.

    Args:
        kind: ``fp32``, ``int8`` or ``bf16``.

    Raises:
        SystemExit: there is nothing to pack, nothing to pack with, or the folder is there.
    """
    if output.exists():
        raise SystemExit(f"error: {output} exists: name a new folder")
    if is_folder(model):
        raise SystemExit(
            f"error: {model} is packed already: name the checkpoint that it was made of"
        )
    if kernels() is None or (kind == "bf16" and not multiplies_bf16()):
        raise SystemExit(f"error: there are no compiled kernels for {kind} on this machine")
    state = load_checkpoint(str(model))
    with noted() as made:
        build = _drafter if MASK_EMBEDDING in state["model"] else _model
        built = build(model, data, kind, state)
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial, kind, built, made, state, [model.parent, data])
    partial.rename(output)


def _model(path: Path, data: Path, kind: str, state: Mapping[str, Any]) -> nn.Module:
    """The model in a checkpoint, after all that decodes with it was packed."""
    heads = any(name.startswith(NEW) for name in state["model"])
    dtype = "bf16" if kind == "bf16" else None
    decoding = "blockwise" if heads else "beam"
    translator = from_pretrained(
        path, data, decoding, beam=1, device="cpu", int8=kind == "int8", dtype=dtype
    )
    found: nn.Module = translator.models[0]
    return found


def _drafter(path: Path, data: Path, kind: str, state: Mapping[str, Any]) -> nn.Module:
    """The drafter in a checkpoint, after it was packed.

    Raises:
        SystemExit: in bfloat16 a drafter has a copy of its weights, which no file holds.
    """
    if kind == "bf16":
        raise SystemExit(f"error: {path} is a drafter: pack it without --bf16")
    cfg = make_config([str(path)], str(data), "greedy", 1, state.get("cfg") or {}, {})
    model = load_drafter(str(path), TranslationAggdecTask.setup_task(cfg.task))
    int8 = kind == "int8"
    drafter = NarDrafter(model, precision=Precision(int8=int8), int8=int8)
    drafter.pack_decoder()
    if not model.shares_encoder:
        drafter.pack_encoder()
    return model
