"""``--decoding beam --draft-from heads``: stock's n-best lists, whatever the block heads expect."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairseq_aggdec.drafters.head_tables import HeadTables
from fairseq_aggdec.search.beam.budget import LOOK_AGAIN
from fairseq_aggdec.search.beam.library import TableReader
from tests.equality.test_beam import assert_same_nbest, ours, stock
from tests.equality.test_blockwise import chained, headed
from tests.rule_cases import CASES, RuleCase
from tests.support import (
    assert_same,
    generate,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
)

PAD, EOS = 1, 2
RULES = [
    case for case in CASES if case.model == "ending" and case.start is None and max(case.beams) > 1
]


def foretold(model: Any, sample: Any, prefix: Any = None, **options: Any) -> Any:
    names = ("draft_tokens", "draft_vocabulary", "int8")
    chosen = {name: options.pop(name) for name in names if name in options}
    task = make_task("beam", draft_from="heads", **chosen)
    return ours([model], sample, prefix, task, **options)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("beam", [2, 5])
@pytest.mark.parametrize("identity", [False, True])
def test_random_heads(identity: bool, beam: int, rows: int) -> None:
    model = headed("per-head" if identity else "dense", identity)
    for seed in range(3):
        sample = make_batch(random_sources(seed, rows))
        assert_same_nbest(foretold(model, sample, beam=beam), stock([model], sample, beam=beam))


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.name)
def test_rules(case: RuleCase) -> None:
    sample, model, prefix = make_batch(case.sources), headed(), case.call()["prefix_tokens"]
    options = case.generation(3)
    assert_same_nbest(
        foretold(model, sample, prefix, **options), stock([model], sample, prefix, **options)
    )


@pytest.mark.parametrize(
    "more", [{"draft_tokens": "2"}, {"draft_vocabulary": 9}, {"int8": "drafts"}]
)
def test_how_heads_are_read_changes_nothing(more: dict[str, Any]) -> None:
    sample, model = make_batch(random_sources(26, 4)), chained()
    assert_same_nbest(foretold(model, sample, beam=4, **more), stock([model], sample, beam=4))


def test_broken_heads_expect_nothing() -> None:
    sample, model = make_batch(random_sources(27, 4)), headed(identity=True)
    with torch.no_grad():
        model.decoder.heads.contract.weight.fill_(torch.nan)
    assert_same_nbest(foretold(model, sample, beam=3), stock([model], sample, beam=3))


def test_tables_are_what_the_heads_say_behind_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the model's own forward pass: head 2 speaks of one token behind the prefix that is read, 3 of two."""
    model, sample = headed(), make_batch(random_sources(28, 3))
    seen, found = set(), []
    take, tables = TableReader._take, HeadTables.tables

    def taken(self: TableReader, search: Any, asked: Any, window: Any) -> Any:
        found.append((search, list(self.rows)))
        return take(self, search, asked, window)

    def watched(self: HeadTables, verifier: Any, places: Any, rows: Any, *rest: Any) -> Any:
        told = tables(self, verifier, places, rows, *rest)
        search, alive = found[-1]
        trees = search.trees()
        for row, own in zip(rows, told, strict=True):
            tree = trees[alive[row]]
            seen.add(tree.index)
            best = tree.active[0][1]
            words = tree.tree.words(best)[:-1]
            expected = plain_tables(model, sample, tree.index, words)
            assert own[:, 3:6].int().tolist() == expected
        return told

    monkeypatch.setattr(HeadTables, "tables", watched)
    monkeypatch.setattr(TableReader, "_take", taken)
    task = make_task("beam", draft_from="heads")
    options = {"beam": 2, "max_len_b": 12}
    assert_same_nbest(
        ours([model], sample, task=task, **options), stock([model], sample, **options)
    )
    assert seen == {0, 1, 2}
    assert task.counters.nodes > task.counters.nodes_used


@torch.no_grad()
def plain_tables(model: Any, sample: Any, index: int, words: list[int]) -> list[list[int]]:
    """The three likeliest tokens of heads 2 to 4 behind ``words``."""
    source = {key: value[index : index + 1] for key, value in sample["net_input"].items()}
    source["prev_output_tokens"] = torch.tensor([[EOS, *words]])
    heads = model(**source, heads=range(1, 4))[0, -1]  # (3, C)
    log_probs = model.decoder.output_projection(heads).log_softmax(-1)
    log_probs[:, PAD] = -torch.inf
    return log_probs.topk(3).indices.tolist()


def test_heads_that_are_always_wrong_are_seldom_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    tables = HeadTables.tables

    def watched(*given: Any) -> Any:
        read.append(generator.budget.batches)
        return tables(*given)

    monkeypatch.setattr(HeadTables, "tables", watched)
    sample, model = make_batch(random_sources(30, 3)), headed()
    task = make_task("beam", draft_from="heads")
    generator: Any = task.build_generator([model], generation_options(beam=2))
    for _ in range(LOOK_AGAIN + 1):
        task.inference_step(generator, [model], sample)
        for chance in generator.budget.foretold:
            chance.sum = 0.0
    assert set(read) == {1, LOOK_AGAIN + 1}


def test_beam_1_is_blockwise_decoding() -> None:
    sample, model = make_batch(random_sources(29, 4)), headed()
    task = make_task("beam", draft_from="heads", draft_tokens="all")
    found = generate(task, [model], sample, beam=1)
    assert_same(found, generate(make_task("blockwise"), [model], sample))
    assert task.counters.drafted > 0


def test_what_it_needs() -> None:
    model, sample = make_model(make_task(), 3), make_batch([[5, 6]])
    with pytest.raises(ValueError, match="--draft-from heads needs a model with block heads"):
        foretold(model, sample, beam=2)
    two = make_task("beam", draft_from="heads")
    with pytest.raises(ValueError, match="--draft-from heads drafts with the heads of one model"):
        ours([headed(), headed()], sample, task=two, beam=2)
    with pytest.raises(ValueError, match="--draft-from heads does not go with --decoding iad"):
        generate(make_task("iad", draft_from="heads"), [model], sample)
