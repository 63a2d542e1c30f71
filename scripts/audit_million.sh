#!/usr/bin/env bash
# A million decodings of random models and trained ones against stock fairseq; the same command resumes after a kill.
#
#   scripts/audit_million.sh [--output NAME] [--cases N] [--first N --step N] [--real DATA CHECKPOINT ...] [--report]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
exec "${PYTHON:-.venv/bin/python}" -m tests.fuzz.run --large --cases 83 --output work/audit/million "$@"
