"""Folders of tables: memory-mapped, replaced while they are open, made of other data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fairseq_aggdec.lattice.candidates import (
    CandidateModel,
)
from tests.support import make_dictionary
from tests.unit.test_candidates import MONOTONE, PAD, TYPES, make_model

# -- folders of tables


def test_a_folder_gives_the_same_candidates_memory_mapped(tmp_path: Path) -> None:
    dictionary = make_dictionary([f"w{i}" for i in range(TYPES - 4)])
    model = make_model(MONOTONE)
    model.save(tmp_path, dictionary, dictionary, {"command": "here"})
    opened = CandidateModel.open(tmp_path, dictionary, dictionary)
    assert (opened.length, opened.weights, opened.special) == (
        model.length,
        model.weights,
        model.special,
    )
    args = torch.tensor([[4, 5, 6]]), torch.tensor([3]), 4, 5
    words = model.words(*args, "interpolated")
    for one, two in zip(words, opened.words(*args, "interpolated"), strict=True):
        assert torch.equal(one, two)


def test_open_tables_outlive_new_ones(tmp_path: Path) -> None:
    dictionary = make_dictionary([f"w{i}" for i in range(TYPES - 4)])
    make_model(MONOTONE).save(tmp_path, dictionary, dictionary, {})
    opened = CandidateModel.open(tmp_path, dictionary, dictionary)
    make_model([([4], [8], [(0, 0)])]).save(tmp_path, dictionary, dictionary, {})
    tokens = [
        model.words(torch.tensor([[4]]), torch.tensor([1]), 1, 2)[0].tolist()
        for model in (opened, CandidateModel.open(tmp_path, dictionary, dictionary))
    ]
    assert tokens == [[[[7, 10]]], [[[8, PAD]]]]
    assert not list(tmp_path.glob("*.partial"))


def test_tables_of_other_data_are_refused(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(50)]
    dictionary, other = make_dictionary(words), make_dictionary(words[::-1])
    with pytest.raises(FileNotFoundError, match=r"no lattice tables; aggdec lattice-tables"):
        CandidateModel.open(tmp_path, dictionary, dictionary)
    make_model(MONOTONE).save(tmp_path, dictionary, other, {})
    CandidateModel.open(tmp_path, dictionary, other)
    with pytest.raises(ValueError, match="another source dictionary"):
        CandidateModel.open(tmp_path, other, other)
    with pytest.raises(ValueError, match="another target dictionary"):
        CandidateModel.open(tmp_path, dictionary, dictionary)
    header = tmp_path / "header.json"
    header.write_text(header.read_text().replace('"format": 1', '"format": 0'))
    with pytest.raises(ValueError, match="has format 0, this version reads 1"):
        CandidateModel.open(tmp_path, dictionary, other)
    header.write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        CandidateModel.open(tmp_path, dictionary, other)
