"""Tells whether all that the package reads of fairseq is there, and is what it is taken for.

No version is compared: distributions, clones and forks of fairseq have versions of their own. :data:`READS` lists what
is read and the place that needs it. Without a listed class the package cannot be imported. A listed function whose
source has another form than every fairseq that the tests have run with is left to fairseq itself, see :func:`changed`.
"""

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Functions by class, or of the module itself, and the place that computes what they compute.
SEARCHES, LAYERS = "the searches (options/stock_generator.py)", "the layers (engine/plain/walk.py)"
READS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "fairseq.sequence_generator",
        (
            *("SequenceGenerator", "SequenceGeneratorWithAlignment"),
            *("EnsembleModel", "EnsembleModelWithAlignment"),
        ),
        SEARCHES,
    ),
    ("fairseq.search", ("Search", "BeamSearch", "LengthConstrainedBeamSearch"), SEARCHES),
    ("fairseq.ngram_repeat_block", ("NGramRepeatBlock",), SEARCHES),
    (
        "fairseq.models.transformer.transformer_decoder",
        ("TransformerDecoderBase", "TransformerDecoder"),
        LAYERS,
    ),
    (
        "fairseq.models.transformer.transformer_encoder",
        ("TransformerEncoderBase", "TransformerEncoder"),
        LAYERS,
    ),
    ("fairseq.models.transformer.transformer_base", ("TransformerModelBase",), LAYERS),
    (
        "fairseq.models.speech_to_text.s2t_transformer",
        ("S2TTransformerModel", "TransformerDecoderScriptable"),
        LAYERS,
    ),
    ("fairseq.models.fairseq_model", ("BaseFairseqModel",), LAYERS),
    ("fairseq.models.fairseq_decoder", ("FairseqDecoder",), LAYERS),
    (
        "fairseq.modules.transformer_layer",
        (
            *("TransformerDecoderLayerBase", "TransformerDecoderLayer"),
            *("TransformerEncoderLayerBase", "TransformerEncoderLayer"),
        ),
        LAYERS,
    ),
    ("fairseq.modules.multihead_attention", ("MultiheadAttention",), LAYERS),
    ("fairseq.modules.sinusoidal_positional_embedding", ("SinusoidalPositionalEmbedding",), LAYERS),
    ("fairseq.modules.learned_positional_embedding", ("LearnedPositionalEmbedding",), LAYERS),
    ("fairseq.modules.fairseq_dropout", ("FairseqDropout",), LAYERS),
    ("fairseq.modules.layer_drop", ("LayerDropModuleList",), LAYERS),
    ("fairseq.modules.layer_norm", ("LayerNorm",), LAYERS),
    ("fairseq.modules.checkpoint_activations", ("_checkpointed_forward",), LAYERS),
    ("fairseq.modules.gelu", ("gelu", "gelu_accurate"), LAYERS),
    ("fairseq.utils", ("make_positions", "softmax", "log_softmax", "relu_squared"), LAYERS),
    ("fairseq.utils", ("get_activation_fn", "fill_with_neg_inf"), LAYERS),
)
FORMS = Path(__file__).with_name("known_fairseq.json")
# Distributions that bring the folder `fairseq`.
DISTRIBUTIONS = ("fairseq", "fairseq-fixed", "ve-fairseq", "fairseq-built", "fairseq-light")
HOW_TO_INSTALL = (
    "fairseq_aggdec works with fairseq 0.12.2 or later, whatever the distribution is called; in a checkout of "
    "fairseq_aggdec `pip install '.[fairseq]'` brings one for this Python."
)
# None of them changes what a function computes.
_LEFT_OUT = ("annotation", "ctx", "kind", "returns", "type_comment", "type_params")


def check_pytorch() -> None:
    """Raises ``ImportError`` for a PyTorch that cannot be told which names in a checkpoint are data: one before 2.6."""
    import torch

    if not hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):
        raise ImportError(
            f"PyTorch {torch.__version__} cannot load checkpoints as safely as fairseq_aggdec needs it "
            "(CVE-2025-32434): install PyTorch 2.6 or later."
        )


