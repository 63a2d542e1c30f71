"""Options of a checkpoint are data: what fairseq would evaluate is found before it does, whatever way it comes."""

from __future__ import annotations

import ast
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fairseq
import numpy
import pytest
import torch
from fairseq.logging.meters import AverageMeter
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.tasks import TASK_REGISTRY

from fairseq_aggdec.pipelines import takeover
from fairseq_aggdec.stored import nodes
from fairseq_aggdec.stored.loading import CheckpointError
from fairseq_aggdec.stored.options import EVALUATED, check_names, check_options, option, runs_code
from tests.support import make_task

CODE = "[open('code-ran', 'w')]"
SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints" / "ua_gec"


def configuration(content: Any, **hidden: Any) -> Any:
    """As OmegaConf; `hidden` are attributes that only a file made by hand has."""
    made = nodes.configuration(content)
    vars(made).update(hidden)
    return made


def ordered(**hidden: Any) -> Any:
    """A dictionary with attributes."""
    made = OrderedDict(arch="transformer")
    vars(made).update(hidden)
    return made


def meter(**hidden: Any) -> AverageMeter:
    """A meter of training, with the attributes that a file gives it."""
    made = AverageMeter()
    vars(made).update(hidden)
    return made


HOSTILE: dict[str, Any] = {
    "a call": {"model": {"adaptive_softmax_cutoff": CODE}},
    "behind blanks": {"model": {"adaptive_softmax_cutoff": f" \t{CODE}"}},
    "older options": Namespace(arch="fconv", encoder_layers=CODE),
    "options in options": {"model": Namespace(w2v_args=Namespace(conv_feature_layers=CODE))},
    "a group": {"model": {"encoder": {"xformers_att_config": CODE}}},
    "one side": {"model": {"decoder_xformers_att_config": CODE}},
    "of the task": {"task": {"left_pad_source": CODE}},
    "of the optimiser": {"optimizer": {"adam_betas": CODE}},
    "OmegaConf": configuration({"model": {"pretrained": CODE}}),
    "a namespace in OmegaConf": configuration({"model": Namespace(pretrained=CODE)}),
    "bytes": {"model": {"adaptive_softmax_cutoff": CODE.encode()}},
    "an array": {"model": {"adaptive_softmax_cutoff": numpy.frombuffer(CODE.encode(), "uint8")}},
    "a text of numpy": {"model": {"adaptive_softmax_cutoff": numpy.str_(CODE)}},
    "an interpolation": {
        "model": {"adaptive_softmax_cutoff": "${common.x}"},
        "common": {"x": CODE},
    },
    "a comprehension": {"model": {"encoder_layers": "[exit for exit in (1,)]"}},
    "a function": {"model": {"encoder_layers": "lambda: 0"}},
    "a large list": {"model": {"encoder_layers": "[0] * 10 ** 10"}},
    "a long text": {"model": {"encoder_layers": "1+" * 9999 + "1"}},
    "the environment": {"model": {"data": "${oc.env:HOME}"}},
    "the environment by a name within": {"model": {"data": "${${a}:HOME}"}, "a": "oc.env"},
    "a dataclass": {"model": TransformerConfig(adaptive_softmax_cutoff=CODE)},
    "a target of hydra": {"model": {"_target_": "os.system", "command": "true"}},
    "an attribute of a dictionary": {"model": ordered(adaptive_softmax_cutoff=CODE)},
    "a meter": {"model": {"meter": meter(adaptive_softmax_cutoff=CODE)}},
    "a meter in a meter": {"task": {"meter": meter(sum=meter(left_pad_source=CODE))}},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_could_be_code_is_refused_with_its_name(kind: str) -> None:
    options = HOSTILE[kind]
    state = {"args": options} if isinstance(options, Namespace) else {"cfg": options}
    with pytest.raises(CheckpointError, match=r"^bad\.pt is refused: its option [\w.]+ [^\n]*\.$"):
        check_options(state, "bad.pt")


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({"args": meter(adaptive_softmax_cutoff=CODE)}, "args"),
        ({"cfg": meter()}, "cfg"),
        ({"cfg": {"model": meter(arch="transformer")}}, "cfg.model"),
        ({"cfg": configuration({"task": meter()})}, "cfg.task"),
        ({"cfg": {"generation": [1]}}, "cfg.generation"),
    ],
)
def test_what_stands_in_the_place_of_options_is_named(state: dict[str, Any], name: str) -> None:
    with pytest.raises(CheckpointError, match=rf"refused: its {name} is a \w+, which holds no opt"):
        check_options(state, "bad.pt")


