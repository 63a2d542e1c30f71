"""Tasks that align in their own way: with or without the option, by another kind, by a function of their own."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from fairseq.tasks.translation import TranslationTask

import fairseq_aggdec
from tests.pipelines.making import assert_equal, counted
from tests.pipelines.test_ones_own import OPTIONS, Set


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Set:
    return Set(tmp_path_factory.mktemp("aligned"))


class Aligned(TranslationTask):
    """Aligns, whatever was asked for."""

    def build_generator(self, models: Any, args: Any, *more: Any, **named: Any) -> Any:
        args = Namespace(**vars(args) | {"print_alignment": "soft"})
        return super().build_generator(models, args, *more, **named)


class AlignedByOwn(Aligned):
    def build_generator(self, *args: Any, **named: Any) -> Any:
        generator = super().build_generator(*args, **named)
        generator.extract_alignment = lambda attention, *more: [("own", len(attention))]
        return generator


class NotAligned(TranslationTask):
    def build_generator(self, models: Any, args: Any, *more: Any, **named: Any) -> Any:
        return super().build_generator(models, Namespace(beam=args.beam, max_len_b=12))


@pytest.mark.parametrize("kind", [Aligned, AlignedByOwn, NotAligned])
@pytest.mark.parametrize("asked", [None, "hard"])
@pytest.mark.parametrize("beam", [1, 4])
def test_alignments_are_those_of_the_generator_of_the_task(
    given: Set, kind: Any, asked: str | None, beam: int
) -> None:
    found = []
    for task in (given.task(kind), fairseq_aggdec.adopt(given.task(kind))):
        options = OPTIONS | {"beam": beam, "print_alignment": asked}
        generator = task.build_generator(given.models, Namespace(**options))
        with counted() as taken:
            found.append(task.inference_step(generator, given.models, given.sample))
    assert bool(taken) is (kind is not AlignedByOwn)
    assert_equal(found[1], found[0])
    for own, theirs in zip(*found, strict=True):
        for one, other in zip(own, theirs, strict=True):
            assert type(one["alignment"]) is type(other["alignment"])
            assert len(one["alignment"]) == len(other["alignment"])
            assert kind is not AlignedByOwn or one["alignment"] == other["alignment"]
