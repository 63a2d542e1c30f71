#!/usr/bin/env bash
# What a GPU is asked, in one command that ends in time: how fast it is, or whether it is right.
#
#   scripts/gpu_speed.sh --out FOLDER --seconds N               how fast every method is, beside stock and rivals
#   scripts/gpu_speed.sh --out FOLDER --seconds N --profile checks    every method against stock, audits, counts, tests
#   scripts/gpu_speed.sh --out FOLDER --seconds N --profile papers    interleaved models, lattices, heads, memory: untrained
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

. scripts/gpu_python.sh
gpu_python "$@"
"$PYTHON" -m scripts.recipes.gpu.run "${OPTIONS[@]+"${OPTIONS[@]}"}" &
program=$! status=0
# What ends this script ends the program, which ends its worker.
trap 'kill -TERM "$program" 2>/dev/null' TERM INT HUP
wait "$program" || status=$?
while kill -0 "$program" 2>/dev/null; do wait "$program" || status=$?; done  # a signal ends a wait
exit "$status"
