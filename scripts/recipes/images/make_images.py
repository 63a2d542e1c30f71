"""Pairs of a low- and a high-resolution image, as arrays on disk.

    python -m scripts.recipes.images.make_images --output DIR  # 4x4 -> 16x16 grey, from photographs
    python -m scripts.recipes.images.make_images --output DIR --low-size 8 --high-size 32 --channels rgb \\
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
import itertools
import json
import logging
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_aggdec.startup import installing

sys.path.insert(0, str(Path(__file__).parent))  # as fairseq does for --user-dir

from aggdec_images.data import FORMAT_FILE, ImageDataError, ImageFormat

if TYPE_CHECKING:
    from PIL.Image import Image

SPLITS = ("train", "valid", "test")
MODES = {"grey": "L", "rgb": "RGB"}
PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
GREY_PHOTOGRAPHS = ("brick.png", "camera.png", "coins.png", "grass.png", "gravel.png")
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TILE = 96  # pixels of a photograph, at least


# -- squares of images


def shrink(square: Image, side: int, channels: int) -> np.ndarray:
    """Every pixel is the mean of the area that it covers: uint8 (side, side, channels)."""
    from PIL.Image import Resampling

    small = square.resize((side, side), Resampling.BOX)
    return np.asarray(small, dtype=np.uint8).reshape(side, side, channels)


def central_square(image: Image, margins: tuple[int, int]) -> Image:
    """The largest square in the middle, once (rows, columns) are cut off at both ends."""
    width, height = image.size
    rows, columns = margins
    side = min(height - 2 * rows, width - 2 * columns)
    if side < 1:
        raise ImageDataError(f"--margins {rows} {columns} leave nothing of {width}x{height} pixels")
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


def tiles(image: Image) -> list[Image]:
    """The image cut into a grid of tiles of at least ``TILE`` pixels (the whole image where it is smaller)."""
    width, height = image.size
    columns = np.linspace(0, width, max(1, width // TILE) + 1).astype(int).tolist()
    rows = np.linspace(0, height, max(1, height // TILE) + 1).astype(int).tolist()
    return [
        image.crop((left, top, right, bottom))
        for top, bottom in itertools.pairwise(rows)
        for left, right in itertools.pairwise(columns)
    ]


def random_squares(
    sources: Sequence[Image], count: int, smallest: int, mirror: bool, rng: random.Random
) -> Iterator[Image]:
    """Squares of ``smallest`` pixels or more at random places of random sources, every size equally likely.

    Args:
        mirror: half of them are mirrored.
    """
    from PIL.Image import Transpose

    for _ in range(count):
        source = rng.choice(sources)
        longest = min(source.size)
        side = rng.randint(min(smallest, longest), longest)
        left, top = (rng.randint(0, length - side) for length in source.size)
        square = source.crop((left, top, left + side, top + side))
        if mirror and rng.random() < 0.5:
            square = square.transpose(Transpose.FLIP_LEFT_RIGHT)
        yield square


# -- sets


def split_randomly(items: Sequence[Any], held_out: float, rng: random.Random) -> list[list[Any]]:
    """Training, validation and test items; the latter two get the share ``held_out`` each, at least one item."""
    shuffled = rng.sample(list(items), len(items))
    count = max(1, round(held_out * len(items)))
    return [shuffled[2 * count :], shuffled[:count], shuffled[count : 2 * count]]


def photograph_sets(mode: str, held_out: float, rng: random.Random) -> list[list[Image]]:
    """Tiles of scikit-image's photographs for the three sets; every photograph gives to all of them."""
    sets: list[list[Image]] = [[], [], []]
    for path in photograph_files(mode):
        parts = split_randomly(tiles(load(path, mode)), held_out, rng)
        for chosen, part in zip(sets, parts, strict=True):
            chosen += part
    return sets


def photograph_files(mode: str) -> list[Path]:
    """Photographs in the installed scikit-image; coloured ones only for ``RGB``."""
    try:
        import skimage.data
    except ImportError as error:
        raise ImageDataError(
            f"scikit-image is not installed: {installing.advice('skimage')}"
        ) from error
    folder = Path(skimage.data.__file__).parent
    names = PHOTOGRAPHS if mode == "RGB" else PHOTOGRAPHS + GREY_PHOTOGRAPHS
    found = [folder / name for name in names if (folder / name).exists()]
    if not found:
        raise ImageDataError("this scikit-image ships no photographs: name a folder with --images")
    return found


def folder_files(folder: Path) -> list[Path]:
    """Image files below a folder, by name."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise ImageDataError(f"--images {folder} holds no images ({', '.join(sorted(SUFFIXES))})")
    return found


def split_by_file(files: Sequence[Path], partition: Path) -> list[list[Path]]:
    """Sets by a file with lines ``NAME 0|1|2`` (training, validation, test), as CelebA has one."""
    number = {}
    for line in partition.read_text(encoding="utf-8").splitlines():
        name, _, chosen = line.strip().rpartition(" ")
        if chosen not in ("0", "1", "2"):
            raise ImageDataError(f"--partition {partition}: '{line}' is not NAME and 0, 1 or 2")
        number[name.strip()] = int(chosen)
    missing = [path.name for path in files if path.name not in number]
    if missing:
        raise ImageDataError(f"--partition {partition} does not name {missing[0]}")
    return [[path for path in files if number[path.name] == chosen] for chosen in range(3)]


def load(path: Path, mode: str) -> Image:
    """An image file in Pillow's mode ``L`` (grey, ITU-R 601) or ``RGB``."""
    try:
        import PIL.Image
    except ImportError as error:
        raise ImageDataError(f"Pillow is not installed: {installing.advice('PIL')}") from error
    try:
        with PIL.Image.open(path) as image:
            return image.convert(mode)
    except PIL.UnidentifiedImageError as error:
        raise ImageDataError(f"{path} cannot be read as an image") from error


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
