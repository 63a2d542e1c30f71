"""Reports what this machine and a checkpoint will use, what is refused, and which method to take.

aggdec doctor
aggdec doctor model.pt
aggdec doctor --path model.pt DATA
aggdec doctor --path model.pt DATA --decoding gad --drafter-path drafter.pt
aggdec doctor --try-kernels
"""

import argparse
import os
from pathlib import Path

from fairseq_aggdec.cli.parsers.files import refuse_no_model
from fairseq_aggdec.startup.installing import is_name_of_hub


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        nargs="?",
        type=Path,
        help="data folder (default: that of --path); or the checkpoint itself, without --path",
    )
    parser.add_argument("--path", metavar="FILE", help="checkpoint, or several joined by :")
    parser.add_argument(
        "--decoding", metavar="METHOD", help="say of this method alone who decodes with it"
    )
    parser.add_argument(
        "--try-kernels",
        action="store_true",
        help="try our kernels on this GPU, a few minutes: what is right and faster than PyTorch's operators runs "
        "from then on",
    )
    parser.add_argument("--drafter-path", metavar="FILE", help="drafter of --decoding gad or nar")


def model_and_data(args: argparse.Namespace) -> tuple[str | None, Path | None]:
    """The model, and the folder of its data, that options name; None: no model, which leaves the machine.

    Raises:
        SystemExit: there is a folder of data, or a method, without a model.
    """
    named, data = args.path, args.data
    if data is not None and not named and is_model(data):
        named, data = str(data), None
    if named:
        first = Path(named.split(os.pathsep)[0])
        return named, data or (first if first.is_dir() else first.parent)
    if data or args.decoding:
        raise SystemExit("error: --path is missing: name the checkpoint that goes with the data")
    return None, None


def is_model(place: Path) -> bool:
    """Tells whether a word names a model, one of Hugging Face too, and no folder of data."""
    if place.is_dir():
        return any((place / name).is_file() for name in ("packed.json", "config.json"))
    return place.is_file() or place.suffix == ".pt" or is_name_of_hub(str(place))


def check(args: argparse.Namespace) -> None:
    """Refuses models that are not there, and those of Hugging Face."""
    path, _ = model_and_data(args)
    if path is not None:
        refuse_no_model(path)
