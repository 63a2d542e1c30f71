"""From image files to the squares of three sets: photographs of scikit-image in tiles, or whole images of a folder."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_aggdec import installing

if TYPE_CHECKING:
    from PIL.Image import Image

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
GREY_PHOTOGRAPHS = ("brick.png", "camera.png", "coins.png", "grass.png", "gravel.png")
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TILE = 96  # pixels of a photograph, at least


class ImageDataError(ValueError):
    """Images or prepared files that cannot be used. The message names the file or the option."""


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
