"""PSNR, SSIM and enlargement against plain references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.recipes.images.image_quality import enlarge, psnr, quality, ssim


def noise(seed: int, side: int, channels: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, channels), dtype=np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_psnr_is_the_formula(channels: int) -> None:
    first, second = noise(1, 9, channels), noise(2, 9, channels)
    total = 0.0
    for one, other in zip(first.flatten().tolist(), second.flatten().tolist(), strict=True):
        total += (one - other) ** 2
    expected = 10 * math.log10(255**2 / (total / first.size))
    assert psnr(first, second) == pytest.approx(expected)


def plain_ssim(first: np.ndarray, second: np.ndarray, window: int) -> float:
    """The published formula with a uniform window and unbiased (co)variances, one channel."""
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    found = []
    for top in range(first.shape[0] - window + 1):
        for left in range(first.shape[1] - window + 1):
            x = first[top : top + window, left : left + window].astype(float).ravel()
            y = second[top : top + window, left : left + window].astype(float).ravel()
            (vx, cov), (_, vy) = np.cov(x, y)
            mx, my = x.mean(), y.mean()
            found.append(
                (2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
            )
    return float(np.mean(found))


@pytest.mark.parametrize(("side", "window"), [(12, 7), (7, 7), (6, 5), (5, 5), (4, 3)])
def test_ssim_is_the_formula_on_all_windows_and_channels(side: int, window: int) -> None:
    first, second = noise(3, side, 3), noise(4, side, 3)
    second = (first // 2 + second // 2).astype(np.uint8)
    expected = np.mean([plain_ssim(first[..., c], second[..., c], window) for c in range(3)])
    assert ssim(first, second) == pytest.approx(expected)


def test_equal_images_are_perfect() -> None:
    image = noise(5, 8, 1)
    assert psnr(image, image) == math.inf
    assert ssim(image, image) == pytest.approx(1.0)


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
