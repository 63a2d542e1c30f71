#!/usr/bin/env bash
# Corrects real Ukrainian sentences with five decoders and shows that the fast ones give the same text.
#
#   bash scripts/demo.sh            about two minutes on two cores, after the installation (once, minutes)
#   bash scripts/demo.sh --limit 40 a quick look
#
# Ends with a table, a coloured trace of three sentences, and report.html.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export PYTHONWARNINGS=ignore # of fairseq's dependencies, about each other
exec .venv/bin/python -m scripts.demo "$@"
