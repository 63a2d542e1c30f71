"""``import fairseq_aggdec`` is light, and with fairseq the package is registered, in whatever order they come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).resolve().parents[2]
REGISTERED = """
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
assert "translation_aggdec" in TASK_REGISTRY
assert "nar_drafter" in ARCH_MODEL_REGISTRY
assert "glancing_loss" in CRITERION_REGISTRY
"""
USER_DIR = f"""
from argparse import Namespace
from fairseq.utils import import_user_module
import_user_module(Namespace(user_dir={str(ROOT / "fairseq_aggdec")!r}))
"""
ORDERS = {
    "ours first": "import fairseq_aggdec, importlib.util; importlib.util.find_spec('fairseq')",
    "fairseq first": "import fairseq; import fairseq_aggdec",
    "user-dir": USER_DIR,
    "user-dir after ours": f"import fairseq_aggdec\n{USER_DIR}",
    "modules before fairseq": "import fairseq_aggdec.stored.checkpoints, fairseq_aggdec.models.slot_chain",
    "a room that imports fairseq": "import fairseq_aggdec.lattice.candidates",
    "a tool": "import fairseq_aggdec.distill.average_checkpoints",
    "by hand": "import fairseq_aggdec; fairseq_aggdec.register()",
    "interface": "from fairseq_aggdec import Translator",
}


def run(code: str, python: str | None = None) -> str:
    """Runs code where neither fairseq nor this package was imported; what it printed."""
    command = [python or warm.python(fairseq=False), "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("order", ORDERS)
def test_registered(order: str) -> None:
    run(ORDERS[order] + "\n" + REGISTERED)


def test_alone_it_is_light() -> None:
    run(
        "import sys, fairseq_aggdec\n"
        "assert fairseq_aggdec.__version__\n"
        "from fairseq_aggdec.cli import main, fairseq_commands\n"
        "assert not {'torch', 'fairseq', 'numpy', 'omegaconf'} & set(sys.modules)",
        sys.executable,
    )


def test_frozen_objects_are_counted_once_for_all_nested_imports() -> None:
    """There may be many, and some hundred modules are imported."""
    run(
        "import gc\n"
        "asked, count = [], gc.get_freeze_count\n"
        "gc.get_freeze_count = lambda: asked.append(1) or count()\n"
        "import fairseq_aggdec, fairseq.tasks\n"
        "assert len(asked) == 1, len(asked)"
    )


def test_what_runs_here_begins_without_fairseq() -> None:
    run("import sys; assert not [name for name in sys.modules if name.startswith('fairseq')]")


# What no CPU needs for decoding with beam, iad or greedy: other methods, the loop of a GPU, the tools.
OTHERS = ("lattice", "search.interleaved", "drafters.nar", "drafters.trees")
OTHERS += ("search.ahead", "report", "api", "bench", "cli")


def test_helps_and_wrong_options_load_neither_pytorch_nor_fairseq() -> None:
    """A help of every tool fits two screens, and a wrong option is refused, before anything heavy is imported."""
    run(
        "import contextlib, io, sys\n"
        "from fairseq_aggdec.cli import main\n"
        "for tool in main.TOOLS:\n"
        "    shown, refused = io.StringIO(), io.StringIO()\n"
        "    with contextlib.redirect_stdout(shown): assert not main.run_tool(tool, ['--help']), tool\n"
        "    lines = shown.getvalue().splitlines()\n"
        "    assert lines[0].startswith(f'usage: aggdec {tool} ') and len(lines) < 70, (tool, lines)\n"
        "    with contextlib.redirect_stderr(refused):\n"
        "        wrong = '--max-length-ratio' if tool == 'distill' else '--limit'\n"
        "        assert main.run_tool(tool, [wrong, 'x']) == 2, tool\n"
        "    assert refused.getvalue().startswith(f'aggdec {tool}: error: '), refused.getvalue()\n"
        "heavy = {'torch', 'fairseq', 'numpy', 'omegaconf', 'transformers', 'starlette', 'matplotlib'}\n"
        "assert heavy.isdisjoint(sys.modules), heavy & sys.modules.keys()",
        python=sys.executable,
    )


WRONG_FILES = {
    "doctor": "none.pt",
    "pack": "none.pt README.md packed",
    "serve": "none.pt",
    "convert": "none converted",
    "train-drafter": "docs --path none.pt",
    "upgrade-checkpoint": "none.pt upgraded.pt",
    "average-checkpoints": "--output mean.pt none.pt",
    **dict.fromkeys(("audit", "bench", "distill", "trace"), "data --output x --path none.pt"),
}


def test_files_that_are_not_there_are_refused_before_pytorch_is_loaded() -> None:
    """So are models of Hugging Face, and outputs that are there already."""
    more = [("pack", "README.md docs docs"), ("doctor", "owner/model"), ("doctor", "docs")]
    wrong = [*WRONG_FILES.items(), *more]
    run(
        "import contextlib, io, sys\n"
        "from fairseq_aggdec.cli import main\n"
        f"for tool, given in {wrong!r}:\n"
        "    refused = io.StringIO()\n"
        "    given = given.split() if tool != 'trace' else given.split()[3:]\n"
        "    with contextlib.redirect_stderr(refused): assert main.run_tool(tool, given) == 2, tool\n"
        "    said = refused.getvalue()\n"
        "    known = 'not exist', 'there is no none', 'exists: name', 'Hugging Face', '--path is missing'\n"
        "    assert said.count('\\n') == 1 and any(words in said for words in known), said\n"
        "assert {'torch', 'fairseq', 'numpy', 'omegaconf'}.isdisjoint(sys.modules)",
        python=sys.executable,
    )


def test_a_user_dir_loads_nothing_that_decodes() -> None:
    others = ("engine", "kernels", "windows", "lattice", "drafters", "search.beam", "search.greedy")
    run(
        "import sys; from argparse import Namespace; from fairseq.utils import import_user_module\n"
        f"import_user_module(Namespace(user_dir={str(ROOT / 'fairseq_aggdec')!r}))\n"
        f"others = tuple('fairseq_aggdec.' + room for room in {others!r})\n"
        "loaded = [name for name in sys.modules if name.startswith((*others, 'aggdec_images'))]\n"
        "assert not loaded and 'fairseq_aggdec.tasks.decoding_task' in sys.modules, loaded"
    )


def test_decoding_loads_nothing_of_other_methods() -> None:
    run(
        "import sys\nfrom fairseq_aggdec.pipelines import registration\n"
        "from fairseq_aggdec.methods.table import method_of\n"
        "for decoding in ('beam', 'iad', 'greedy'): method_of(decoding)\n"
        f"others = tuple('fairseq_aggdec.' + room for room in {OTHERS!r})\n"
        "loaded = [name for name in sys.modules if name.startswith(others)]\n"
        "assert not loaded, loaded"
    )


def test_the_python_interface_loads_no_drafter_of_a_model() -> None:
    others = ("drafters.nar", "drafters.trees", "drafters.blockwise_heads", "lattice", "serve")
    run(
        "import sys, fairseq_aggdec.api\n"
        f"others = tuple('fairseq_aggdec.' + room for room in {(*others, 'report', 'bench')!r})\n"
        "loaded = [name for name in sys.modules if name.startswith(others)]\n"
        "assert not loaded, loaded"
    )


def test_low_rooms_load_no_model() -> None:
    modules = ("kernels.library", "windows.window", "jobs.claims", "records.machine")
    run(
        "".join(f"import sys, fairseq_aggdec.{module}\n" for module in modules)
        + "assert not [name for name in sys.modules if name.startswith('fairseq_aggdec.models')]"
    )


@pytest.mark.parametrize("module", ["engine.cached_decoder", "drafters.nar", "tasks.decoding_task"])
def test_a_room_can_be_imported_first(module: str) -> None:
    """Rooms do not register: whoever imports one before anything else finds it whole."""
    run(f"import fairseq_aggdec.{module}")


def test_a_fairseq_that_does_not_fit_is_named() -> None:
    run(
        "import fairseq, fairseq.search, pytest\n"
        "fairseq.__version__ = '0.1'\n"
        "del fairseq.search.LengthConstrainedBeamSearch\n"
        "needed = 'version 0.1, has no fairseq.search.LengthConstrainedBeamSearch, which the searches'\n"
        "with pytest.raises(ImportError, match=needed):\n"
        "    import fairseq_aggdec\n"
    )


@pytest.mark.parametrize("configured", ["", "logging.basicConfig(level=logging.ERROR)"])
def test_the_root_logger_stays_as_the_program_has_it(configured: str) -> None:
    """fairseq's import calls ``logging.basicConfig`` at level DEBUG."""
    run(
        f"import logging\n{configured}\nroot = logging.getLogger()\n"
        "before = root.level, list(root.handlers)\n"
        "import fairseq_aggdec\n"
        "fairseq_aggdec.from_pretrained, fairseq_aggdec.Translator\n"
        "import fairseq\n"
        "assert (root.level, root.handlers) == before, root"
    )


@pytest.mark.parametrize("name", ["generate", "train"])
def test_the_commands_log_as_those_of_fairseq(name: str) -> None:
    """Level, streams and formats of the root logger are those that fairseq's own command has."""
    state = (
        "import logging; root = logging.getLogger()\n"
        "print(root.level, [(h.stream.name, h.formatter._fmt) for h in root.handlers])"
    )
    module = f"import fairseq_cli.{name}"
    stock, ours = (
        run(f"{code}\n{module}\n{state}").splitlines()[-1]
        for code in ("", "from fairseq_aggdec.cli.fairseq_commands import generate")
    )
    assert stock == ours
