"""Package metadata and dependencies of fairseq_aggdec."""

import copy
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import site
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
FAIRSEQ = "fairseq-fixed==0.12.3.1"
WHEEL = ((3, 12), "linux", "x86_64")  # Python and machine for which PyPI has a wheel of it
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
    "convert": ["safetensors>=0.4,<1", "transformers>=4.57,<5"],  # models of other libraries
    "gec": ["ua-gec>=2.1,<3"],
    "images": ["pillow>=10.1,<14", "scikit-image>=0.24,<0.27"],
    "recipes": ["rouge-score>=0.1.2,<0.2", "sacremoses>=0.1,<0.3"],  # data and scores of the papers
    "rivals": [  # other engines, to compare with
        "ctranslate2>=4.5,<5",
        "transformers>=4.57,<5",
        "optimum-onnx[onnxruntime]>=0.1,<0.2",
    ],
    "serve": [
        "starlette>=0.40,<2",  # routes, forms, answers; 0.40 bounds the parts of a form
        "uvicorn>=0.30,<1",  # HTTP, signals, shutdown
        "prometheus_client>=0.20,<1",  # /metrics
        "python-multipart>=0.0.18,<1",  # forms, which clients of LibreTranslate send
        "jinja2>=3.1,<4",  # the page
    ],
    "docs": ["mkdocs-material>=9.5,<10", "mkdocstrings[python]>=0.26,<2"],  # the pages as a site
}
EXTRAS["test"] = [
    *EXTRAS["convert"],
    *EXTRAS["gec"],
    *EXTRAS["images"],
    *EXTRAS["recipes"],
    *EXTRAS["serve"],
    "axe-core-python>=0.1,<0.2; python_version >= '3.10'",  # rules of accessibility, run in a browser
    "httpx>=0.27,<1",  # requests of the tests of the service
    "libretranslatepy>=2.1,<3",  # a client that knows nothing of us
    "matplotlib>=3.8,<4",  # figures of the papers
    "hypothesis>=6.100,<7",
    "mypy==2.4.1",  # exact: another version finds other faults
    "pytest>=8,<10",
    "pytest-xdist>=3.7,<4",
    "ruff==0.17.5",
    "setuptools>=77",  # builds the wheel that is tested
]
CONFIGS = "fairseq_aggdec.configs"  # in a wheel; here they stand in configs/
COMMANDS = [
    "aggdec = fairseq_aggdec.cli.main:main",
    *(
        f"aggdec-{name} = fairseq_aggdec.cli.fairseq_commands:{name}"
        for name in ("generate", "interactive", "train", "validate")
    ),
]
# The project has no address of its own yet; these are what it builds on.
URLS = {
    "fairseq": "https://github.com/facebookresearch/fairseq",
    "Paper, aggressive decoding": "https://arxiv.org/abs/2205.10350",
    "Paper, blockwise decoding": "https://arxiv.org/abs/1811.03115",
    "Paper, interleaved decoding": "https://arxiv.org/abs/2010.14481",
}
CLASSIFIERS = [
    "Development Status :: 4 - Beta",
    "Environment :: Console",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Natural Language :: English",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Programming Language :: C++",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Topic :: Text Processing :: Linguistic",
    "Typing :: Typed",
]


def site_folders() -> list[str]:
    """Where the installing Python keeps packages: pip's isolated build hides it from `sys.path`."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if sys.prefix == sys.base_prefix:  # a virtual environment does not see the user's own packages
        folders.add(site.getusersitepackages())
    return sorted(folders)


def installed(name: str) -> str:
    """Version and place of a distribution, "" if there is none of this name."""
    for folder in site_folders():
        if Path(folder, f"{name}.egg-link").exists():  # written by older versions of pip
            return f"an editable checkout, linked from {folder}"
        for found in importlib.metadata.distributions(name=name, path=[folder]):
            return f"{found.version} in {folder}"
    return ""


def is_installation() -> bool:
    """Whether the package is installed or a wheel is made of it, not only the kernels in a checkout."""
    commands = {"bdist_wheel", "develop", "dist_info", "editable_wheel", "install"}
    return bool(commands & set(sys.argv))


def missing_for_fairseq() -> str:
    """What the compilation of fairseq-fixed needs and this machine lacks, "" for nothing.

    PyPI has a wheel of it for one version of Python only, see `scripts/setup.sh`.
    """
    here = (sys.version_info[:2], sys.platform, platform.machine())
    if here == WHEEL or installed(FAIRSEQ.split("=")[0]):
        return ""
    compilers = (os.environ.get("CXX", "c++"), "g++")
    if not any(shutil.which(compiler.split()[0]) for compiler in compilers if compiler):
        return "a C++ compiler (on Debian: apt-get install g++)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers (on Debian: apt-get install python3-dev)"
    return ""


def refuse_what_cannot_be_built() -> None:
    """Stop an installation before minutes of compilation end in pages of errors."""
    missing = missing_for_fairseq() if is_installation() else ""
    if missing:
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(
            f"\nfairseq_aggdec was NOT installed: {FAIRSEQ} has no wheel for Python {version} on this machine, and "
            f"compiling it needs {missing}. Install that, or use Python 3.12 on Linux x86_64.\n"
        )


def refuse_to_overwrite_fairseq() -> None:
    """Stop an installation that would put fairseq-fixed over another fairseq, unseen."""
    found = installed("fairseq") if is_installation() and not os.environ.get(OVERWRITE) else ""
    if found:
        sys.exit(
            "\nfairseq_aggdec was NOT installed.\n"
            f"This environment already has `fairseq` ({found}).\n"
            f"fairseq_aggdec needs {FAIRSEQ}, which has the same folder and would overwrite it.\n"
            "Use a fresh virtual environment (scripts/setup.sh makes one), or first run\n"
            f"`pip uninstall fairseq`; {OVERWRITE}=1 goes on regardless.\n"
        )


def long_description() -> str:
    """README without its picture and with the words of links into the repository, which lead nowhere elsewhere."""
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    return re.sub(
        r"(!?)\[([^]]*)\]\((?!https?:)[^)]*\)", lambda link: "" if link[1] else link[2], text
    )


def version() -> str:
    """The package's own, read without importing it."""
    found: dict[str, str] = {}
    exec((HERE / "fairseq_aggdec" / "version.py").read_text(encoding="utf-8"), found)
    return found["__version__"]


