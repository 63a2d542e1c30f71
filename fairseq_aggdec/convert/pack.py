"""Write a folder with a model's packed weights, which loads in a second and is shared by all processes that load it.

    aggdec pack model.pt data-bin packed --int8
    aggdec serve packed

The folder has the weights as this machine's kernels read them, a checkpoint with all parameters, the dictionaries and
subword models. Whatever takes a checkpoint takes the folder; --int8 or --bf16 need not be said again. Sums of all files
are compared whenever it is opened. On a machine with other kernels its weights are packed anew.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from fairseq_aggdec.api.loading import from_pretrained
from fairseq_aggdec.compat import load_checkpoint
from fairseq_aggdec.kernels.library import kernels, multiplies_bf16
from fairseq_aggdec.kernels.stored import noted
from fairseq_aggdec.packed.folder import is_folder, write


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
    with noted() as made:
        translator = from_pretrained(
            model,
            data,
            beam=1,
            device="cpu",
            int8=kind == "int8",
            dtype="bf16" if kind == "bf16" else None,
        )
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    write(
        partial, kind, translator.models[0], made, load_checkpoint(str(model)), [model.parent, data]
    )
    partial.rename(output)
