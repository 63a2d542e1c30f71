#!/usr/bin/env bash
# The former name of `aggdec train-drafter DATA --path VERIFIER [--output OUTPUT]`, by environment variables as pages and results
# name them: KIND, LAYERS, BLOCK_SIZE, MAX_UPDATE, PATIENCE, LR, MAX_TOKENS, SEED, FLAGS (--train-flags), DISTILL_FLAGS,
# DEVICE_FLAGS (--cpu), PYTHON.
set -euo pipefail
[ "$#" -ge 2 ] && [ "$#" -le 3 ] || { printf 'usage: scripts/train_drafter.sh DATA VERIFIER [OUTPUT]\n' >&2; exit 2; }
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
given=("${1%/}" --path "$2" ${3:+--output "$3"} ${DEVICE_FLAGS:-})
for option in KIND LAYERS BLOCK_SIZE MAX_UPDATE PATIENCE LR MAX_TOKENS SEED; do
    [ -z "${!option:-}" ] || { name=${option,,}; given+=("--${name//_/-}=${!option}"); }
done
[ -z "${FLAGS:-}" ] || given+=("--train-flags=$FLAGS")
[ -z "${DISTILL_FLAGS:-}" ] || given+=("--distill-flags=$DISTILL_FLAGS")
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-$ROOT/.venv/bin/python}" -m fairseq_aggdec.cli.main train-drafter "${given[@]}"
