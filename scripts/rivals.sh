#!/usr/bin/env bash
# Stock fairseq, ours, CTranslate2 and Hugging Face transformers on one checkpoint and one data set, each in a process of its own.
#
#   scripts/rivals.sh CHECKPOINT DATA [options of `aggdec rivals`: --gen-subset test --cpu --limit 160 --output FILE ...]
#
# Installs nothing: pip install '.[rivals]' brings the other engines; without one its rows are left out.
set -euo pipefail
if [ "$#" -lt 2 ]; then
    printf 'usage: scripts/rivals.sh CHECKPOINT DATA [options of aggdec rivals]\n' >&2
    exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkpoint=$1 data=$2
shift 2
exec "${PYTHON:-$here/../.venv/bin/python}" -m fairseq_aggdec.cli.main rivals "$data" --path "$checkpoint" "$@"
