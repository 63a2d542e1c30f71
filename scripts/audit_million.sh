#!/usr/bin/env bash
# A million decodings of random models and trained ones against stock fairseq; the same command goes on after a kill.
#
#   scripts/audit_million.sh [--state FILE] [--decodings N] [--first N --step N] [--real DATA CHECKPOINT ...] [--report] [--output FILE]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export TQDM_DISABLE=1 PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
exec "${PYTHON:-$here/../.venv/bin/python}" -m fairseq_aggdec.cli.audit_random --state work/audit/cases.jsonl "$@"
