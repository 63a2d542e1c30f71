"""Pairs of a low- and a high-resolution image, as arrays on disk and as sequences of intensities.

    python -m fairseq_aggdec.images.data --output DIR                        # 4x4 -> 16x16 grey, from photographs
    python -m fairseq_aggdec.images.data --output DIR --low-size 8 --high-size 32 --channels rgb \\
        --images CELEBA/img_align_celeba --margins 40 20 --partition CELEBA/list_eval_partition.txt

writes ``{train,valid,test}.{low,high}.npy``, uint8 (images, height, width, channels), and ``format.json``, which names
sizes, channels, and how the images were made; ``--task super_resolution`` reads them.

Without ``--images`` the photographs that scikit-image ships are used. Each is cut into tiles, and every tile belongs to
one set, so that no pixel of the training set is in another set. Images are random squares of a tile, shrunk (the mean
over the area of each pixel); those of the training set are mirrored half of the time.

With ``--images`` every image of the folder gives one square, the largest in its middle once ``--margins`` are cut off,
and goes whole into one set, at random or as the file ``--partition`` says. The second command above makes the
paper's CelebA images.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_aggdec.images.sets import (
    ImageDataError,
    central_square,
    folder_files,
    load,
    photograph_sets,
    random_squares,
    shrink,
    split_by_file,
    split_randomly,
)

if TYPE_CHECKING:
    from PIL.Image import Image

INTENSITIES = 256
SPLITS = ("train", "valid", "test")
MODES = {"grey": "L", "rgb": "RGB"}
FORMAT_FILE = "format.json"


@dataclass(frozen=True)
class ImageFormat:
    """Sizes of the prepared images.

    Attributes:
        low, high: height and width in pixels.
        channels: 1 (grey) or 3 (red, green, blue).
        source: where the images come from and how they were cut, for people.
    """

    low: int
    high: int
    channels: int
    source: str = ""

    @property
    def source_length(self) -> int:
        """Intensities of a low-resolution image."""
        return self.low**2 * self.channels

    @property
    def target_length(self) -> int:
        """Intensities of a high-resolution image."""
        return self.high**2 * self.channels

    @property
    def high_shape(self) -> tuple[int, int, int]:
        """(H, W, C)."""
        return self.high, self.high, self.channels


# -- images as sequences


def intensity_dictionary() -> Dictionary:
    """fairseq's special symbols, then ``0`` to ``255``."""
    dictionary = Dictionary()
    for intensity in range(INTENSITIES):
        dictionary.add_symbol(str(intensity))
    return dictionary


def intensity_offset(dictionary: Dictionary) -> int:
    """Index of intensity 0; intensity i has index offset + i.

    Raises:
        ImageDataError: the dictionary does not hold the intensities one after the other.
    """
    offset = int(dictionary.index("0"))
    indices = [dictionary.index(str(intensity)) for intensity in range(INTENSITIES)]
    if indices != list(range(offset, offset + INTENSITIES)):
        raise ImageDataError("the dictionary does not hold 0 to 255 in this order")
    return offset


def to_tokens(image: np.ndarray, offset: int) -> Tensor:
    """Intensities in raster-scan order, channels of a pixel together: uint8 (H, W, C) -> int64 (H*W*C,)."""
    return torch.from_numpy(image.reshape(-1).astype(np.int64)) + offset


def to_image(tokens: Tensor, shape: tuple[int, int, int], offset: int, eos: int) -> np.ndarray:
    """The inverse of :func:`to_tokens`; a final ``</s>`` is dropped.

    Args:
        tokens: int64 (H*W*C,) or (H*W*C + 1,).
        shape: (H, W, C).
        offset: index of intensity 0.
        eos: index of ``</s>``.

    Raises:
        ImageDataError: other symbols than intensities, or another number of them.
    """
    values = tokens.cpu().numpy()
    if len(values) and values[-1] == eos:
        values = values[:-1]
    if len(values) != np.prod(shape):
        raise ImageDataError(f"{len(values)} intensities are no image of {np.prod(shape)}")
    values = values - offset
    if values.min() < 0 or values.max() >= INTENSITIES:
        raise ImageDataError("the model wrote a symbol that is no intensity: train it longer")
    return values.astype(np.uint8).reshape(shape)


# -- prepared files


def write_split(folder: Path, split: str, squares: Iterable[Image], form: ImageFormat) -> int:
    """Writes the low- and the high-resolution image of every square; returns their number."""
    pairs = [
        (shrink(square, form.low, form.channels), shrink(square, form.high, form.channels))
        for square in squares
    ]
    if not pairs:
        raise ImageDataError(f"no image is left for the set '{split}'")
    for name, images in zip(("low", "high"), zip(*pairs, strict=True), strict=True):
        np.save(folder / f"{split}.{name}.npy", np.stack(images))
    return len(pairs)


def write_format(folder: Path, form: ImageFormat) -> None:
    text = json.dumps(asdict(form), indent=2)
    (folder / FORMAT_FILE).write_text(text + "\n", encoding="utf-8")


