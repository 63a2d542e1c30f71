#!/usr/bin/env bash
# What a GPU is asked, in one command that ends in time: how fast it is, whether it is right, and a training.
#
#   scripts/gpu.sh --out FOLDER --seconds N                     how fast every method is, beside stock and rivals
#   scripts/gpu.sh --out FOLDER --seconds N --profile checks    kernels, tests, audits against stock, sanitizers
#   scripts/gpu.sh --out FOLDER --seconds N --profile train     a verifier, its drafters and heads, and their tables
#   scripts/gpu.sh --out FOLDER --profile PROFILE --rehearse    the same, tiny, without a GPU
#   scripts/gpu.sh --prepare [RAW]                              beforehand: binarised Multi30k for the training, a few MiB
#
# A machine without an index has PyTorch, and gets all other packages from a folder of wheels:
#
#   scripts/gpu.sh --fill WHEELS [OPTION...]                    fills it; options of pip download, as --python-version 3.12
#   scripts/gpu.sh --wheels WHEELS --out FOLDER ...             with the machine's own Python 3.11 or 3.12; no network
#
# Without --wheels it uses the environment of scripts/setup.sh. Other options: python -m scripts.recipes.gpu.run --help.
# Environment: BASE_PYTHON (python3: the machine's own).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # what runs on the CPU is tiny

die() { printf 'gpu: error: %s\n' "$*" >&2; exit 2; }

PACKAGES=(ve-fairseq hydra-core omegaconf bitarray cffi pycparser rapidfuzz portalocker scikit-learn scipy joblib cloudpickle
    threadpoolctl narwhals sentencepiece sacrebleu tabulate colorama lxml regex packaging PyYAML tqdm jinja2 markupsafe matplotlib
    pytest iniconfig pluggy pygments hypothesis sortedcontainers ctranslate2 transformers tokenizers huggingface-hub safetensors)

# Packages that a machine with PyTorch lacks, in the versions that the environment has.
fill() {
    local folder=${1:-} known name
    [ -n "$folder" ] || die '--fill: name a folder'
    [ -x .venv/bin/python ] || bash scripts/setup.sh
    mkdir -p "$folder"
    known=$(.venv/bin/python -m pip list --format=freeze 2>/dev/null)
    for name in "${PACKAGES[@]}"; do grep -iE "^${name//-/[-_]}==" <<< "$known" || printf '%s\n' "$name"; done > "$folder/packages"
    # omegaconf needs this one, of which there is no wheel.
    .venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir "$folder" 'antlr4-python3-runtime==4.9.*'
    .venv/bin/python -m pip download --quiet --no-deps --only-binary=:all: --dest "$folder" -r "$folder/packages" "${@:2}"
    du -sh "$folder"
}

# Sets PYTHON: the machine's own with its PyTorch, beside the wheels of a folder. They are removed at the end.
beside_wheels() {
    local files cublas
    [ -d "$1" ] || die "--wheels $1: there is no such folder"
    PYTHON=${BASE_PYTHON:-python3}
    "$PYTHON" -c 'import sys, torch; assert sys.version_info[:2] in ((3, 11), (3, 12))' 2>/dev/null ||
        die "$PYTHON is not Python 3.11 or 3.12 with PyTorch: name one in BASE_PYTHON"
    files=("$1"/*.whl)
    [ -e "${files[0]}" ] || die "--wheels $1: there are no wheels"
    SITE=$(mktemp -d)
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$SITE" "${files[@]}"
    export PYTHONPATH="$SITE:$PWD${PYTHONPATH:+:$PYTHONPATH}"
    # CTranslate2 looks for cuBLAS 12; that of CUDA 13 serves it too, except for 8 bits.
    cublas=$("$PYTHON" -c 'import glob, site; print(*sorted(p for s in site.getsitepackages()
        for p in glob.glob(s + "/nvidia/*/lib/libcublas.so.1[23]"))[:1])')
    [ -n "$cublas" ] || return 0
    ln -s "$cublas" "$SITE/libcublas.so.12"
    export LD_LIBRARY_PATH="$SITE:$(dirname "$cublas")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

SITE='' wheels='' options=()
case "${1:-}" in
    --fill) fill "${@:2}"; exit ;;
    --prepare) WORK=$PWD/work/gpu/prepared MAX_UPDATE=0 exec bash scripts/recipes/multi30k.sh "${@:2}" ;;
esac
while [ "$#" -gt 0 ]; do
    case "$1" in
        --wheels) wheels=${2:-}; shift 2 ;;
        *) options+=("$1"); shift ;;
    esac
done
if [ -n "$wheels" ]; then
    beside_wheels "$wheels"
else
    bash scripts/setup.sh
    PYTHON=.venv/bin/python
fi
"$PYTHON" -m scripts.recipes.gpu.run "${options[@]+"${options[@]}"}" &
program=$! status=0
# What ends this script ends the program, which ends its processes.
trap 'kill -TERM "$program" 2>/dev/null' TERM INT HUP
trap '[ -z "$SITE" ] || rm -rf "$SITE"' EXIT
wait "$program" || status=$?
while kill -0 "$program" 2>/dev/null; do wait "$program" || status=$?; done  # a signal ends a wait
exit "$status"
