# shellcheck shell=bash
# Shared by gpu_speed.sh and gpu_train.sh, which source it: the Python of a machine with a GPU.
#
#   gpu_python --wheels FOLDER OPTION...    sets PYTHON: the machine's own, with its PyTorch, beside the wheels of FOLDER; no
#                                           index, no network.
#   gpu_python OPTION...                    sets PYTHON: the environment of scripts/setup.sh
#
# OPTIONS: what remains of the options.
# Environment: BASE_PYTHON (python3: the machine's own). Exports PYTHONPATH and removes what it installed at the end.

gpu_python() {
    local wheels='' files cublas
    OPTIONS=()
    while [ "$#" -gt 0 ]; do
        case "$1" in
            --wheels) [ -d "${2:-}" ] || die "--wheels ${2:-}: there is no such folder"; wheels=$2; shift 2 ;;
            *) OPTIONS+=("$1"); shift ;;
        esac
    done
    if [ -z "$wheels" ]; then
        bash scripts/setup.sh
        PYTHON=.venv/bin/python
        return
    fi
    PYTHON=${BASE_PYTHON:-python3}
    "$PYTHON" -c 'import sys, torch; assert sys.version_info[:2] in ((3, 11), (3, 12))' 2>/dev/null ||
        die "$PYTHON is not Python 3.11 or 3.12 with PyTorch: name one in BASE_PYTHON"
    files=("$wheels"/*.whl)
    [ -e "${files[0]}" ] || die "--wheels $wheels: there are no wheels"
    # Beside the machine's packages, which stay as they are; nothing is fetched.
    SITE=$(mktemp -d)
    trap 'rm -rf "$SITE"' EXIT
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$SITE" "${files[@]}"
    export PYTHONPATH="$SITE:$PWD${PYTHONPATH:+:$PYTHONPATH}"
    # CTranslate2 looks for cuBLAS 12; that of CUDA 13 serves it too, except for 8 bits.
    cublas=$("$PYTHON" -c 'import glob, site; print(*sorted(p for s in site.getsitepackages()
        for p in glob.glob(s + "/nvidia/*/lib/libcublas.so.1[23]"))[:1])')
    if [ -n "$cublas" ]; then
        ln -s "$cublas" "$SITE/libcublas.so.12"
        export LD_LIBRARY_PATH="$SITE:$(dirname "$cublas")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
}
