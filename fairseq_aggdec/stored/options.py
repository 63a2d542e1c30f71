"""Options that a checkpoint holds: data only, although fairseq evaluates some of them as Python.

Weights-only loading keeps code out of the pickled part of a file. Options are plain texts there, and fairseq hands some
of these texts to ``eval``: ``adaptive_softmax_cutoff``, the layers of convolutional models, and others.
:func:`check_options` reads the options before anything is built from them, and names the file and the option: when a
file is loaded, and again when a task of the plugin builds itself, a model or a criterion, for files that fairseq's hub,
``fairseq-validate`` or another option has named.

Nothing here resolves an interpolation, imports a module or calls what a file names.
"""

import argparse
import ast
import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any

# Options that fairseq evaluates, by name; a test finds them in fairseq's source.
EVALUATED = {
    "adafactor_eps",
    "adam_betas",
    "adamax_betas",
    "adaptive_input_cutoff",
    "adaptive_softmax_cutoff",
    "character_filters",
    "conv_aggregator_layers",
    "conv_feature_layers",
    "decoder_attention",
    "decoder_layers",
    "downsample",
    "encoder_attention",
    "encoder_layers",
    "feature_encoder_spec",
    "gated_attention",
    "lamb_betas",
    "left_pad_source",
    "left_pad_target",
    "override_encoder_layers",  # of ve-fairseq
    "pipeline_balance",
    "pipeline_decoder_balance",
    "pipeline_decoder_devices",
    "pipeline_devices",
    "pipeline_encoder_balance",
    "pipeline_encoder_devices",
    "pretrained",
    "project_input",
    "self_attention",
    "wer_args",
    "xformers_att_config",
}
LONGEST = 10_000  # letters of an evaluated option
LARGEST = 100_000  # items that it may come to
# Parts of a word, or of a path that reads as an expression: data-2/a.b
WORD = (
    ast.Expression,
    ast.Name,
    ast.Attribute,
    ast.BinOp,
    ast.Sub,
    ast.Div,
    ast.Constant,
    ast.Load,
)
PLAIN = (bool, int, float, str, type(None))
MOST = 100_000  # options of a file: small ones can come to any number, by lists that hold one list many times


class CheckpointError(RuntimeError):
    """A checkpoint file that must not, or cannot, be loaded. The message names the file."""


def check_options(state: Mapping[str, Any], path: str) -> None:
    """Raises :class:`CheckpointError` for the first option in a checkpoint that could be more than data.

    Args:
        state: as it was loaded in weights-only mode; fairseq has not touched it.
    """
    for section in ("args", "cfg", "cfg.model", "cfg.task", "cfg.generation"):
        whole = _at(state, section)
        if not (whole is None or type(whole) in PLAIN or holds_options(whole)):
            raise CheckpointError(
                f"{path} is refused: its {section} is a {type(whole).__name__}, which holds no options."
            )
    for number, (name, value) in enumerate(options_of(state)):
        if number == MOST:
            raise CheckpointError(f"{path} is refused: it has more than {MOST} options.")
        reason = _fault(name.rsplit(".", 1)[-1], value)
        if reason:
            raise CheckpointError(f"{path} is refused: its option {name} {reason}.")


def holds_options(value: Any) -> bool:
    """Tells whether fairseq reads options of such a value: a namespace, a dictionary or a dataclass."""
    value = unwrapped(value)
    return isinstance(value, (argparse.Namespace, Mapping)) or dataclasses.is_dataclass(value)


def check_names(state: Mapping[str, Any], path: str) -> None:
    """Raises :class:`CheckpointError` if fairseq, to load a checkpoint, looks up a name that nobody registered.

    Of options in the form of fairseq 0.10 and later only the model is looked up; of older ones the other parts too.
    """
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
    from fairseq.optim import OPTIMIZER_REGISTRY
    from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    architectures = ARCH_MODEL_REGISTRY.keys() | MODEL_DATACLASS_REGISTRY.keys()
    wanted = {"arch": (option(state, "arch", "model._name", "model.arch"), architectures)}
    if state.get("args") is not None:
        wanted["task"] = option(state, "task"), TASK_REGISTRY.keys()
        wanted["criterion"] = option(state, "criterion"), CRITERION_REGISTRY.keys()
        wanted["optimizer"] = option(state, "optimizer"), OPTIMIZER_REGISTRY.keys()
        wanted["lr-scheduler"] = option(state, "lr_scheduler"), LR_SCHEDULER_REGISTRY.keys()
    for kind, (name, registered) in wanted.items():
        if name is not None and name not in registered:
            raise CheckpointError(
                f"{path} was trained with --{kind} {name}, which is not registered: join the folder that registers it "
                "to --user-dir, or import it first."
            )


