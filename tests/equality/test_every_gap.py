"""Every sentence of search/engines.py that says why an engine cannot decode has a request that leads to it."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch

from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.search import engines
from fairseq_aggdec.search.acceptance import TopBeta
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.engines import BEAM, DRAFT_ONLY, INTERLEAVED, EngineRequest
from tests.random_models import make_model, make_task
from tests.support import generation_options
from tests.unit.test_engines import GPU, OnHost, made

NOT_GAPS = {"says", "line_of", "_gaps"}  # functions of engines.py that return other sentences
Case = Callable[[pytest.MonkeyPatch], str | None]


def has_sentence(value: ast.expr | None) -> bool:
    return any(
        isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value)
        for node in ast.walk(value or ast.Constant(None))
    )


def gaps_in(source: str) -> dict[str, range]:
    """Function and expression of each gap in a source -> its lines."""
    found: dict[str, range] = {}
    for scope in ast.walk(ast.parse(source)):
        body = scope.body if isinstance(scope, ast.Module | ast.ClassDef) else []
        owner = f"{scope.name}." if isinstance(scope, ast.ClassDef) else ""
        for function in body:
            if not isinstance(function, ast.FunctionDef) or function.name in NOT_GAPS:
                continue
            for node in ast.walk(function):
                is_gap = isinstance(node, ast.Yield) or (
                    isinstance(node, ast.Return) and has_sentence(node.value)
                )
                if is_gap:
                    name = f"{owner}{function.name}: {ast.unparse(node.value)}"  # type: ignore[attr-defined]
                    assert name not in found
                    found[name] = range(node.lineno, (node.end_lineno or 0) + 1)  # type: ignore[attr-defined]
    return found


GAPS = gaps_in(inspect.getsource(engines))


# -- requests


def asks(
    engine: type[engines.SearchEngine],
    asked: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    library: bool = True,
) -> Case:
    """An engine's gap for a request of :func:`tests.unit.test_engines.made`."""
    return lambda patch: engine().gap(made(asked or {}, dict(facts or {}), library, patch))


def by_library(facts: dict[str, Any], **asked: Any) -> Case:
    return asks(engines.LibraryEngine, asked, facts)


def block_heads(patch: pytest.MonkeyPatch) -> str | None:
    request = made({}, {}, True, patch)
    first = [SimpleNamespace(kernel=None)]
    for member in request.reader.members:
        member.decoder.__dict__["heads"] = SimpleNamespace(exact=SimpleNamespace(first_head=first))
    return engines.LibraryEngine().gap(request)


def unknown_reader(patch: pytest.MonkeyPatch) -> str | None:
    request = made({}, {}, True, patch)
    patch.setattr(engines, "Verifier", int)
    return engines.LibraryEngine().gap(request)


def drafter_of_ones_own(patch: pytest.MonkeyPatch) -> str | None:
    own = SimpleNamespace(in_library=lambda state: None, captures=False)
    patch.setattr(engines, "kernels", lambda: object())
    return engines.LibraryEngine().gap(EngineRequest(DRAFT_ONLY, reader=own))


class Rule:
    """A generation rule that has no form on a device."""

    in_tensors = False


def generator(decoding: str = "greedy", **options: Any) -> Any:
    task = make_task(decoding)
    return task.build_generator([make_model(task, 5)], generation_options(**options))


def call(**given: Any) -> Case:
    sample = {"net_input": {"src_tokens": torch.tensor([[5, 2]])} | given.pop("net_input", {})}
    return lambda patch: engines.of_call(generator(), sample, **given)


def wider(patch: pytest.MonkeyPatch) -> str | None:
    found = generator()
    found.beam_size = 2
    return engines.of_generator(found)


def shorter_by_unknown(patch: pytest.MonkeyPatch) -> str | None:
    found = generator(match_source_len=True)
    found.unk_penalty = -1.0
    return engines.of_generator(found)


def decoder_with(**facts: Any) -> Case:
    """A stock model with a decoder that has these attributes."""

    def gap(patch: pytest.MonkeyPatch) -> str | None:
        model = make_model(make_task(), 5)
        vars(model.decoder).update(facts)
        return engines.of_models([model], known=True)

    return gap


