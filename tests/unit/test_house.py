"""The size of what is read at once: files of at most 400 lines, functions of the package of at most 60."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairseq_aggdec.cli.doctor  # noqa: F401  (registers every kernel)
from fairseq_aggdec.cli.main import TOOLS
from fairseq_aggdec.kernels import gpu
from fairseq_aggdec.methods.options.kinds import KINDS

ROOT = Path(__file__).resolve().parents[2]
NAMES_OF_TOOLS = {name.replace("-", "_") for name in TOOLS}
MODULES = sorted((ROOT / "fairseq_aggdec").rglob("*.py"))


def too_long(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            # Without its decorators, signature and docstring: what a reader has to keep in mind.
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            if node.end_lineno - first.lineno + 1 > 60:
                yield f"{path.name}: {node.name} has {node.end_lineno - first.lineno + 1} lines"


def test_no_function_is_too_long() -> None:
    assert len(MODULES) > 100
    assert [fault for path in MODULES for fault in too_long(path)] == []


@pytest.mark.parametrize("folder", ["fairseq_aggdec", "scripts", "tests", ".ci"])
def test_no_file_is_too_long(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sh", "")]
    lines = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in files if path.is_file()
    }
    assert lines
    assert [f"{path}: {number} lines" for path, number in lines.items() if number > 400] == []


# Lower rooms first. A module imports from its own room and from rooms before it, never from one behind it.
ROOMS = [
    "startup",
    "stored",
    "kernels",
    "windows",
    "kernels/gpu",
    "data",
    "models",
    "engine/plain",
    "engine/graphs",
    "engine",
    "budget",
    "options",
    "search",
    "search/greedy",
    "search/beam",
    "search/interleaved",
    "packed",
    "lattice/alignment",
    "lattice",
    "drafters/copy",
    "drafters",
    "methods/options",
    "methods/shared",
    "methods",
    "criterions",
    "tasks",
    "pipelines",
    "api",
    "jobs",
    "bulk",
    "convert",
    "records",
    "distill",
    "audit",
    "bench",
    "report",
    "serve",
    "cli/parsers",
    "cli",
]
GROUND = ["version"]  # beside the rooms
DOORS = "__init__", "__main__"  # what a user imports or runs; they open any room


def room_of(module: str) -> str:
    """``search/beam`` for ``fairseq_aggdec.search.beam.rules``; the module's own name for one beside the rooms."""
    parts = module.split(".")[1:]
    rooms = ["/".join(parts[:depth]) for depth in (2, 1)]
    return next((room for room in rooms if room in ROOMS), parts[0] if parts else "__init__")


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that a file names in its imports, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_imports_only_go_down() -> None:
    """The sentence of CONTRIBUTING.md about the direction of imports."""
    floors = {room: floor for floor, room in enumerate([*GROUND, *ROOMS])}
    wrong = []
    for path in MODULES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        own = room_of(module)
        if own in DOORS:
            continue
        for name in imported(path):
            other = room_of(name) if name.startswith("fairseq_aggdec.") else own
            # The top of the package gives its version and the Python interface, to the highest rooms only.
            if other not in DOORS and floors.get(other, -1) > floors[own]:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


@functools.cache
def questions() -> set[str]:
    """What tells whether kernels of a GPU run: functions and methods there that answer with yes or no, or a reason."""
    found = {"against", "running", "lacking", "unloaded", "fit"}
    for path in (ROOT / "fairseq_aggdec/kernels/gpu").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and ast.unparse(node.returns or node) == "bool":
                found.add(node.name)
    return found - {"aligned", "write", "alike"}  # of a tensor, of a file, of a test


def asks_kernels(path: Path) -> Iterator[str]:
    """Questions that a module outside asks: of a module of the kernels, or of what one of them has made."""
    asked, text = questions(), path.read_text(encoding="utf-8")
    probes = {agree.__name__ for agree in gpu.operators.PROBES}
    own = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in asked | probes:
            root = ast.unparse(node.value)
            if root.split(".")[0] == "gpu" or root.split(".")[-1] in (
                "runs",
                "layers",
                "attention",
            ):
                yield f"{path.name}: {root}.{node.attr}"
        if isinstance(node, ast.Name) and node.id in probes and node.id not in own:
            yield f"{path.name}: {node.id}"


def test_one_name_of_the_kernels_of_a_gpu() -> None:
    """Nobody outside asks whether a kernel or PyTorch's operators run; the doctor tells it."""
    several, asks = {}, set[str]()
    for path in MODULES:
        if "kernels/gpu" in path.as_posix():
            continue
        names = [name for name in imported(path) if name.startswith("fairseq_aggdec.kernels.gpu")]
        if len(set(names)) > 1:
            several[path.name] = names
        asks |= {*asks_kernels(path)}
    assert several == {}
    assert {"usable", "few", "fused", "crosses", "reads_heads"} <= questions()
    assert [one for one in sorted(asks) if not one.startswith("doctor.py: ")] == []
    assert "doctor.py: gpu.operators.against" in asks


@pytest.mark.parametrize(
    "line",
    [
        "kind = Own if gpu.operators.usable(device, own_probe) else Plain",
        "if self.runs.few(len(x)): pass",
        "fused = gpu.products.fits(layer, dtype)",
        "attends = gpu.attention.attends_alike",
        "same = crosses_alike(device, dtype)",
    ],
)
def test_a_question_is_found(line: str, tmp_path: Path) -> None:
    path = tmp_path / "asking.py"
    path.write_text(line, encoding="utf-8")
    assert len([*asks_kernels(path)]) == 1


def test_every_room_is_in_the_order() -> None:
    found = {room_of(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in MODULES}
    assert found - {*DOORS} == {*GROUND, *ROOMS}


@pytest.mark.parametrize("room", [*ROOMS, "kernels/source"])
def test_no_room_is_crowded(room: str) -> None:
    """Files of methods and of tools do not count: another method or tool must not need another room."""
    own = {"methods": KINDS, **dict.fromkeys(("cli", "cli/parsers"), NAMES_OF_TOOLS)}.get(room, ())
    files = [
        path
        for path in (ROOT / "fairseq_aggdec" / room).iterdir()
        if path.suffix in (".py", ".h", ".cpp") and path.stem not in own
    ]
    assert len(files) <= 14, f"{room} has {len(files)} files"


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "registration"])
def test_every_room_says_what_it_is(room: str) -> None:
    text = (ROOT / "fairseq_aggdec" / room / "__init__.py").read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(text)) or ""
    assert len(said.split()) > 2 and said != "TODO", room


def test_no_class_name_is_used_twice() -> None:
    """One name for one thing: a reader who searches for a class finds one."""
    found = Counter(
        node.name
        for path in (ROOT / "fairseq_aggdec").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in found.items() if times > 1] == []
