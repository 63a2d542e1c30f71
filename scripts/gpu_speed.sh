#!/usr/bin/env bash
# What a GPU is asked, in one command that ends in time: how fast it is, or whether it is right.
#
#   scripts/gpu_speed.sh --out FOLDER --seconds N               how fast every method is, beside stock and rivals
#   scripts/gpu_speed.sh --out FOLDER --seconds N --profile checks    every method against stock, audits, counts, tests
#   scripts/gpu_speed.sh --out FOLDER --wheels FOLDER           with the machine's own Python 3.11 or 3.12 and PyTorch; no
#                                                               index, no network (scripts/gpu_wheels.sh fills FOLDER)
#   scripts/gpu_speed.sh --out FOLDER --rehearse                all of it, tiny, without a GPU
#
# Without --wheels it uses the environment of scripts/setup.sh. Other options: python -m scripts.recipes.gpu.run --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# What runs on the CPU is tiny.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

die() { printf 'gpu_speed: error: %s\n' "$*" >&2; exit 2; }

wheels='' options=()
while [ "$#" -gt 0 ]; do
    case "$1" in
        --wheels) [ -d "${2:-}" ] || die "--wheels ${2:-}: there is no such folder"; wheels=$2; shift 2 ;;
        *) options+=("$1"); shift ;;
    esac
done

if [ -z "$wheels" ]; then
    bash scripts/setup.sh
    python=.venv/bin/python
else
    python=${BASE_PYTHON:-python3}
    "$python" -c 'import sys, torch; assert sys.version_info[:2] in ((3, 11), (3, 12))' 2>/dev/null ||
        die "$python is not Python 3.11 or 3.12 with PyTorch: name one in BASE_PYTHON"
    files=("$wheels"/*.whl)
    [ -e "${files[0]}" ] || die "--wheels $wheels: there are no wheels"
    # Beside the machine's packages, which stay as they are; nothing is fetched.
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "${files[@]}"
    export PYTHONPATH="$site:$PWD${PYTHONPATH:+:$PYTHONPATH}"
    # CTranslate2 looks for cuBLAS 12; that of CUDA 13 serves it too, except for 8 bits.
    cublas=$("$python" -c 'import glob, site; print(*sorted(p for s in site.getsitepackages()
        for p in glob.glob(s + "/nvidia/*/lib/libcublas.so.1[23]"))[:1])')
    if [ -n "$cublas" ]; then
        ln -s "$cublas" "$site/libcublas.so.12"
        export LD_LIBRARY_PATH="$site:$(dirname "$cublas")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
fi
status=0
"$python" -m scripts.recipes.gpu.run "${options[@]+"${options[@]}"}" || status=$?
exit "$status"
