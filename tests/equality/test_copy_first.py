"""Two drafters in one: the verifier's greedy output, whichever of them drafts what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_aggdec.budget.account import LearnedAccount
from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.copy.input_copy import CopyDrafter
from fairseq_aggdec.drafters.copy_first import CopyFirst
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.methods import gad as gad_method
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import BlockDraft, Draft, Verdict, grafted
from scripts.forced_drafts import KINDS, RIGHT, ForcedDrafter
from tests.support import (
    assert_same,
    generate,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)

EOS = 2
TYPES = len(make_task().target_dictionary)

PLAIN: Any = SimpleNamespace(compiled=False)  # a verifier whose windows are no calls of the kernels


def write(path: Path, texts: list[list[int]]) -> str:
    dictionary = make_task().target_dictionary
    lines = [" ".join(dictionary[token] for token in tokens if token > 3) for tokens in texts]
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def doctored(outputs: list[list[int]], how: str) -> list[list[int]]:
    """Texts to copy: right for some sentences only, to their middle only, or for none."""
    if how == "some":
        return [tokens if row % 2 else [] for row, tokens in enumerate(outputs)]
    if how == "half":
        return [[*tokens[: len(tokens) // 2], 5, 5, 9] for tokens in outputs]
    return [[token % 7 + 4 for token in tokens] for tokens in outputs]


@pytest.mark.parametrize("how", ["some", "half", "none"])
@pytest.mark.parametrize("decoding", ["gad", "blockwise"])
@pytest.mark.parametrize("rows", [1, 7])
def test_output_is_the_verifiers(decoding: str, rows: int, how: str, tmp_path: Path) -> None:
    verifier, drafter = make_model(make_task(), 2), None
    chosen: dict[str, Any] = {}
    if decoding == "gad":
        chosen = {"drafter_path": "drafter.pt"}
        drafter = make_model(make_task(), 2, "nar_drafter", block_size=5, slot_chain=True)
    else:
        verifier = make_model(make_task(), 2, "blockwise_transformer", block_size=4)
    sample = make_batch(random_sources(3, rows))
    prefix = torch.tensor([[5, 6, 7], *[[9, 1, 1]] * (rows - 1)])
    for options in ({}, {"min_len": 6, "max_len_b": 9}):
        expected = stock([verifier], sample, prefix, **options)
        outputs = [hypothesis["tokens"].tolist() for hypothesis in expected]
        texts = write(tmp_path / "texts", doctored(outputs, how))
        for text in ({"draft_from": "file", "draft_file": texts}, {"draft_from": "source"}):
            for nodes in ({}, {"draft_nodes": "9"}, {"draft_nodes": "auto"}):
                task = make_task(decoding, **chosen, **text, **nodes)
                with mock.patch.object(gad_method, "load_drafter", lambda *_: drafter):
                    assert_same(generate(task, [verifier], sample, prefix, **options), expected)


@pytest.mark.parametrize("nodes", ["9", "auto"])
def test_a_drafter_beside_a_copy_learns_what_its_own_tokens_are_worth(
    nodes: str, tmp_path: Path
) -> None:
    verifier = make_model(make_task(), 2)
    drafter = make_model(make_task(), 2, "nar_drafter", block_size=5, slot_chain=True)
    samples = [make_batch(random_sources(seed, 1)) for seed in range(5)]
    expected = [stock([verifier], sample) for sample in samples]
    outputs = [hypothesis["tokens"].tolist() for (hypothesis,) in expected]
    for number, sample in enumerate(samples):
        sample["id"] = torch.tensor([number])
    text = {
        "draft_from": "file",
        "draft_file": write(tmp_path / "texts", doctored(outputs, "half")),
    }
    task = make_task("gad", drafter_path="drafter.pt", draft_nodes=nodes, **text)
    with mock.patch.object(gad_method, "load_drafter", lambda *_: drafter):
        generator = task.build_generator([verifier], generation_options())
    for sample, (theirs,) in zip(samples, expected, strict=True):
        ((ours, *_),) = generator.generate([verifier], sample)
        assert_same([ours], [theirs])
    other = generator.drafter.other
    assert not other.account.learned
    # Of every draft it is known whether its first tokens stood.
    assert other.trees.seen > 0
    assert sum(other.trees.calibration.scales[0].reached) >= other.trees.seen


class Texts(CopyDrafter):
    """Copies texts that are handed over."""

    def __init__(self, texts: list[list[int]]):
        super().__init__(EOS, "aligned")
        self.given = texts

    def copied(self, sample: Any) -> list[list[int]]:
        return self.given


def steps(drafter: Any, verifier: Any, sample: dict[str, Any], expected: list[Any]) -> int:
    task = make_task("iad")
    with mock.patch.object(task, "build_drafter", return_value=drafter):
        found = generate(task, [verifier], sample)
    assert_same(found, expected)
    return sum(hypothesis["steps"] for hypothesis in found)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("how", ["some", "half", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_made_to_break_it(kind: str, how: str, rows: int) -> None:
    verifier, sample = make_model(make_task(), 5), make_batch(random_sources(4, rows))
    expected = stock([verifier], sample)
    outputs = [hypothesis["tokens"].tolist() for hypothesis in expected]
    texts = [text[:-1] if text[-1:] == [EOS] else text for text in doctored(outputs, how)]
    both = CopyFirst(Texts(texts), ForcedDrafter(kind, 4, TYPES, dict(enumerate(outputs))))
    assert steps(both, verifier, sample, expected) <= sum(map(len, outputs))


def test_both_together_take_fewer_iterations_than_either() -> None:
    """The copy is right up to the middle of each sentence, the other knows the next two tokens."""
    verifier, sample = make_model(make_task(), 5), make_batch(random_sources(4, 6))
    expected = stock([verifier], sample)
    outputs = dict(enumerate(hypothesis["tokens"].tolist() for hypothesis in expected))
    texts = [[*tokens[: len(tokens) // 2], 7, 9] for tokens in outputs.values()]
    alone = [
        steps(Texts(texts), verifier, sample, expected),
        steps(ForcedDrafter(RIGHT, 2, TYPES, outputs), verifier, sample, expected),
    ]
    both = CopyFirst(Texts(texts), ForcedDrafter(RIGHT, 2, TYPES, outputs))
    assert steps(both, verifier, sample, expected) < min(alone)


class Fixed(Drafter):
    """Says the same in every iteration; remembers what it was told."""

    def __init__(self, draft: Draft):
        self.said, self.calls = draft, 0

    def start(self, *_: Any) -> None:
        pass

    def draft(self, state: DecodeState) -> Draft:
        self.calls += 1
        return self.said


@pytest.mark.parametrize(
    ("other", "tokens", "parents"),
    [
        (Draft([[4], [5, 6]]), [5, 6], [0, 1]),
        (Draft([[4], [5, 6]], [[0], [0, 0]]), [5, 6], [0, 0]),
        (BlockDraft(torch.tensor([[4, 8], [5, 6]]), [1, 2]), [5, 6], [0, 1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rows_are_mixed(other: Draft, tokens: list[int], parents: list[int]) -> None:
    state = DecodeState([Row(i, [EOS], end=9, floor=0) for i in (0, 1)], EOS, torch.device("cpu"))
    fixed = Fixed(other)
    both = CopyFirst(Texts([[7, 8, 9], []]), fixed)
    both.start({}, PLAIN, state)
    draft = both.draft(state)
    assert [list(row) for row in draft.rows()] == [[7, 8, 9], tokens]
    assert [list(way) for way in draft.ways()] == [[0, 1, 2], parents]
    assert (fixed.calls, both.sizes, both.alone) == (1, [0, 2], [True, False])
    for _ in range(50):  # it goes so far that no copy of three tokens is better
        both.stood.add(4.0)
    draft = both.draft(state)  # of the first the copy is a second branch
    assert (fixed.calls, both.sizes, both.alone) == (2, [1, 2], [False, False])
    assert [list(row) for row in draft.rows()] == [[4, 7, 8, 9], tokens]
    assert [list(way) for way in draft.ways()] == [[0, 0, 2, 3], parents]
    both.stood.add(-500.0)
    both.copy.texts[1] = both.copy.texts[0]
    assert [list(row) for row in both.draft(state).rows()] == [[7, 8, 9]] * 2
    assert (fixed.calls, both.sizes, both.alone) == (2, [0, 0], [True, True])


def test_where_nothing_is_copied_the_other_drafts_alone() -> None:
    state = DecodeState([Row(i, [EOS], end=9, floor=0) for i in (0, 1)], EOS, torch.device("cpu"))
    fixed = Fixed(Draft([[4], [5, 6]]))
    both = CopyFirst(Texts([[], []]), fixed)
    both.start({}, PLAIN, state)
    assert both.draft(state) is fixed.said
    assert (fixed.calls, both.sizes, both.alone) == (1, None, [False, False])


@pytest.mark.parametrize(
    ("path", "tokens", "parents"),
    [
        ([], [4, 5, 6], [0, 0, 1]),
        ([4, 6], [4, 5, 6], [0, 0, 1]),
        ([4, 7, 8], [4, 5, 6, 7, 8], [0, 0, 1, 1, 4]),
        ([5, 6], [4, 5, 6, 6], [0, 0, 1, 2]),
        ([9], [4, 5, 6, 9], [0, 0, 1, 0]),
    ],
)
def test_a_path_is_grafted_where_it_leaves_the_tree(
    path: list[int], tokens: list[int], parents: list[int]
) -> None:
    assert grafted([4, 5, 6], [0, 0, 1], path) == (tokens, parents)


def test_a_copy_that_was_not_chosen_is_judged_too() -> None:
    """By what was written: two tokens of the first, none of the second, which is shorter than what was written. And
    the other by its own tokens, of which the first of a tree's second branch stands."""
    state = DecodeState([Row(i, [EOS], end=9, floor=0) for i in (0, 1)], EOS, torch.device("cpu"))
    both = CopyFirst(Texts([[7, 8, 9], [3]]), mock.Mock(spec=ForcedDrafter))
    both.start({}, PLAIN, state)
    both.copied, both.alone, both.sizes = [[7, 8, 9], [3]], [False, True], [3, 0]
    # Of the first a tree, 6 7 and 9 behind 7, and behind the latter 8 of the copy; of the second the copy.
    rows = Draft([[6, 7, 9, 8], [3]], [[0, 0, 2, 2], [0]])
    found = verdict([[7, 8, 5], [4]], [2, 0])
    found.window = rows.window([4, 4], [0, 0], torch.device("cpu"))
    found.paths = [[0, 2, 4], [5]]
    with mock.patch.object(both.copy.account, "observe") as told:
        both.copy.account.resting = False
        both.observe(found, state)
    told_to_other = both.other.observe.call_args.args[0]
    assert (told_to_other.own, told_to_other.sizes) == (False, [3, 0])
    told.assert_called_once_with([3, 1], [2, 0])
    assert (both.stood.sum, both.stood.weight) == (1.0, 1.0)
    assert both.stands == [False, False]
    both.copied, both.alone, both.sizes = [[7, 8], [4, 5, 6]], [False, False], None
    both.observe(verdict([[7, 8, 5], [4, 5]], [2, 0]), state)
    told_to_other = both.other.observe.call_args.args[0]
    assert (told_to_other.own, told_to_other.sizes) == (True, None)
    assert both.stands == [True, True]
    both.keep_rows([1])
    assert both.stands == [True]


