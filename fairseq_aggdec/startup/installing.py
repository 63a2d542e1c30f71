"""Advice on what to install where a package is missing that only some commands need, and what to do with a model that
is not one of fairseq: one sentence for all of them.

The project is on no package index, so no message may advise to install it from one by name.
"""

import importlib.metadata
import os
import re
from importlib.util import find_spec

PACKAGE = "fairseq_aggdec"
NAME_OF_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.pt)")  # OWNER/MODEL
# Name for import -> name for installation, where they differ or an import means another package.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "ctranslate2": "ctranslate2",
    "huggingface_hub": "huggingface_hub",
    "jinja2": "jinja2",
    "langcodes": "langcodes",
    "language_data": "language_data",
    "prometheus_client": "prometheus_client",
    "python_multipart": "python-multipart",
    "rouge_score": "rouge-score",
    "sacremoses": "sacremoses",
    "safetensors": "safetensors",
    "shtab": "shtab",
    "skimage": "scikit-image",
    "starlette": "starlette",
    "transformers": "transformers",
    "ua_gec": "ua-gec",
    "uvicorn": "uvicorn",
}


def advice(*modules: str) -> str:
    """The command that installs the packages of some modules, in versions that fit."""
    names = (requirement(DISTRIBUTIONS[module]) for module in modules)
    return "pip install " + " ".join(f"'{name}'" for name in names)


def need(whose: str, extra: str, *modules: str) -> None:
    """Ends with a sentence where some of the modules are missing; ``extra``: that of ``setup.py`` that has them."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        names = ", ".join(DISTRIBUTIONS[module] for module in missing)
        raise SystemExit(
            f"error: {whose} needs {names}, of the extra `{extra}`: {advice(*missing)}"
        )


def requirement(distribution: str) -> str:
    """A package with the extras and versions that our own metadata ask for; its name where there are no metadata."""
    try:
        required = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return distribution
    for line in required:
        match = re.fullmatch(r"([\w.-]+)(\[[\w.,-]+\])?\s*\(?([^;)]*)\)?\s*(;.*)?", line)
        if match and match[1] == distribution:
            versions = sorted((part.strip() for part in match[3].split(",")), reverse=True)
            return f"{distribution}{match[2] or ''}{','.join(versions)}"
    return distribution


def is_name_of_hub(text: str) -> bool:
    """Tells whether a text can only be the name of a model on the Hugging Face hub: no file or folder is called so."""
    return bool(NAME_OF_HUB.fullmatch(text)) and not os.path.exists(text)


def refuse_published(path: str) -> None:
    """Raises ``ValueError``, which says what to do, for a model of Hugging Face where one of fairseq is needed."""
    if not is_name_of_hub(path):
        names = set(os.listdir(path)) if os.path.isdir(path) else set()
        if "config.json" not in names or "packed.json" in names:
            return
    made = os.path.basename(os.path.normpath(path))
    raise ValueError(
        f"{path} is no checkpoint of fairseq but a model of Hugging Face: `aggdec convert {path} {made}-fairseq` "
        f"converts it; then name {made}-fairseq/model.pt and the folder {made}-fairseq"
    )
