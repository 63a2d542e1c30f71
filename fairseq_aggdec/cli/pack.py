"""``aggdec pack``: writes a folder with a model's packed weights."""

from collections.abc import Sequence

from fairseq_aggdec.cli.parsers import parsed
from fairseq_aggdec.convert.pack import pack


def main(arguments: Sequence[str] | None = None) -> None:
    args = parsed("pack", arguments)
    kind = "int8" if args.int8 else "bf16" if args.bf16 else "fp32"
    stored, count = pack(args.model, args.data, args.output, kind)
    size = sum(path.stat().st_size for path in args.output.iterdir()) / 2**20
    print(
        f"{args.output}: {size:,.0f} MiB, with {stored} of {count} products; pack again when MODEL or this package's "
        "kernels change"
    )
