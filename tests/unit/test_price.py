"""What calls cost: read from an option, or timed once for a model; drafts are as long as pays by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairseq_aggdec.budget.price import CallPrice, parse_price, usual_price
from fairseq_aggdec.drafters.proposer import Proposer
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.methods import gad as gad_method
from fairseq_aggdec.search.beam.budget import USUAL_OF_SEARCH, Budget
from fairseq_aggdec.search.greedy import prices
from tests.equality.test_gad import drafter
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)

FREE, DEAR = (
    "1:1,16:1.001",
    "1:1,2:100",
)  # further tokens of a call cost nothing, or more than they can gain
needs_library = pytest.mark.skipif(kernels() is None, reason="no compiled kernels")


def test_a_price_is_lines_between_points() -> None:
    price = parse_price("1:1,4:2.5,8:3,draft:0.5,slot:0.25")
    assert price == CallPrice(((1, 1), (4, 2.5), (8, 3)), 0.5, 0.25)
    assert [price.call(n) for n in (1, 2, 4, 6, 8, 16)] == [1.0, 1.5, 2.5, 2.75, 3.0, 4.0]
    assert price.drafting(2, 3, 4) == 3.0 + 0.5 + 0.25 * 2 * 4
    assert parse_price(str(price)) == price
    struct = price.struct
    assert (struct.count, struct.draft, struct.slot) == (3, 0.5, 0.25)
    assert (struct.places[:3], struct.costs[:3]) == ([1, 4, 8], [1, 2.5, 3])


def test_the_usual_price_counts_tokens() -> None:
    assert usual_price("kernels").call(7) - usual_price("kernels").call(3) == 4
    assert usual_price("kernels").beside(8) == usual_price("kernels").call(0) == 5


@pytest.mark.parametrize(
    "said",
    [
        "fast",
        "1:1",
        "1:1,1:2",
        "4:1,2:2",
        "1:2,4:1",
        "1:-1,4:1",
        "1:1,4:nan",
        "1:1,4:2,sloth:3",
        "1:0,4:1",
    ],
)
def test_what_is_no_price_is_refused_in_a_sentence(said: str) -> None:
    with pytest.raises(ValueError, match=f"--call-price {said}: say measured, usual, or what"):
        parse_price(said)


def decoded(method: str, model: Any, seeds: range = range(2), **options: Any) -> Any:
    """The generator behind batches whose outputs are those of stock."""
    task = make_task(method, **options)
    generator = task.build_generator([model], generation_options())
    for seed in seeds:
        sample = make_batch(random_sources(seed, 3))
        found = [own for (own,) in task.inference_step(generator, [model], sample)]
        assert_same(found, stock([model], sample))
    return task.counters


@pytest.mark.parametrize("method", ["gad", "iad"])
def test_drafts_are_as_long_as_pays(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafter())
    more = {"drafter_path": "drafter.pt"} if method == "gad" else {}
    model = make_model(make_task(), 5)
    drafted = {
        price: decoded(method, model, call_price=price, draft_tokens="auto", **more).drafted
        for price in (FREE, DEAR)
    }
    assert drafted[DEAR] == 0 < drafted[FREE]


@needs_library
@pytest.mark.parametrize("method", ["gad", "iad", "beam"])
def test_a_model_is_timed_once(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, timed = make_model(make_task(), 5), []
    measure = prices.measure

    def noted(*given: Any) -> CallPrice:
        timed.append(measure(*given))
        return timed[-1]

    along_directions, rehearsing = [], Proposer.rehearsing

    @contextmanager
    def rehearsed(self: Proposer) -> Iterator[None]:
        with rehearsing(self):
            along_directions.append(self.narrow is not None)
            yield

    monkeypatch.setattr(Proposer, "rehearsing", rehearsed)
    monkeypatch.setattr("fairseq_aggdec.drafters.proposer.FEWEST_TYPES", 1)
    monkeypatch.setattr(prices, "measure", noted)
    monkeypatch.setattr(prices, "TIME", 0.0)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafter())
    more = {"drafter_path": "drafter.pt", "draft_tokens": "auto"} if method == "gad" else {}
    if method == "beam":
        task = make_task(method, call_price="measured")
        generator = task.build_generator([model], generation_options(beam=2))
        for seed in range(2):
            task.inference_step(generator, [model], make_batch(random_sources(seed, 3)))
    else:
        decoded(method, model, call_price="measured", **more)
    (price,) = timed
    costs = [cost for _, cost in price.points]
    assert costs[0] > 0 and costs == sorted(costs)
    assert (price.draft + price.slot > 0) == (method == "gad")
    assert along_directions == [True] * (method == "gad")


def test_where_lengths_decide_what_is_written_no_clock_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prices, "measure", lambda *given: pytest.fail("timed"))
    task = make_task("iad", call_price="measured", acceptance="top-beta:2:1.0")
    model = make_model(task, 5)
    generator = task.build_generator([model], generation_options())
    task.inference_step(generator, [model], make_batch(random_sources(1, 3)))
    assert generator.drafter.draft_length.price == usual_price("kernels" if kernels() else "cpu")


@needs_library
@pytest.mark.parametrize("rows", [1, 4])
def test_beam_search_takes_the_price_where_its_plain_prefixes_stand(rows: int) -> None:
    """Of the batch, not of the first one; a price that is not known stays the usual one."""
    text = "1:0.7402,4:0.9733,8:1.397,16:2.66"
    price, model = parse_price(text), make_model(make_task(), 5)
    assert price is not None and price.beside(5) > 2 * price.beside(8)
    task = make_task("beam", call_price=text)
    generator = task.build_generator([model], generation_options(beam=5))
    for count in (3, rows):
        sample = make_batch(random_sources(count, count))
        task.inference_step(generator, [model], sample)
        assert generator.budget.call_cost == pytest.approx(price.beside(5 * count))
    usual = Budget("cpu")
    usual.weigh(1, 5)
    assert usual.call_cost == USUAL_OF_SEARCH["cpu"]
