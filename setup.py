"""Package metadata and dependencies of fairseq_aggdec."""

import copy
import hashlib
import os
import platform
import re
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
# Without a fairseq of the user's own the extra `fairseq` brings one: that with wheels where it has one for this Python.
LINUX = "sys_platform == 'linux' and platform_machine == 'x86_64'"
WHEELS = f"python_version >= '3.11' and python_version < '3.13' and {LINUX}"
NO_WHEELS = "python_version < '3.11' or python_version >= '3.13'"
NO_WHEELS += " or sys_platform != 'linux' or platform_machine != 'x86_64'"

REQUIREMENTS = [  # fairseq is not among them: an environment has its own, under one of many names
    "numpy>=1.21,<3",
    "omegaconf>=2.0,<2.4",  # fairseq chooses the version
    "rapidfuzz>=3.6,<4",
    "rich>=13,<16",
    "sacrebleu>=2.4,<3",
    "sentencepiece>=0.2,<0.3",
    "torch>=2.6,<3",
    "tqdm>=4.60,<5",
    "typing_extensions>=4.4",
]
EXTRAS = {
    "fairseq": [
        f"ve-fairseq==0.12.3; {WHEELS}",
        f"fairseq-fixed==0.12.3.1; {NO_WHEELS}",  # compiled, which takes minutes
    ],
    "benchmark": ["ctranslate2>=4.5,<5"],
    "completion": ["shtab>=1.6,<2"],  # of a shell
    "convert": [  # models of other libraries
        "huggingface_hub>=0.34,<1",  # downloads them by name
        "safetensors>=0.4,<1",
        "transformers>=4.57,<5",
    ],
    "gec": ["ua-gec>=2.1,<3"],
    "images": ["pillow>=10.1,<14", "scikit-image>=0.24,<0.27"],
    "recipes": ["rouge-score>=0.1.2,<0.2", "sacremoses>=0.1,<0.3"],  # data and scores of the papers
    "rivals": [  # other engines, to compare with
        "ctranslate2>=4.5,<5",
        "transformers>=4.57,<5",
    ],
    "serve": [
        "starlette>=0.40,<2",  # routes, forms, answers; 0.40 bounds the parts of a form
        "uvicorn>=0.30,<1",  # HTTP, signals, shutdown
        "prometheus_client>=0.20,<1",  # /metrics
        "python-multipart>=0.0.18,<1",  # forms, which clients of LibreTranslate send
        "jinja2>=3.1,<4",  # the page
        "langcodes>=3.4,<4",  # names of languages
        "language_data>=1.2,<2",  # which langcodes reads
    ],
    "docs": ["mkdocs-material>=9.5,<10", "mkdocstrings[python]>=0.26,<2"],  # the pages as a site
}
EXTRAS["test"] = [
    *EXTRAS["fairseq"],
    *EXTRAS["completion"],
    *EXTRAS["convert"],
    *EXTRAS["gec"],
    *EXTRAS["images"],
    *EXTRAS["recipes"],
    *EXTRAS["serve"],
    "axe-core-python>=0.1,<0.2; python_version >= '3.10'",  # rules of accessibility, run in a browser
    "httpx>=0.27,<1",  # requests of the tests of the service
    "libretranslatepy>=2.1,<3",  # a client that knows nothing of us
    "matplotlib>=3.8,<4",  # figures of the papers
    "pandas>=2,<4",  # an example
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
    "Programming Language :: Python :: 3.10",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Programming Language :: C++",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Topic :: Text Processing :: Linguistic",
    "Typing :: Typed",
]


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

    def get_ext_filename(self, name: str) -> str:
        """No name of a Python in it: each loads the same library."""
        return str(Path(*name.split("."))) + ".so"

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


class WheelOfAnyPython(bdist_wheel):
    """One wheel for each kind of machine: the libraries need no headers of Python."""

    def get_tag(self) -> tuple:
        return "py3", "none", super().get_tag()[2]


setup(
    name="fairseq_aggdec",
    version=version(),
    description="Lossless acceleration of encoder-decoder generation in fairseq",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="fairseq_aggdec authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    packages=[*find_packages(include=["fairseq_aggdec", "fairseq_aggdec.*"]), CONFIGS],
    package_dir={CONFIGS: "configs"},
    package_data={
        "fairseq_aggdec": [
            "startup/known_fairseq.json",
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
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelOfAnyPython},
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
    project_urls=URLS,
    entry_points={"console_scripts": COMMANDS},
    classifiers=CLASSIFIERS,
    keywords="fairseq speculative decoding, translation, grammatical error correction, Transformer",
)