# The compiled kernels, once for every set of instructions; the package looks at the processor when it runs. Warnings:
# GCC 12 finds uninitialised values in its own header.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-g0"]
FLAGS += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
FLAGS += os.environ.get("CXXFLAGS", "").split()  # last, so that they count
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"]
X86 = {
    "avx2": AVX2,
    "avxvnni": [*AVX2, "-mavxvnni"],
    "avx512": AVX512,
    "amx": [*AVX512, "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
}
ARM = {"neon": ["-march=armv8.2-a+dotprod"]}
MACHINES = {"x86_64": X86, "amd64": X86, "aarch64": ARM, "arm64": ARM}
KERNELS = {"plain": []} | MACHINES.get(platform.machine().lower(), {})


SOURCES = sorted(Path("fairseq_aggdec/kernels/source").rglob("*.[ch]*"))


def digest() -> str:
    """Of the kernels' sources; ``kernels/library.py`` works it out as well and takes no library of another."""
    whole = hashlib.sha256()
    for path in SOURCES:
        whole.update(path.name.encode() + path.read_bytes())
    return whole.hexdigest()


def wanted() -> list[str]:
    """The libraries to compile: all, or those that the variable names."""
    return os.environ.get("AGGDEC_LIBRARIES", " ".join(KERNELS)).split()


def extension(name: str, flags: list[str]) -> Extension:
    """A library with a C interface, no Python module; where it cannot be compiled, it is left out."""
    return Extension(
        f"fairseq_aggdec.kernels._{name}",
        [str(path) for path in SOURCES if path.suffix == ".cpp"],
        depends=[str(path) for path in SOURCES],
        define_macros=[("AGGDEC_DIGEST", f'"{digest()}"')],
        extra_compile_args=FLAGS + flags,
        optional=True,
    )


class BuildKernels(build_ext):
    """setuptools' command, with one compiler a core.

    setuptools compares times alone: a library that was copied may be newer than sources that it was not compiled from.
    """

    def build_extensions(self) -> None:
        paths = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        stamp = digest().encode()
        self.force = self.force or any(
            path.exists() and stamp not in path.read_bytes() for path in paths
        )
        self.parallel = self.parallel or True
        super().build_extensions()

    def build_extension(self, extension: Extension) -> None:
        # One source gives every library: objects in one folder would overwrite each other.
        own = copy.copy(self)
        own.build_temp = str(Path(self.build_temp, extension.name))
        super(BuildKernels, own).build_extension(extension)


refuse_to_overwrite_fairseq()
refuse_what_cannot_be_built()
setup(
    name="fairseq_aggdec",
    version=version(),
    description="Lossless acceleration of encoder-decoder generation in fairseq",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="fairseq_aggdec authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    packages=[*find_packages(include=["fairseq_aggdec", "fairseq_aggdec.*"]), CONFIGS],
    package_dir={CONFIGS: "configs"},
    package_data={
        "fairseq_aggdec": [
            "serve/page.html",
            "kernels/source/*",
            "kernels/gpu/source/*",
            "kernels/source/vector/*",
            "kernels/source/search/*",
            "py.typed",
        ],
        CONFIGS: ["*.yaml"],
    },
    ext_modules=[extension(name, flags) for name, flags in KERNELS.items() if name in wanted()],
    cmdclass={"build_ext": BuildKernels},
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
    project_urls=URLS,
    entry_points={"console_scripts": COMMANDS},
    classifiers=CLASSIFIERS,
    keywords="fairseq speculative decoding, translation, grammatical error correction, Transformer",
)
