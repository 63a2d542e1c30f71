"""Package metadata and dependencies of fairseq_aggdec."""

import importlib.metadata
import os
import site
import sys
import sysconfig
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
FAIRSEQ = "fairseq-fixed==0.12.3.1"
OVERWRITE = "FAIRSEQ_AGGDEC_OVERWRITE"

REQUIREMENTS = [
    FAIRSEQ,  # imported as `fairseq`; PyPI's `fairseq` fails with current Python and PyTorch
    "numpy>=1.26,<3",
    "omegaconf",  # fairseq-fixed chooses the version
    "rapidfuzz>=3.6,<4",
    "rich>=13,<16",
    "sacrebleu>=2.4,<3",
    "sentencepiece>=0.2,<0.3",
    "torch>=2.6,<3",
    "tqdm>=4.60,<5",
]
EXTRAS = {
    "benchmark": ["ctranslate2>=4.5,<5"],
    "gec": ["ua-gec>=2.1,<3"],
    "images": ["pillow>=10.1,<14", "scikit-image>=0.24,<0.27"],
    "lattice": ["systran-align>=3.5,<3.6; python_version < '3.12'"],  # 3.5.0 has no wheel for 3.12
    "recipes": ["rouge-score>=0.1.2,<0.2", "sacremoses>=0.1,<0.3"],  # data and scores of the papers
    "report": ["jinja2>=3.1,<4", "matplotlib>=3.8,<4"],
}
EXTRAS["test"] = [
    *EXTRAS["gec"],
    *EXTRAS["images"],
    *EXTRAS["lattice"],
    *EXTRAS["recipes"],
    *EXTRAS["report"],
    "hypothesis>=6.100,<7",
    "mypy==2.4.1",  # exact: another version finds other faults
    "pytest>=8,<10",
    "pytest-xdist>=3.6,<4",
    "ruff==0.17.5",
]


def site_folders() -> list[str]:
    """Where the installing Python keeps packages: pip's isolated build hides it from `sys.path`."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if sys.prefix == sys.base_prefix:  # a virtual environment does not see the user's own packages
        folders.add(site.getusersitepackages())
    return sorted(folders)


def installed_fairseq() -> str:
    """Version and place of a distribution named `fairseq`, "" if there is none."""
    for folder in site_folders():
        if Path(folder, "fairseq.egg-link").exists():  # written by older versions of pip
            return f"an editable checkout, linked from {folder}"
        for found in importlib.metadata.distributions(name="fairseq", path=[folder]):
            return f"{found.version} in {folder}"
    return ""


def refuse_to_overwrite_fairseq() -> None:
    """Stop an installation that would put fairseq-fixed over another fairseq, unseen."""
    installs = {"bdist_wheel", "develop", "dist_info", "editable_wheel", "install"} & set(sys.argv)
    found = installed_fairseq() if installs and not os.environ.get(OVERWRITE) else ""
    if found:
        sys.exit(
            "\nfairseq_aggdec was NOT installed.\n"
            f"This environment already has `fairseq` ({found}).\n"
            f"fairseq_aggdec needs {FAIRSEQ}, which has the same folder and would overwrite it.\n"
            "Use a fresh virtual environment (scripts/setup.sh makes one), or first run\n"
            f"`pip uninstall fairseq`; {OVERWRITE}=1 goes on regardless.\n"
        )


def long_description() -> str:
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


refuse_to_overwrite_fairseq()
setup(
    name="fairseq_aggdec",
    version="0.1.0",
    description="Lossless acceleration of encoder-decoder generation in fairseq",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="fairseq_aggdec authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["fairseq_aggdec", "fairseq_aggdec.*"]),
    package_data={"fairseq_aggdec": ["evaluation/templates/*"]},
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
)