def read_format(folder: str | Path) -> ImageFormat:
    """The format of a prepared folder.

    Raises:
        ImageDataError: the folder was not prepared.
    """
    path = Path(folder, FORMAT_FILE)
    try:
        return ImageFormat(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ImageDataError(
            f"{path} is missing: prepare the images with python -m fairseq_aggdec.images.data"
        ) from None
    except (TypeError, json.JSONDecodeError) as error:
        raise ImageDataError(f"{path} is not a format file of this project ({error})") from error


def read_split(folder: str | Path, split: str, form: ImageFormat) -> tuple[np.ndarray, np.ndarray]:
    """Low- and high-resolution images of a set, mapped from disk: uint8 (N, h, w, C) and (N, H, W, C).

    Raises:
        FileNotFoundError: there is no such set (the kind of error by which fairseq finds the last shard).
        ImageDataError: the arrays do not have the size that the format names.
    """
    arrays = []
    for name, side in (("low", form.low), ("high", form.high)):
        path = Path(folder, f"{split}.{name}.npy")
        array = np.load(path, mmap_mode="r")
        if array.dtype != np.uint8 or array.shape[1:] != (side, side, form.channels):
            raise ImageDataError(
                f"{path} holds {array.dtype} images of shape {array.shape[1:]}, but {FORMAT_FILE} says "
                f"{side}x{side} with {form.channels} channels"
            )
        arrays.append(array)
    low, high = arrays
    if len(low) != len(high):
        raise ImageDataError(
            f"{folder}: set '{split}' has {len(low)} low- but {len(high)} high-resolution images"
        )
    return low, high


# -- the command


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--low-size", type=int, default=4, help="pixels a side of the input")
    parser.add_argument("--high-size", type=int, default=16, help="pixels a side of the output")
    parser.add_argument("--channels", choices=list(MODES), default="grey")
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="of the tiles or images for each of validation and test set (default: 0.1)",
    )
    parser.add_argument("--seed", type=int, default=1)
    photographs = parser.add_argument_group("without --images")
    photographs.add_argument(
        "--crops",
        type=int,
        nargs=3,
        default=[20000, 200, 200],
        metavar=("TRAIN", "VALID", "TEST"),
        help="how many squares of the photographs (default: 20000 200 200)",
    )
    folder = parser.add_argument_group("with --images")
    folder.add_argument("--images", type=Path, metavar="FOLDER", help="images of any size")
    folder.add_argument(
        "--margins",
        type=int,
        nargs=2,
        default=[0, 0],
        metavar=("ROWS", "COLUMNS"),
        help="cut off at both ends first; the paper's CelebA crops: 40 20",
    )
    folder.add_argument("--partition", type=Path, metavar="FILE", help="lines NAME and 0, 1 or 2")
    folder.add_argument("--limit", type=int, metavar="IMAGES", help="no more than these per set")
    args = parser.parse_args(arguments)
    if not 0 < args.low_size < args.high_size:
        parser.error(f"--low-size {args.low_size} must be smaller than --high-size")
    if not 0 < args.held_out < 0.5:
        parser.error(f"--held-out {args.held_out}: a share between 0 and 0.5")
    if min(args.crops) < 1:
        parser.error("--crops: every set needs at least one")
    if args.partition and not args.images:
        parser.error("--partition needs --images")
    return args


def sets_of_squares(args: argparse.Namespace) -> tuple[list[Iterable[Image]], str]:
    """The squares of each set, made while they are read, and where they come from."""
    mode, rng = MODES[args.channels], random.Random(args.seed)
    squares: list[Iterable[Image]]
    if args.images is None:
        smallest = 2 * args.high_size  # shrunk to half at least: no blur of the camera is left
        squares = [
            random_squares(parts, count, smallest, index == 0, random.Random(f"{args.seed}{index}"))
            for index, (parts, count) in enumerate(
                zip(photograph_sets(mode, args.held_out, rng), args.crops, strict=True)
            )
        ]
        return squares, f"photographs of scikit-image, seed {args.seed}, disjoint tiles per set"
    files = folder_files(args.images)
    if args.partition:
        sets, how = split_by_file(files, args.partition), f"partition {args.partition.name}"
    else:
        sets, how = split_randomly(files, args.held_out, rng), f"whole images, seed {args.seed}"
    rows, columns = args.margins
    squares = [
        (central_square(load(path, mode), (rows, columns)) for path in paths[: args.limit])
        for paths in sets
    ]
    return squares, f"folder {args.images.name}, margins {rows} {columns}, {how}"


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    logging.getLogger("PIL").setLevel(logging.WARNING)  # fairseq makes everybody log at DEBUG
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        squares, source = sets_of_squares(args)
        form = ImageFormat(
            args.low_size, args.high_size, 3 if args.channels == "rgb" else 1, source
        )
        for split, images in zip(SPLITS, squares, strict=True):
            print(split, write_split(args.output, split, images, form), "images")
        write_format(args.output, form)
    except (ImageDataError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
