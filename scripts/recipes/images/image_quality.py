"""How close images are to a reference: PSNR and SSIM (scikit-image), and what simple enlargement would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BRIGHTEST = 255
SSIM_WINDOW = 7  # pixels; scikit-image's default


@dataclass(frozen=True)
class Quality:
    """Means over a set of images.

    Attributes:
        psnr: peak signal-to-noise ratio in dB, infinite as soon as one image equals its reference.
        ssim: structural similarity, 1 for equal images.
    """

    psnr: float
    ssim: float


def quality(references: Sequence[np.ndarray], images: Sequence[np.ndarray]) -> Quality:
    """Compares each image with its reference.

    Args:
        references, images: uint8 (H, W, C) each, the same number of both.

    Raises:
        ValueError: nothing to compare, or sizes that differ.
    """
    if len(references) != len(images) or not len(references):
        raise ValueError(f"{len(references)} references for {len(images)} images")
    pairs = list(zip(references, images, strict=True))
    return Quality(
        float(np.mean([psnr(reference, image) for reference, image in pairs])),
        float(np.mean([ssim(reference, image) for reference, image in pairs])),
    )


def psnr(reference: np.ndarray, image: np.ndarray) -> float:
    """10 log10(255^2 / mean squared error) in dB, over all pixels and channels; infinite for equal images."""
    from skimage.metrics import peak_signal_noise_ratio

    with np.errstate(divide="ignore"):
        return float(peak_signal_noise_ratio(reference, image, data_range=BRIGHTEST))


def ssim(reference: np.ndarray, image: np.ndarray) -> float:
    """Structural similarity, mean over windows and channels.

    The window is 7 pixels wide, less for images that are smaller.
    """
    from skimage.metrics import structural_similarity

    side = min(reference.shape[:2])
    window = min(SSIM_WINDOW, side - 1 + side % 2)
    return float(
        structural_similarity(
            reference, image, data_range=BRIGHTEST, channel_axis=-1, win_size=window
        )
    )


def enlarge(image: np.ndarray, side: int, smooth: bool = False) -> np.ndarray:
    """uint8 (h, w, C) to (side, side, C) by nearest neighbour, or ``smooth`` by bicubic interpolation."""
    from PIL import Image

    method = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    channels = image.shape[2]
    picture = Image.fromarray(image.squeeze(2) if channels == 1 else image)
    return np.asarray(picture.resize((side, side), method)).reshape(side, side, channels)