CASES: dict[str, Case] = {
    "BoardEngine.gaps: iter([f'the generation rule {type(rule).__name__} has no on_device'])": asks(
        engines.BoardEngine, {"rules": [Rule()]}, GPU
    ),
    "BoardEngine._of_interleaved: 'no GPU, and the library has all layers'": asks(
        engines.BoardEngine, {"search": INTERLEAVED}
    ),
    "BoardEngine._of_beam: NO_GPU": asks(engines.BoardEngine, {"search": BEAM}),
    "BoardEngine._of_beam: 'decoders that read no trees'": asks(
        engines.BoardEngine, {"search": BEAM}, GPU | {"reads_trees": False}
    ),
    "BoardEngine._of_greedy: '--shortlist'": asks(engines.BoardEngine, {"restricted": True}, GPU),
    "BoardEngine._of_greedy: f'a {type(drafter).__name__} drafts on the host'": asks(
        engines.BoardEngine, {"drafter": Drafter()}, GPU
    ),
    "BoardEngine._of_greedy: NO_GPU": asks(engines.BoardEngine),
    "BoardEngine._of_greedy: f'the {type(drafter).__name__} drafts this batch on the host'": asks(
        engines.BoardEngine, {"drafter": OnHost()}, GPU
    ),
    "LibraryEngine.gaps: NO_LIBRARY": asks(engines.LibraryEngine, library=False),
    "LibraryEngine.gaps: gap": by_library({"compiled": False}),
    "WindowsEngine.gaps: NO_LIBRARY": asks(engines.WindowsEngine, library=False),
    "StockEngine.gaps: NOT_IN_STOCK[request.search]": asks(
        engines.StockEngine, {"search": DRAFT_ONLY}
    ),
    "StockEngine.gaps: 'it accepts no drafts, and --acceptance decides about the output'": asks(
        engines.StockEngine, {"accept": TopBeta(3), "drafter": Drafter()}
    ),
    "StockEngine.gaps: 'it has no --shortlist'": asks(engines.StockEngine, {"restricted": True}),
    "StockEngine.gaps: f'it does not have the generation rule {type(rule).__name__}'": asks(
        engines.StockEngine, {"rules": [Rule()]}
    ),
    "StockEngine.gaps: 'it has no --int8'": asks(
        engines.StockEngine, {"precision": Precision(int8=True)}
    ),
    "StockEngine.gaps: 'it has no --strict'": asks(
        engines.StockEngine, {"precision": Precision(strict=8)}
    ),
    '_unruled: f"--decoding {request.search} takes no generation rule of one\'s own"': asks(
        engines.WindowsEngine, {"search": INTERLEAVED, "rules": [Rule()]}
    ),
    "_of_every_iteration: request.watched": asks(
        engines.BoardEngine, {"watched": "somebody looks on"}, GPU
    ),
    "_of_every_iteration: 'the parts of an iteration are timed apart'": asks(
        engines.BoardEngine, {"timed": True}, GPU
    ),
    "_unread_by_library: 'a drafter that the library does not have'": drafter_of_ones_own,
    "_unread_by_library: 'no verifier of this package'": unknown_reader,
    "_unread_by_library: 'a generation rule in Python'": by_library({}, rules=[Rule()]),
    "_unread_by_library: '--strict'": by_library({"grid": 1}),
    "_unread_by_library: 'an acceptance rule in Python'": by_library(
        {}, accept=lambda logits, choices, drafted: drafted > 0
    ),
    "_not_compiled: 'layers that the library does not have'": by_library({"compiled": False}),
    "_not_compiled: 'block heads that the library does not have'": block_heads,
    "_not_compiled: 'a projection before the vocabulary, or local attention'": by_library(
        {"project_out": 1}
    ),
    "_not_compiled: 'embeddings or a vocabulary that the library does not have'": by_library(
        {"kernel": None}
    ),
    "of_call: 'sources that are no src_tokens'": call(net_input={"src_tokens": None}),
    "_of_arguments: 'a bos_token for each hypothesis'": call(bos_token=torch.tensor([2, 2])),
    "_of_arguments: 'a bos_token that is padding' if bos_token == pad else None": call(bos_token=1),
    "_of_greedy_search: f'a beam of {generator.beam_size}'": wider,
    "_of_greedy_search: '--unkpen below 0 with --match-source-len' if unknown else None": (
        shorter_by_unknown
    ),
    "of_models: 'a model that writes several words per step'": decoder_with(
        geometry=Geometry(directions=2)
    ),
    "of_models: 'local attention'": decoder_with(attention_span=3),
}


def test_every_gap_has_a_case() -> None:
    assert set(GAPS) == set(CASES)


@contextmanager
def lines_left() -> Iterator[set[int]]:
    """The lines of engines.py at which a function returns or yields something."""
    lines: set[int] = set()

    def inside(frame: FrameType, event: str, value: Any) -> Any:
        if event == "return" and value is not None:
            lines.add(frame.f_lineno)
        return inside

    def entered(frame: FrameType, event: str, value: Any) -> Any:
        return inside if frame.f_code.co_filename == engines.__file__ else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield lines
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("name", CASES)
def test_the_case_leads_to_its_gap(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with lines_left() as lines:
        gap = CASES[name](monkeypatch)
    assert lines & {*GAPS[name]}, f"the gap was {gap!r}"
    assert gap is not None and (" " in gap or gap.startswith("--"))


def test_a_new_gap_needs_a_case() -> None:
    source = inspect.getsource(engines)
    more = source.replace('        if request.restricted:\n            yield "--shortlist"\n', "")
    assert set(gaps_in(more)) == set(GAPS) - {"BoardEngine._of_greedy: '--shortlist'"}
    other = source + "\n\ndef of_night(night: bool) -> str | None:\n    return 'it is dark'\n"
    assert set(gaps_in(other)) - set(CASES) == {"of_night: 'it is dark'"}