def test_options_that_contain_themselves_are_refused() -> None:
    options: dict[str, Any] = {}
    options["model"] = options
    with pytest.raises(CheckpointError, match="contains itself"):
        check_options({"cfg": options}, "bad.pt")


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_layers": "[(512, 3)] * 20", "decoder_attention": "True", "pretrained": "False"},
        {"conv_feature_layers": "[(512, 10, 5)] + [(512, 3, 2)] * 4 + [(512,2,2)]"},
        {
            "adaptive_softmax_cutoff": "10000,20000",
            "adam_betas": "(0.9, 0.98)",
            "encoder_layers": 6,
        },
        {
            "adaptive_softmax_cutoff": None,
            "adafactor_eps": "(1e-30, 1e-3)",
            "wer_args": "('a', 'b')",
        },
        {"data": "data (1)/bin(2)", "eval_bleu_args": '{"beam": 5}', "pretrained": "a/model-1.pt"},
        {"user_dir": "/nowhere", "lang_pairs": "de-en,en-fr", "seed": "${common.seed}"},
    ],
    ids=range(6),
)
def test_values_that_training_writes_pass(options: dict[str, Any]) -> None:
    for form in (options, Namespace(**options), configuration(options)):
        check_options({"cfg": {"model": form}, "args": None}, "good.pt")
        check_options({"args": Namespace(**options), "cfg": None}, "good.pt")


def evaluated_in(tree: ast.AST) -> Iterator[str]:
    """Names of the options in calls such as ``eval(args.NAME)``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = getattr(node.func, "id", getattr(node.func, "attr", ""))
        method = isinstance(node.func, ast.Attribute) and function == "eval"
        if function in ("eval", "eval_bool", "eval_str_dict", "eval_str_list") and not method:
            value = node.args[0]
            if isinstance(value, ast.Attribute) or ast.unparse(value) == "feature_encoder_spec":
                yield ast.unparse(value).rsplit(".", 1)[-1]


def test_every_option_that_fairseq_evaluates_is_known() -> None:
    """A new fairseq may evaluate more of them, and one distribution has models that another lacks."""
    found = set()
    for path in Path(fairseq.__path__[0]).rglob("*.py"):
        if "examples" not in path.parts:
            found |= set(evaluated_in(ast.parse(path.read_text(encoding="utf-8"))))
    # The text of a layer, which is handed on under this name; a model of ve-fairseq.
    assert found | {"xformers_att_config", "override_encoder_layers"} == EVALUATED


def test_words_and_paths_run_nothing() -> None:
    assert not any(map(runs_code, ("model", "a.pt", "data-bin/x", "a b", "1e-3", "-1", "", "'")))
    assert all(map(runs_code, ("f()", "a[0]", "f'{f()}'", "(x := 1)", "2 ** 9", "1 << 9", "[a]")))


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    state: dict[str, Any] = torch.load(SHIPPED / "checkpoint.pt", weights_only=True)
    return state


def changed(state: dict[str, Any], folder: Path, **options: Any) -> Path:
    """A copy of a checkpoint, with other options of its model."""
    model = state["cfg"]["model"]
    model = dict(vars(model) if isinstance(model, Namespace) else model) | options
    path = folder / "checkpoint.pt"
    torch.save(state | {"cfg": state["cfg"] | {"model": model}}, path)
    return path


# -- where fairseq itself opens the file


@pytest.mark.parametrize(
    "task", [{}, {"task": {"_name": "translation_aggdec", "data": str(SHIPPED)}}]
)
def test_the_hub_runs_no_code(
    shipped: dict[str, Any], tmp_path: Path, task: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that decodes with the plugin, whatever the task."""
    monkeypatch.setattr(takeover, "_enabled", [True])
    changed(shipped, tmp_path, adaptive_softmax_cutoff=f"[open({str(tmp_path / 'ran')!r}, 'w')]")
    with pytest.raises(CheckpointError, match="adaptive_softmax_cutoff"):
        TransformerModel.from_pretrained(
            str(tmp_path), checkpoint_file="checkpoint.pt", data_name_or_path=str(SHIPPED), **task
        )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("part", ["task", "model", "criterion"])
def test_what_a_task_builds_from_is_looked_at(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As fairseq-validate builds a task and its criterion: from the options in a file."""
    monkeypatch.setattr(takeover, "_enabled", [True])
    options = Namespace(data=str(SHIPPED), source_lang="src", target_lang="tgt", wer_args=CODE)
    with pytest.raises(CheckpointError, match=f"option {part}.wer_args is no plain value but code"):
        if part == "task":
            TASK_REGISTRY["translation"].setup_task(options)
        else:
            getattr(make_task(), f"build_{part}")(options)


# -- names


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"cfg": {"model": {"_name": "mine"}}}, "--arch mine"),
        ({"cfg": {"model": Namespace(arch="mine")}}, "--arch mine"),
        ({"args": Namespace(arch="transformer", task="mine")}, "--task mine"),
        ({"args": Namespace(arch="transformer", criterion="mine")}, "--criterion mine"),
    ],
    ids=range(4),
)
def test_a_name_that_nobody_registered_is_refused(state: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=f"^bad.pt was trained with {said}, which is not reg"):
        check_names(state, "bad.pt")
    check_names({"cfg": {"model": {"_name": "transformer"}, "criterion": {"_name": "x"}}}, "a.pt")


def test_options_are_read_from_every_form() -> None:
    task = {"_name": "translation"}
    for form in (task, Namespace(**task), configuration(task)):
        assert option({"cfg": {"task": form}}, "task._name") == "translation"
        assert option({"cfg": configuration({"task": form})}, "task._name") == "translation"
    assert option({"args": Namespace(task="translation")}, "task._name", "task") == "translation"
    assert option({"cfg": {}}, "task._name") is None
