"""Images as sequences, and the sets that are made of photographs or of a folder."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from aggdec_images.data import (
    INTENSITIES,
    ImageDataError,
    ImageFormat,
    intensity_dictionary,
    intensity_offset,
    read_format,
    read_split,
    to_image,
    to_tokens,
)
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scripts.recipes.images.make_images import (
    central_square,
    main,
    photograph_sets,
    shrink,
    split_randomly,
    tiles,
)

EOS = 2


def noise(seed: int, height: int, width: int, channels: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def save_image(path: Path, array: np.ndarray) -> None:
    Image.fromarray(array.squeeze()).save(path)


# -- sequences


def test_intensities_are_consecutive_behind_the_special_symbols() -> None:
    dictionary = intensity_dictionary()
    offset = intensity_offset(dictionary)
    assert offset == dictionary.nspecial
    assert len(dictionary) == offset + INTENSITIES
    assert all(dictionary[offset + i] == str(i) for i in range(INTENSITIES))


def test_another_dictionary_is_refused() -> None:
    with pytest.raises(ImageDataError, match="0 to 255"):
        intensity_offset(Dictionary())


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 3]), st.integers(0, 99))
def test_tokens_are_rows_of_pixels_of_channels(
    height: int, width: int, channels: int, seed: int
) -> None:
    image = noise(seed, height, width, channels)
    expected = [
        4 + int(image[row, column, channel])
        for row in range(height)
        for column in range(width)
        for channel in range(channels)
    ]
    tokens = to_tokens(image, 4)
    assert tokens.tolist() == expected
    assert tokens.dtype == torch.int64
    ended = torch.cat([tokens, torch.tensor([EOS])])
    for sequence in (tokens, ended):
        assert np.array_equal(to_image(sequence, image.shape, 4, EOS), image)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([4, 5, 6], "3 intensities are no image of 4"),
        ([4, 5, 6, EOS], "3 intensities are no image of 4"),
        ([4, 5, 3, 6, EOS], "no intensity"),
        ([4, 5, 260, 6, EOS], "no intensity"),
    ],
)
def test_what_is_no_image_is_refused(tokens: list[int], message: str) -> None:
    with pytest.raises(ImageDataError, match=message):
        to_image(torch.tensor(tokens), (2, 2, 1), 4, EOS)


# -- squares


@pytest.mark.parametrize("channels", [1, 3])
def test_a_small_pixel_is_the_mean_of_its_area(channels: int) -> None:
    array = noise(7, 12, 12, channels)
    square = Image.fromarray(array.squeeze())
    expected = array.reshape(4, 3, 4, 3, channels).mean(axis=(1, 3))
    # Pillow rounds twice, once for the rows and once for the columns.
    assert np.abs(shrink(square, 4, channels) - expected).max() <= 1


def test_the_papers_celeba_square() -> None:
    image = Image.fromarray(noise(1, 218, 178, 3))
    square = central_square(image, (40, 20))
    assert square.size == (138, 138)
    assert square.tobytes() == image.crop((20, 40, 158, 178)).tobytes()


@given(st.integers(1, 400), st.integers(1, 400))
def test_tiles_cover_every_pixel_once(width: int, height: int) -> None:
    found = tiles(Image.new("L", (width, height)))
    assert sum(tile.width * tile.height for tile in found) == width * height
    assert min(tile.width for tile in found) >= min(width, 96)
    assert min(tile.height for tile in found) >= min(height, 96)


# -- sets


@given(st.integers(3, 80), st.sampled_from([0.05, 0.1, 0.3]), st.integers(0, 9))
def test_sets_share_nothing_and_lose_nothing(items: int, held_out: float, seed: int) -> None:
    train, valid, test = split_randomly(range(items), held_out, random.Random(seed))
    assert sorted(train + valid + test) == list(range(items))
    assert len(valid) == len(test) == max(1, round(held_out * items))


def test_photograph_tiles_are_in_one_set() -> None:
    sets = [
        {tile.tobytes() for tile in part} for part in photograph_sets("RGB", 0.1, random.Random(1))
    ]
    assert all(sets)
    assert not (sets[0] & sets[1] or sets[0] & sets[2] or sets[1] & sets[2])


def test_the_command_prepares_photographs(tmp_path: Path) -> None:
    arguments = [
        "--low-size",
        "3",
        "--high-size",
        "6",
        "--channels",
        "rgb",
        "--crops",
        "5",
        "2",
        "1",
    ]
    main(["--output", str(tmp_path / "a"), *arguments])
    main(["--output", str(tmp_path / "b"), *arguments])
    form = read_format(tmp_path / "a")
    assert (form.low, form.high, form.channels) == (3, 6, 3)
    assert (form.source_length, form.target_length, form.high_shape) == (27, 108, (6, 6, 3))
    for split, count in (("train", 5), ("valid", 2), ("test", 1)):
        low, high = read_split(tmp_path / "a", split, form)
        assert low.shape == (count, 3, 3, 3)
        assert high.shape == (count, 6, 6, 3)
        halved = high.reshape(count, 3, 2, 3, 2, 3).mean(axis=(2, 4))
        assert np.abs(halved - low).mean() < 8  # the same place of the photograph
        again = read_split(tmp_path / "b", split, form)
        assert np.array_equal(low, again[0])
        assert np.array_equal(high, again[1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    images.mkdir()
    for index in range(6):
        save_image(images / f"{index}.png", np.full((30, 20, 3), 40 * index, dtype=np.uint8))
    return images


def brightness(folder: Path, split: str) -> list[int]:
    low, _ = read_split(folder, split, read_format(folder))
    return low[:, 0, 0, 0].tolist()


def test_the_command_takes_a_folder_and_a_partition(folder: Path, tmp_path: Path) -> None:
    partition = tmp_path / "partition.txt"
    partition.write_text("".join(f"{i}.png {i % 3}\n" for i in range(6)), encoding="utf-8")
    arguments = ["--output", str(tmp_path), "--images", str(folder), "--partition", str(partition)]
    main([*arguments, "--margins", "3", "2"])
    assert [brightness(tmp_path, split) for split in ("train", "valid", "test")] == [
        [0, 120],
        [40, 160],
        [80, 200],
    ]
    main([*arguments, "--limit", "1"])
    assert brightness(tmp_path, "train") == [0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--images", "{tmp}/empty"], "holds no images"),
        (["--images", "{tmp}/bad"], "bad/0.png cannot be read as an image"),
        (["--images", "{tmp}/images", "--margins", "15", "0"], "--margins 15 0 leave nothing"),
        (["--images", "{tmp}/images", "--partition", "{tmp}/short"], "does not name 1.png"),
        (["--images", "{tmp}/images", "--partition", "{tmp}/wrong"], "'0.png 7' is not NAME"),
    ],
)
def test_unusable_folders_are_named(
    folder: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "0.png").write_text("no image", encoding="utf-8")
    for name in ("1", "2"):
        (tmp_path / "bad" / f"{name}.png").write_bytes((folder / "1.png").read_bytes())
    (tmp_path / "short").write_text("0.png 1\n", encoding="utf-8")
    (tmp_path / "wrong").write_text("0.png 7\n", encoding="utf-8")
    given_options = [option.format(tmp=tmp_path) for option in options]
    with pytest.raises(SystemExit) as stopped:
        main(["--output", str(tmp_path / "out"), *given_options])
    assert message in str(stopped.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--low-size", "16"], "--low-size 16 must be smaller"),
        (["--held-out", "0.5"], "--held-out 0.5"),
        (["--crops", "5", "0", "1"], "--crops"),
        (["--partition", "list.txt"], "--partition needs --images"),
    ],
)
def test_bad_options_are_named(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path), *options])
    assert message in capsys.readouterr().err


# -- prepared files


def test_prepared_files_are_checked(tmp_path: Path) -> None:
    form = ImageFormat(2, 4, 1)
    with pytest.raises(ImageDataError, match=r"format\.json is missing: prepare"):
        read_format(tmp_path)
    (tmp_path / "format.json").write_text(json.dumps({"height": 3}), encoding="utf-8")
    with pytest.raises(ImageDataError, match="not a format file"):
        read_format(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_split(tmp_path, "train", form)
    np.save(tmp_path / "train.low.npy", noise(1, 6, 4, 1).reshape(6, 2, 2, 1))
    np.save(tmp_path / "train.high.npy", noise(1, 5, 48, 1).reshape(5, 4, 4, 3))
    with pytest.raises(ImageDataError, match=r"train\.high\.npy holds uint8 images"):
        read_split(tmp_path, "train", form)
    np.save(tmp_path / "train.high.npy", noise(1, 5, 16, 1).reshape(5, 4, 4, 1))
    with pytest.raises(ImageDataError, match="6 low- but 5 high-resolution"):
        read_split(tmp_path, "train", form)
