#!/usr/bin/env bash
# Everything that a first GPU is to be asked, within nine minutes: equality, audits, times, counts, memory.
#
#   scripts/gpu_check.sh --wheels FOLDER   with the machine's own Python 3.12 and PyTorch; no index, no network: FOLDER has
#                                          the wheels of fairseq-fixed, hydra-core, omegaconf, antlr4-python3-runtime,
#                                          bitarray, cffi, scikit-learn and what else is missing (docs/gpu.md)
#   scripts/gpu_check.sh                   with the environment of scripts/setup.sh
#   scripts/gpu_check.sh --rehearse        all of it, tiny, without a GPU, within two minutes
#
# Other options: python -m scripts.recipes.gpu.check --help. Writes OUTPUT.json and OUTPUT.md (gpu-check).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# What runs on the CPU is tiny.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

die() { printf 'gpu_check: error: %s\n' "$*" >&2; exit 2; }

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
    base=${BASE_PYTHON:-python3}
    "$base" -c 'import sys, torch; assert sys.version_info[:2] in ((3, 11), (3, 12))' 2>/dev/null ||
        die "$base is not Python 3.11 or 3.12 with PyTorch: name one in BASE_PYTHON"
    files=("$wheels"/*.whl)
    [ -e "${files[0]}" ] || die "--wheels $wheels: there are no wheels"
    # Beside the machine's packages, which stay as they are; nothing is fetched.
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$base" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "${files[@]}"
    export PYTHONPATH="$site:$PWD${PYTHONPATH:+:$PYTHONPATH}"
    python=$base
fi
status=0
"$python" -m scripts.recipes.gpu.check "${options[@]+"${options[@]}"}" || status=$?
exit "$status"
