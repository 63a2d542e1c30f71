"""Advice on what to install where a package is missing that only some commands need: one sentence for all of them.

The project is on no package index, so no message may advise to install it from one by name.
"""

import importlib.metadata
import re
from importlib.util import find_spec

PACKAGE = "fairseq_aggdec"
# Name for import -> name for installation, where they differ or an import means another package.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "ctranslate2": "ctranslate2",
    "jinja2": "jinja2",
    "optimum": "optimum-onnx",
    "prometheus_client": "prometheus_client",
    "python_multipart": "python-multipart",
    "rouge_score": "rouge-score",
    "sacremoses": "sacremoses",
    "safetensors": "safetensors",
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
        found = re.fullmatch(r"([\w.-]+)(\[[\w.,-]+\])?\s*\(?([^;)]*)\)?\s*(;.*)?", line)
        if found and found[1] == distribution:
            versions = sorted((part.strip() for part in found[3].split(",")), reverse=True)
            return f"{distribution}{found[2] or ''}{','.join(versions)}"
    return distribution
