"""Methods that stock fairseq does not have, against the slow plain searches of the equality tests.

``--decoding interleaved`` is compared with Algorithm 1 in lists, ``--decoding lattice`` with all paths of a lattice,
``--shortlist`` with stock and a model that can say no other word.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.audit.equality import (
    BUG,
    SCORE_TOLERANCE,
    TIE,
    TIE_MARGIN,
    Audit,
    Difference,
    first_difference,
)
from tests.equality import test_interleaved as interleaved
from tests.equality import test_lattice as lattice
from tests.equality import test_shortlist as shortlist
from tests.fuzz.cases import Case
from tests.random_models import random_tables
from tests.support import generate, make_batch, make_model, make_task, random_sources, stock

# How often each decodes a small case: the references are slow.
SHARE = 0.05
MARGIN, TOLERANCE = TIE_MARGIN["fp32"], SCORE_TOLERANCE["fp32"]
# Combinations of words that the plain search looks at in a step, at most.
COMBINATIONS = 500
# Searches with scores moved by rounding, of which one has to find what ours found.
TRIES = 20


def audits(case: Case) -> Iterator[tuple[str, Audit]]:
    if case.real or case.large:
        return
    checks = {
        "interleaved": against_plain_search,
        "lattice": against_all_paths,
        "shortlist": against_confined_models,
    }
    with torch.no_grad():
        for name, check in checks.items():
            if case.wants(name, SHARE):
                yield name, check(random.Random(f"{case.seed} {name}"), case.seed)


def note(audit: Audit, sentence: int, ours: Any, wanted: tuple[Any, Any], margin: float) -> None:
    """Counts a sentence: ``ours`` and ``wanted`` are (tokens, scores) of a hypothesis."""
    audit.sentences += 1
    position = first_difference(ours[0], wanted[0])
    if position is None:
        audit.equal += 1
        gap = max(abs(a - b) for a, b in zip(ours[1], wanted[1], strict=True))
        audit.score_error = max(audit.score_error, gap)
        audit.score_errors += not gap <= 10 * TOLERANCE  # sums of several log-probabilities
        return
    verdict = TIE if margin < MARGIN else BUG
    audit.differences.append(
        Difference(sentence, position, str(wanted[0]), str(ours[0]), margin, verdict)
    )


# -- interleaved


class Shaken(interleaved.PlainSearch):
    """The plain search with each log-probability moved by rounding."""

    def log_probs(self, net_input: dict[str, Any], written: list[int]) -> list[list[float]]:
        scores = torch.tensor(super().log_probs(net_input, written))
        return (scores + (torch.rand_like(scores) - 0.5) * MARGIN / 2).tolist()


def against_plain_search(chosen: random.Random, seed: int) -> Audit:
    """The best hypothesis of each sentence."""
    directions, words = chosen.choice(interleaved.GEOMETRIES)
    most = next(
        b for b in (4, 3, 2, 1) if b == 1 or (2 * b) ** (directions * words) <= COMBINATIONS
    )
    beam = chosen.randint(1, most)
    given: dict[str, Any] = chosen.choice(
        [{}, {"min_len": 4}, {"unkpen": -2.0}, {"temperature": 2.0}]
    )
    ends = {"all_agree": chosen.random() < 0.3, "any_ending": chosen.random() < 0.3}
    model = interleaved.lively(directions, words, seed)
    sources = random_sources(seed, chosen.randint(1, 3), longest=8)
    found = interleaved.search(
        [model],
        make_batch(sources, chosen.random() < 0.5),
        end_condition="all" if ends["all_agree"] else "first",
        stop_rule="any" if ends["any_ending"] else "stock",
        beam=beam,
        **given,
    )
    audit = Audit(0)
    for row, (hypotheses, source) in enumerate(zip(found, sources, strict=True)):
        one = make_batch([source])["net_input"]
        wanted = interleaved.PlainSearch([model], beam, **ends, **given).run(one)
        ours = [h["tokens"].tolist() for h in hypotheses]
        lists = [item[1] for item in wanted]
        if ours != lists:
            near = any(
                [item[1] for item in Shaken([model], beam, **ends, **given).run(one)] == ours
                for _ in range(TRIES)
            )
            note(audit, row, (ours, ()), (lists, ()), MARGIN / 2 if near else torch.inf)
        else:
            scores = [float(h["score"]) for h in hypotheses]
            note(audit, row, (ours, scores), (lists, [item[0] for item in wanted]), 0.0)
    return audit


# -- lattice


@functools.cache
def tables() -> Path:
    """A folder of tables of candidates, for the life of the process."""
    kept = tempfile.TemporaryDirectory()
    folder = Path(kept.name) / "lattice"
    _FOLDERS.append(kept)
    task = make_task()
    random_tables().save(
        folder, task.source_dictionary, task.target_dictionary, {"command": "test"}
    )
    return folder


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def against_all_paths(chosen: random.Random, seed: int) -> Audit:
    """The best path of each sentence."""
    variant = chosen.choice(list(lattice.VARIANTS.values()))
    models = [lattice.lattice_model(seed + i, **variant) for i in range(chosen.choice((1, 1, 2)))]
    sources = random_sources(seed, chosen.randint(1, 3), longest=3)
    found = lattice.decode(models, make_batch(sources), tables(), unnormalized=True)
    audit = Audit(0)
    for row, ((best,), source) in enumerate(zip(found, sources, strict=True)):
        paths = lattice.all_texts(models, source, tables())
        score, text = paths[0]
        ours = best["tokens"].tolist()
        own = next((total for total, path in paths if path == ours), -torch.inf)
        note(audit, row, (ours, [float(best["score"])]), (text, [score]), score - own)
    return audit


# -- shortlist


def against_confined_models(chosen: random.Random, seed: int) -> Audit:
    """The one hypothesis of each sentence."""
    method = chosen.choice(("greedy", "iad"))
    models = [make_model(make_task(), seed + i) for i in range(chosen.choice((1, 1, 2)))]
    sample = make_batch(random_sources(seed, chosen.randint(1, 6)), chosen.random() < 0.5)
    given: dict[str, Any] = chosen.choice(
        [{}, {"min_len": 4}, {"unkpen": 0.5}, {"temperature": 2.0}]
    )
    task = make_task(method, shortlist=shortlist.COUNT, lattice=str(tables()))
    found = generate(task, models, sample, **given)
    confined = [shortlist.confined(model, shortlist.types_of(sample)) for model in models]
    wanted = stock(confined, sample, **given)
    audit = Audit(0)
    for row, pair in enumerate(zip(found, wanted, strict=True)):
        ours, theirs = ((h["tokens"].tolist(), h["positional_scores"].tolist()) for h in pair)
        position = first_difference(ours[0], theirs[0])
        margin = 0.0
        if position is not None:  # how much stock prefers its own
            margin = theirs[1][position] - ours[1][position]
        note(audit, row, ours, theirs, abs(margin))
    return audit
