"""A kernel may begin before those before it have ended: what it does until it waits for them, and that it does wait."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import nvrtc, operators
from tests.emulated.comparing import COMPARED
from tests.emulated.emulator import EARLY, FORWARD, NOBODY, NOT_THE_LAST, Changes, Emulator
from tests.strict.device import cases as device_cases
from tests.strict.device.bookkeeping import COMPILER, fused_kernels
from tests.strict.device.cases import CASES
from tests.strict.device.graphs import Given, Tape
from tests.strict.device.strict_device import DEVICE, strict_device
from tests.strict.test_methods import Hypotheses, assert_equal

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")

SMALL = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 1), ("embed_dim", 16), ("attention_heads", 2))
}
METHODS = "greedy", "iad, aligned", "gad, next, chain, causal", "blockwise, dense", "beam 3"
WAIT = "wait_for_earlier_kernels();\n"


@pytest.mark.parametrize("name", METHODS)
def test_methods_write_the_same_bits(name: str, tmp_path: Path) -> None:
    """Whole batches with captured graphs: one kernel after the other, and then each as early as it may begin. What is
    launched is no probe."""
    case = next(case for case in CASES if case.name == name)
    emulator, sample = Emulator(FORWARD), device_cases.batch(1, 2, longest=6)
    models, drafter = device_cases.random_models(case, SMALL)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    with captured(emulator) as graphs, strict_device(), fused_kernels(emulator):
        ready = device_cases.prepared(case, models, drafter, tmp_path, DEVICE)
        found = ready.decode(sample, None)
        assert_equal(found, wanted, DEVICE)
        emulator.order, emulator.launches = EARLY, dict.fromkeys(emulator.launches, 0)
        assert bits(ready.decode(sample, None)) == bits(found)
    assert graphs and not any(graphs)
    used = {name for name, times in emulator.launches.items() if times}
    assert {"attend", "cross_attend", "product", "embedding", "sources"} <= used
    assert ("logits" in used) == (case.decoding != "blockwise")  # its heads are between
    assert ("best_step" if case.decoding == "beam" else "verify") in used


def bits(found: Hypotheses) -> list[Any]:
    names = "tokens", "positional_scores", "score"
    return [[[one[name].tolist() for name in names] for one in ranked] for ranked in found]


@contextmanager
def captured(emulator: Emulator) -> Iterator[list[list[str]]]:
    """Collects of each graph that is captured what :func:`written` finds."""
    found, plain = list[list[str]](), Tape.end

    def end(tape: Tape) -> None:
        found.append(written(tape, emulator.readable))
        plain(tape)

    with mock.patch.object(Tape, "end", end):
        yield found


def written(tape: Tape, readable: Mapping[str, Collection[str]]) -> list[str]:
    """What kernels of a graph read before they wait although an operator of the graph writes it."""
    places, read = set[int](), list[tuple[str, set[int]]]()
    for func, given, named, made in tape.calls:
        places |= addresses(made)
        name, arguments = func._schema.name.split("::")[-1], func._schema.arguments
        values = dict(zip([one.name for one in arguments], given, strict=False)) | named
        for one in arguments:
            own = addresses(values.get(one.name))
            if one.alias_info is not None and one.alias_info.is_write:
                places |= own
            if one.name in readable.get(name, ()):
                read.append((f"{name}: {one.name}", own))
    return [name for name, own in read if own & places]


def addresses(value: Any) -> set[int]:
    if isinstance(value, (list, tuple)):
        return set().union(*map(addresses, value))
    tensor = value.tensor() if isinstance(value, Given) else value
    return {tensor.untyped_storage().data_ptr()} if isinstance(tensor, Tensor) else set()


def test_what_is_written_in_a_graph_is_noticed() -> None:
    names, x = [one.name for one in schema("layer_norm").arguments], torch.zeros(2, 2)
    given = {name: torch.zeros(2) for name in names}
    tape = mock.Mock(spec=Tape, calls=[(operators.ops().layer_norm.default, (), given, [])])
    readable = {"layer_norm": ["gain", "shift"]}
    assert written(tape, readable) == []
    tape.calls.append((torch.ops.aten.add_.Tensor, (given["gain"], x), {}, []))
    assert written(tape, readable) == ["layer_norm: gain"]


def schema(name: str) -> Any:
    return getattr(operators.ops(), name).default._schema


@functools.cache
def launches() -> dict[str, tuple[Any, ...]]:
    """Arguments of a launch of every kernel."""
    found: dict[str, tuple[Any, ...]] = {}
    emulator = Emulator()

    def launch(name: str, *given: Any) -> None:
        if given[0] and name not in found:
            found[name] = tuple(copied(value) for value in given)
        emulator(name, *given)

    with fused_kernels(launch), torch.inference_mode():
        for seed, compare in itertools.product(range(4), itertools.chain(*COMPARED.values())):
            compare(seed)
    assert set(found) == set(operators.SCHEMAS)
    return found


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def moved_behind(text: str) -> str:
    """To the end of the function, or behind what is read first."""
    text = text.replace(
        f"{WAIT}        load_inputs(warp);\n", f"load_inputs(warp);\n        {WAIT}"
    )
    return re.sub(
        rf"\n    {re.escape(WAIT)}(.*?)\n}}\n", rf"\n\1\n    {WAIT}}}\n", text, flags=re.S
    )


def noticed(emulator: Emulator, wanted: str) -> None:
    """Launches every kernel, which must say what is wanted."""
    said = {}
    for name, given in launches().items():
        with pytest.raises(RuntimeError) as error:
            emulator(name, *map(copied, given))
        said[name] = str(error.value)
    assert [text for text in said.values() if not re.search(wanted, text)] == []


@pytest.mark.parametrize("waits", [NOBODY, NOT_THE_LAST])
def test_every_kernel_waits(waits: int) -> None:
    said = "a thread has not waited for earlier kernels"
    noticed(Emulator(waits=waits), said if waits == NOBODY else f"{said}|threads wait for ever")


def test_no_kernel_waits_late() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in nvrtc.SOURCES.glob("*.cu")}
    assert sum(text.count(WAIT) for text in texts.values()) == len(operators.SCHEMAS)
    changes: Changes = {name: (text, moved_behind(text)) for name, text in texts.items()}
    said = "is read or written before the wait for earlier kernels"
    noticed(Emulator(EARLY, changes=changes), said)


def test_every_kernel_says_what_it_reads_early() -> None:
    readable = Emulator().readable
    assert set(readable) == set(operators.SCHEMAS)
    for name, words in readable.items():
        assert words <= {
            word for word, written in operators.SIGNATURES[name].parameters if not written
        }


@pytest.mark.parametrize("behind, said", [(False, "weight"), (True, "behind a tensor")])
def test_closed_memory_is_named(behind: bool, said: str) -> None:
    given = launches()["product"]
    place = [word for word, _ in operators.SIGNATURES["product"].parameters].index("weight")
    text = f"*((volatile char*)p.weight + {given[place].nbytes if behind else 0}) = 1;"
    head = "    __shared__ Common common;\n    by_precision<Multiply>"
    changes = {"products.cu": (head, head.replace("    by_", text + "by_"))}
    with pytest.raises(RuntimeError, match=said):
        Emulator(EARLY, changes=changes)("product", *map(copied, given))


def test_the_next_kernel_begins_behind_the_wait() -> None:
    """Else it would not know that kernels before this one have ended."""
    lines = [
        f'    asm volatile("griddepcontrol.{word};" : : : "memory");\n'
        for word in ("wait", "launch_dependents")
    ]
    changes = {nvrtc.SHARED: ("".join(lines), "".join(reversed(lines)))}
    with pytest.raises(RuntimeError, match="the next kernel begins, and this one has not waited"):
        Emulator(changes=changes)("begin", *map(copied, launches()["begin"]))
