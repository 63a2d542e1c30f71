"""Dictionaries whose special symbols stand elsewhere, or are one and the same."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask

import fairseq_aggdec
from tests.pipelines.making import assert_equal, counted
from tests.support import make_batch, make_dictionary, make_model, random_sources

TYPES = 40


def dictionary(**places: int) -> Dictionary:
    """Of :data:`TYPES` types, with the given special symbols at other places."""
    found = make_dictionary()
    for name, place in places.items():
        setattr(found, f"{name}_index", place)
    return found


def decode(target: Dictionary, adopted: bool, bos: int | None = None, **options: Any) -> Any:
    config = TranslationConfig(data="", source_lang="src", target_lang="tgt")
    task: Any = TranslationTask(config, make_dictionary(["a", "b", "c"]), target)
    model = make_model(task, 229)
    if adopted:
        fairseq_aggdec.adopt(task)
    generator = task.build_generator([model], Namespace(**{"max_len_b": 8} | options))
    sources = [[4 + token % 3 for token in row] for row in random_sources(3, 3)]
    with torch.no_grad():
        return generator.generate([model], make_batch(sources), bos_token=bos)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize(
    "places", [{"pad": TYPES - 1}, {"pad": 9, "eos": 30, "unk": 5}, {"eos": 3}, {"eos": 0}], ids=str
)
def test_other_places(places: dict[str, int], beam: int) -> None:
    target = dictionary(**places)
    with counted() as taken:
        found = decode(target, True, beam=beam)
    assert taken
    assert_equal(found, decode(target, False, beam=beam))


@pytest.mark.parametrize("beam", [1, 4])
def test_padding_is_never_written_where_it_is_the_unknown_word_too(beam: int) -> None:
    target = dictionary(pad=3)
    found = decode(target, True, beam=beam, unkpen=-9)
    assert_equal(found, decode(target, False, beam=beam, unkpen=-9))


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("places, bos", [({}, 1), ({"pad": 2}, None)], ids=["start", "end"])
def test_what_fails_in_stock_fails_alike(
    places: dict[str, int], bos: int | None, beam: int
) -> None:
    for adopted in (False, True):
        with pytest.raises(AssertionError):
            decode(dictionary(**places), adopted, bos, beam=beam)