@pytest.mark.parametrize("decoding", ["gad", "blockwise"])
def test_nothing_is_learned_from_a_draft_that_was_not_read(decoding: str) -> None:
    chooser: Any = LearnedAccount(5)
    chooser.observe = mock.Mock()
    drafter: Any = BlockwiseHeadsDrafter(chooser)
    if decoding == "gad":
        model = make_model(make_task(), 2, "nar_drafter", block_size=5)
        drafter = NarDrafter(model, chooser)
    state = DecodeState([Row(i, [EOS], end=9, floor=0) for i in (0, 1)], EOS, torch.device("cpu"))
    found = verdict([[7, 8, 5], [4]], [2, 0])
    found.window.widths = [1, 1]
    found.paths, found.said = [[0], [1]], SimpleNamespace(features=[torch.zeros(2, 3)])
    for own, calls in ((False, 0), (True, 1)):
        drafter.clock.begin()
        drafter.observe(replace(found, own=own), state)
        assert chooser.observe.call_count == calls


def verdict(emitted: list[list[int]], accepted: list[int]) -> Any:
    window: Any = SimpleNamespace()
    return Verdict(window, [9, 9], accepted, emitted)


def test_refusals() -> None:
    verifier = make_model(make_task(), 2, "blockwise_transformer", block_size=4)
    for kind in ("interleaved", "lattice"):
        with pytest.raises(ValueError, match=f"--draft-from {kind}"):
            generate(make_task("blockwise", draft_from=kind), [verifier], make_batch([[5]]))
    with pytest.raises(ValueError, match="--draft-file"):
        generate(make_task("blockwise", draft_from="file"), [verifier], make_batch([[5]]))
