"""Quality of sets of images, and enlargement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.recipes.images.image_quality import enlarge, psnr, quality, ssim


def noise(seed: int, side: int, channels: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, channels), dtype=np.uint8)


@pytest.mark.parametrize("side", [12, 6, 4])
def test_equal_images_are_perfect(side: int) -> None:
    """Also where they are smaller than the usual window of SSIM."""
    image, other = noise(5, side, 3), noise(6, side, 3)
    assert psnr(image, image) == math.inf and ssim(image, image) == pytest.approx(1.0)
    assert psnr(image, other) < 12 and ssim(image, other) < 0.5


def test_quality_is_the_mean_over_images() -> None:
    references = [noise(seed, 8, 1) for seed in (1, 2)]
    images = [noise(seed, 8, 1) for seed in (3, 4)]
    found = quality(references, images)
    assert found.psnr == pytest.approx(np.mean([*map(psnr, references, images)]))
    assert found.ssim == pytest.approx(np.mean([*map(ssim, references, images)]))


def test_quality_needs_as_many_images_as_references() -> None:
    with pytest.raises(ValueError, match="2 references for 1 images"):
        quality([noise(1, 8, 1)] * 2, [noise(1, 8, 1)])
    with pytest.raises(ValueError, match="0 references"):
        quality([], [])


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([1, 3]),
    st.integers(0, 99),
)
def test_nearest_neighbour_repeats_pixels(side: int, times: int, channels: int, seed: int) -> None:
    image = noise(seed, side, channels)
    expected = image.repeat(times, axis=0).repeat(times, axis=1)
    assert np.array_equal(enlarge(image, side * times), expected)


def test_smooth_enlargement_has_steps_in_between() -> None:
    image = np.zeros((4, 4, 1), dtype=np.uint8)
    image[:, 2:] = 200
    assert set(np.unique(enlarge(image, 16))) == {0, 200}
    assert len(np.unique(enlarge(image, 16, smooth=True))) > 4
