"""Which engine decodes what: one row of facts for each answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.lattice.generator import LatticeGenerator
from fairseq_aggdec.search import engines
from fairseq_aggdec.search.acceptance import AtLeast, Distance, TopBeta, exact
from fairseq_aggdec.search.aligned import WithAttention
from fairseq_aggdec.search.beam.generator import AlignedBeamGenerator, BeamGenerator
from fairseq_aggdec.search.drafter import DeviceDrafter, Drafter, EmptyDrafter
from fairseq_aggdec.search.engines import BEAM, GREEDY, INTERLEAVED, LATTICE, EngineRequest
from fairseq_aggdec.search.generator import CachedGenerator
from fairseq_aggdec.search.greedy.generator import AlignedGenerator, DraftAndVerifyGenerator
from fairseq_aggdec.search.interleaved.generator import InterleavedGenerator


class OnHost(DeviceDrafter):
    """Drafts no batch on a device."""


def reader(captures: bool = False, **facts: Any) -> tuple[Any, Any]:
    """A verifier of one stock decoder but for the facts, and the projection to its vocabulary."""

    class Known(Verifier):
        launches, reads_trees = facts.pop("launches", False), facts.pop("reads_trees", True)

    Known.captures = captures  # type: ignore[assignment, method-assign]
    packed = SimpleNamespace(project_out=facts.pop("project_out", None), span=None)
    kernel = SimpleNamespace(kernel=facts.pop("kernel", 1))
    decoder: Any = CachedDecoder.__new__(CachedDecoder)
    layers = SimpleNamespace(embeds=True) if facts.pop("compiled", True) else None
    decoder.__dict__ |= {"compiled": layers, "packed": packed, "heads": None}
    known: Any = Known.__new__(Known)
    known.members = [SimpleNamespace(decoder=decoder)] * facts.pop("models", 1)
    known.grid = facts.pop("grid", None)
    assert not facts
    return known, kernel


GPU = {"captures": True}
WINDOWS = "decoding by the compiled search, with PyTorch's operators for each window"
CASES: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    # engine that decodes, request, reader, is there a compiled library?
    *((("library", {}, {}, True)), ("stock", {}, {}, False), ("board", {}, GPU, True)),
    *((("board", {}, {"launches": True}, True)), ("board", {}, GPU, False)),
    ("library", {"drafter": Drafter()}, GPU, True),
    ("library", {"drafter": OnHost()}, GPU, True),
    ("library", {"watched": "somebody"}, GPU, True),
    ("library", {"timed": True}, GPU, True),
    ("library", {"restricted": True}, GPU, True),
    ("library", {"accept": TopBeta(3)}, {}, True),
    ("library", {}, {"models": 2}, True),
    ("library", {"accept": AtLeast(2, exact)}, {}, True),
    ("board", {"accept": AtLeast(2, exact)}, GPU, True),
    ("board", {"search": INTERLEAVED}, GPU | {"compiled": False}, True),
    ("library", {"search": INTERLEAVED}, {}, True),
    ("board", {"search": INTERLEAVED}, {}, False),
    ("board", {"search": INTERLEAVED}, {"compiled": False}, True),
    ("stock", {"only_stock": "a bos_token that is padding"}, GPU, True),
    ("board", {"search": BEAM}, GPU, True),
    ("board", {"search": BEAM}, {}, False),
    ("board", {"search": BEAM, "watched": "somebody"}, {}, False),
    ("library", {"search": BEAM}, {}, True),
    ("library", {"search": BEAM}, {"launches": True}, True),
    ("library", {"search": BEAM, "watched": "somebody"}, GPU, True),
    ("library", {"search": BEAM}, GPU | {"reads_trees": False}, True),
    ("windows", {}, {"compiled": False}, True),
    ("windows", {"search": BEAM}, {"grid": 1}, True),
    ("board", {"search": LATTICE}, {}, True),
]
# Who reads the windows of a search in the library: PyTorch where there is a reason.
READ: list[tuple[bool, dict[str, Any], dict[str, Any]]] = [
    # by windows, request, reader
    *((False, {}, {}), (False, {"accept": TopBeta(3)}, {}), (False, {}, {"models": 2})),
    (False, {"accept": AtLeast(2, Distance(1, 4))}, {}),
    (True, {"accept": lambda logits, choices, drafted: drafted > 0}, {}),
    (True, {"accept": AtLeast(2, lambda logits, choices, drafted: drafted > 0)}, {}),
    *((True, {}, {"grid": 1}), (True, {}, {"compiled": False}), (True, {}, {"project_out": 1})),
    (True, {}, {"kernel": None}),
    (False, {"search": BEAM}, {}),
]


@pytest.mark.parametrize(("engine", "asked", "facts", "library"), CASES)
def test_which_engine_decodes(
    engine: str,
    asked: dict[str, Any],
    facts: dict[str, Any],
    library: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = made(asked, facts, library, monkeypatch)
    found = engines.gaps_of(request)
    assert found[-1][0].name == engine and found[-1][1] is None
    assert all(gap for _, gap in found[:-1])  # a sentence for each that was passed over
    assert [one.name for one, _ in found] == [one.name for one in engines.ENGINES][: len(found)]


LINES = [
    # is there a GPU, reader, line of the log
    (False, {}, "decoding by compiled CPU kernels, a batch in one call"),
    (False, {"grid": 1}, f"{WINDOWS}; not compiled CPU kernels, a batch in one call: --strict"),
    (
        True,
        {},
        "decoding by compiled CPU kernels, a batch in one call; not PyTorch alone: no GPU decodes this batch",
    ),
    (True, GPU, "decoding by the GPU alone: iterations are captured graphs"),
]


@pytest.mark.parametrize(("gpu", "facts", "line"), LINES)
def test_the_log_says_who_decodes(
    gpu: bool, facts: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It speaks of the board where there is a GPU."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    request = made({}, facts, True, monkeypatch)
    assert engines.line_of(engines.gaps_of(request), request) == line


def made(
    asked: dict[str, Any], facts: dict[str, Any], library: bool, monkeypatch: pytest.MonkeyPatch
) -> EngineRequest:
    known, kernel = reader(**facts)
    monkeypatch.setattr(CachedDecoder, "chosen", kernel, raising=False)
    monkeypatch.setattr(engines, "kernels", lambda: object() if library else None)
    monkeypatch.setattr(engines, "Verifier", type(known))
    return EngineRequest(reader=known, **{"search": GREEDY, "drafter": EmptyDrafter()} | asked)


@pytest.mark.parametrize(("by_windows", "asked", "facts"), READ)
def test_who_reads_the_windows(
    by_windows: bool, asked: dict[str, Any], facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = made(asked, facts, True, monkeypatch)
    assert bool(engines.read_by_windows(request)) == by_windows


@pytest.mark.parametrize(
    "kind",
    [
        DraftAndVerifyGenerator,
        BeamGenerator,
        InterleavedGenerator,
        LatticeGenerator,
        AlignedGenerator,
        AlignedBeamGenerator,
    ],
)
def test_every_generator_decodes_a_batch_in_the_same_course(kind: type) -> None:
    defining = [base for base in kind.__mro__ if "_generate" in vars(base)]
    assert CachedGenerator in defining
    before = defining[: defining.index(CachedGenerator)]
    assert before in ([], [WithAttention])  # which adds attention afterwards