def check_fairseq() -> None:
    """Raises ``ImportError``, with a sentence that helps, unless there is one fairseq with all that is read of it."""
    distributions = installed()
    if len(distributions) > 1:
        raise ImportError(
            f"{len(distributions)} distributions bring the folder `fairseq` here: {', '.join(distributions)}. "
            "Each overwrites or hides files of the others: uninstall all of them, then install one."
        )
    try:
        import fairseq
    except ModuleNotFoundError as error:
        if error.name == "fairseq":
            raise ImportError(f"fairseq is not installed. {HOW_TO_INSTALL}") from None
        raise ImportError(f"`import fairseq` failed ({error}). {HOW_TO_INSTALL}") from error
    except (ImportError, ValueError) as error:  # ValueError: fairseq 0.12.2 under Python >= 3.11
        reason = str(error).split(" for field")[0]
        raise ImportError(
            f"`import fairseq` failed ({reason}): {', '.join(distributions) or 'it'} does not run here. "
            f"{HOW_TO_INSTALL}"
        ) from error
    for module, names, place in READS:
        for name in names:
            if not _there(module, name):
                version = getattr(fairseq, "__version__", "unknown")
                where = os.path.dirname(getattr(fairseq, "__file__", None) or "an unknown place")
                raise ImportError(
                    f"The fairseq in {where}, version {version}, has no {module}.{name}, which {place} need. "
                    + HOW_TO_INSTALL
                )


def installed() -> list[str]:
    """Names and versions of the distributions here that bring the folder `fairseq`."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return [f"{name} {version}" for name, version in versions.items()]


def _there(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def changed(cls: type, name: str) -> bool:
    """Tells whether a method that stands in a class has a source of none of the known forms.

    What is not listed is not judged; nor is a method that no known class calls: a new one that overrides none.
    """
    full = f"{cls.__qualname__}.{name}"
    if full not in _changed(cls.__module__):
        return False
    called = full in _forms()["functions"][cls.__module__]
    return called or any(name in vars(base) for base in cls.__mro__[1:])


def changed_function() -> str | None:
    """Names the first listed function of a module that the layers call and that has none of the known forms."""
    for module, names, place in READS:
        if place == LAYERS and not _changed(module).isdisjoint(names):
            return f"{module}.{min(_changed(module).intersection(names))}"
    return None


@functools.cache
def _changed(module: str) -> frozenset[str]:
    """Full names of the listed functions in a module whose source is none of the known forms."""
    known = _forms()["functions"].get(module)
    if known is None:
        return frozenset()
    text = source(module)
    if text is not None and digest(text) in _forms()["files"][module]:
        return frozenset()
    digests = {} if text is None else functions(module, text)
    # A method that is not there is inherited, and judged where it stands; a new one takes the place of one.
    return frozenset(
        name
        for name in digests.keys() | ({name for name in known if text is None})
        if digests.get(name) not in known.get(name, ())
    )


@functools.cache
def _forms() -> dict[str, Any]:
    return dict(json.loads(FORMS.read_text(encoding="utf-8")))


def source(module: str, folder: Path | None = None) -> str | None:
    """The text of a module of the fairseq that is imported here, or of one in a folder; None where it has none."""
    if folder is not None:
        path = folder.joinpath(*module.split("."))
        file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        return file.read_text(encoding="utf-8") if file.exists() else None
    try:
        file = Path(inspect.getsourcefile(importlib.import_module(module)) or "")
        return file.read_text(encoding="utf-8")
    except (ImportError, OSError, TypeError):
        return None


def digest(text: str) -> str:
    """Hashes a text, whatever its ends of lines are."""
    return hashlib.sha256("\n".join(text.splitlines()).encode()).hexdigest()[:16]


def functions(module: str, text: str) -> dict[str, str]:
    """The listed functions in the text of a module, by full name: the digest of what each computes.

    The form of a file, comments, docstrings and annotations do not count.
    """
    listed = {name for of, names, _ in READS if of == module for name in names}
    digests = {}
    for node in ast.parse(text).body:
        if getattr(node, "name", None) not in listed:
            continue
        if isinstance(node, ast.FunctionDef):
            digests[node.name] = digest("\n".join(_canonical(node)))
        elif isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef))
            digests |= {f"{node.name}.{m.name}": digest("\n".join(_canonical(m))) for m in methods}
    return digests


def _canonical(node: Any) -> Iterator[str]:
    """A tree as words that are the same in each version of Python and for each style of the text."""
    if isinstance(node, list):
        for one in node:
            yield from _canonical(one)
        yield "]"
    elif isinstance(node, ast.AST):
        yield type(node).__name__
        for field in node._fields:
            value: Any = getattr(node, field, None)
            if field == "body" and isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                value = value[1:]
            if field not in _LEFT_OUT and value is not None and value != []:
                yield field
                yield from _canonical(value)
        yield ")"
    else:
        yield repr(node)
