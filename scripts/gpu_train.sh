#!/usr/bin/env bash
# Trains models on a GPU that is lent for minutes, and makes their tables there.
#
#   scripts/gpu_train.sh --prepare [RAW]     beforehand, on a CPU: binarised Multi30k in work/gpu-train/prepared (a few MiB)
#   scripts/gpu_train.sh --wheels FOLDER --what WHAT --out OUT --seconds 540      with the machine's own Python and PyTorch
#   scripts/gpu_train.sh --what WHAT --out OUT                                    with the environment of scripts/setup.sh
#   scripts/gpu_train.sh --rehearse --out OUT [--what WHAT]                       two updates of everything, without a GPU
#
# WHAT: pair (base-size verifier, one-layer drafter, heads), stern (Table 1), zhang (Figures 4 and 5), lattice (Table 1).
# Other options: python -m scripts.recipes.gpu_train.train --help. scripts/gpu_wheels.sh fills FOLDER.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"

die() { printf 'gpu_train: error: %s\n' "$*" >&2; exit 2; }

if [ "${1:-}" = --prepare ]; then
    [ "$#" -le 2 ] || die "--prepare takes the folder of the raw files, and nothing else"
    WORK=$PWD/work/gpu-train/prepared MAX_UPDATE=0 exec bash scripts/recipes/multi30k.sh "${@:2}"
fi

. scripts/gpu_python.sh
gpu_python "$@"
"$PYTHON" -m scripts.recipes.gpu_train.train "${OPTIONS[@]+"${OPTIONS[@]}"}"