def options_of(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every option of a checkpoint, with its name in full: ``model.encoder_layers``, 6."""
    for root in ("args", "cfg"):
        for name, value in _leaves(state.get(root), ()):
            yield ".".join(name or (root,)), value


def option(state: Mapping[str, Any], *names: str) -> str | None:
    """The first of these options that a checkpoint holds as a text; names in full, as :func:`options_of` gives them."""
    texts = (_at(state.get(root), name) for name in names for root in ("cfg", "args"))
    return next((text for text in texts if isinstance(text, str)), None)


def _at(value: Any, name: str) -> Any:
    """The part of a container of options that has this name in full; None where there is none."""
    for part in name.split("."):
        items = {str(key): one for key, one in contained(value) or ()}
        value = items.get(part)
    return unwrapped(value)


def _leaves(value: Any, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if len(name) > 50:  # it contains itself
        yield name, NotImplemented
        return
    items = contained(value)
    if items is None:
        yield name, unwrapped(value)
        return
    for key, one in items:
        yield from _leaves(one, (*name, str(key)))


def contained(value: Any) -> list[tuple[Any, Any]] | None:
    """Names and values in a container of options, and in any other object that holds attributes, such as a meter of
    training; None where `value` holds none."""
    value = unwrapped(value)
    kind = type(value)
    if isinstance(value, Mapping) and kind.__module__ in ("builtins", "collections"):
        return [*value.items(), *getattr(value, "__dict__", {}).items()]  # of an OrderedDict
    if kind in (list, tuple):
        return list(enumerate(value))
    if isinstance(value, (type, enum.Enum)) or kind.__module__.startswith(("torch", "numpy")):
        return None
    attributes = getattr(value, "__dict__", None)
    return list(attributes.items()) if type(attributes) is dict else None


def unwrapped(value: Any) -> Any:
    """Returns what a part of an OmegaConf configuration holds, as it is stored; anything else as it is.

    Asking the configuration itself would resolve interpolations.
    """
    if not type(value).__module__.startswith("omegaconf."):
        return value
    parts = vars(value)
    return unwrapped(parts["_val"]) if "_val" in parts else parts["_content"]


def _fault(name: str, value: Any) -> str | None:
    """Says what is wrong with an option; None where nothing is."""
    if value is NotImplemented:
        return "contains itself"
    if name == "_target_":
        return f"names code to be called ({printable(value)})"
    if isinstance(value, enum.Enum):
        value = value.value
    text = value if isinstance(value, str) else None
    if text is not None and resolves(text):
        return f"asks for more than the file ({printable(text)})"
    # Alone, or of a side: encoder_xformers_att_config.
    if name not in EVALUATED and not any(name.endswith(f"_{one}") for one in EVALUATED):
        return None
    if type(value) not in PLAIN:
        return f"is a {type(value).__name__}, which fairseq would run as code"
    if text is not None and ("${" in text or runs_code(text)):
        return f"is no plain value but code, which fairseq would run ({printable(text)})"
    return None


def resolves(text: str) -> bool:
    """Tells whether a text has ``${name:...}``, which calls a function of OmegaConf: ``oc.env`` reads the environment.

    >>> [resolves(text) for text in ("${oc.env:HOME}", "${${name}:HOME}", "${common.seed}", "a: b")]
    [True, True, False, False]
    """
    return ":" in text.partition("${")[2]


def check_interpolation(value: Any) -> None:
    """Raises :class:`CheckpointError`, without the file's name, for a text that :func:`resolves`."""
    if isinstance(value, str) and resolves(value):
        raise CheckpointError(f"its configuration asks for more than the file ({printable(value)})")


def printable(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def runs_code(text: str) -> bool:
    """Tells whether evaluating a text could do more than give a value, or fill the memory.

    What is no expression, a path for instance, cannot be evaluated at all.

    >>> [runs_code(text) for text in ("[(512, 3)] * 20", "True", "data/a.txt", "(0.9, 0.98)")]
    [False, False, False, False]
    >>> [runs_code(text) for text in ("open('x')", "[0] * 9 ** 9", "[x for x in 'ab']", "[0] * 999999")]
    [True, True, True, True]
    """
    if len(text) > LONGEST:
        return True
    try:
        tree = ast.parse(text.lstrip(" \t"), mode="eval")  # as eval does
    except SyntaxError:
        return False
    except (ValueError, RecursionError, MemoryError):
        return True
    return _size(tree.body) > LARGEST and not all(isinstance(node, WORD) for node in ast.walk(tree))


def _size(node: ast.expr) -> float:
    """Tells how many values a literal comes to, with sums and multiples of lists; infinite where it is no literal."""
    endless = float("inf")
    match node:
        case ast.Constant(value=value):
            return len(value) if isinstance(value, str | bytes) else 1
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=ast.Constant()):
            return 1
        case ast.List(elts=values) | ast.Tuple(elts=values) | ast.Set(elts=values):
            return 1 + sum(map(_size, values))
        case ast.Dict(keys=keys, values=values):
            return (
                1
                + sum(endless if key is None else _size(key) for key in keys)
                + sum(map(_size, values))
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _size(left) + _size(right)
        case ast.BinOp(left=ast.Constant(value=int(times)), op=ast.Mult(), right=part):
            return _size(part) * max(1, times)
        case ast.BinOp(left=part, op=ast.Mult(), right=ast.Constant(value=int(times))):
            return _size(part) * max(1, times)
    return endless
