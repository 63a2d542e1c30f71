"""Pairs of a low- and a high-resolution image, prepared on disk, as sequences of intensities.

A folder holds ``{train,valid,test}.{low,high}.npy``, uint8 (images, height, width, channels), and ``format.json``,
which names sizes, channels, and how the images were made. ``scripts/recipes/images/make_images.py`` writes such
a folder, and ``--task super_resolution`` reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

INTENSITIES = 256
FORMAT_FILE = "format.json"


class ImageDataError(ValueError):
    """Images or prepared files that cannot be used. The message names the file or the option."""


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
            f"{path} is missing: prepare the images with scripts/recipes/images/make_images.py"
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
