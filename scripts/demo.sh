#!/usr/bin/env bash
# Corrects real Ukrainian sentences with five decoders and shows that the fast ones give the same text.
#
#   bash scripts/demo.sh             about two minutes on two cores, after the installation (once, minutes)
#   LIMIT=40 bash scripts/demo.sh    a quick look
#
# Ends with a table, a coloured trace of three sentences, and report.html. One sentence at a time, as a user waits for them;
# one thread. Environment: LIMIT (200 sentences), REPORT (the page; report.html), PYTHON (.venv/bin/python, which is made where it is missing).
# Model and sentences are in checkpoints/ua_gec (CC BY 4.0).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -n "${PYTHON:-}" ] || bash scripts/setup.sh
PYTHON=${PYTHON:-.venv/bin/python}
SHIPPED=checkpoints/ua_gec
export PYTHONWARNINGS=ignore # of fairseq's dependencies, about each other
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
DATA=$(mktemp -d)
trap 'rm -rf "$DATA"' EXIT

# The sentences in pieces, as a data set.
cp "$SHIPPED"/dict.*.txt "$DATA"
"$PYTHON" - "$SHIPPED" "$DATA/test.src-tgt." <<'PYTHON'
import sys
from pathlib import Path

import sentencepiece

shipped, prefix = Path(sys.argv[1]), sys.argv[2]
pieces = sentencepiece.SentencePieceProcessor(model_file=str(shipped / "spm.model"))
for side in ("src", "tgt"):
    lines = (shipped / f"sample.{side}").read_text(encoding="utf-8").splitlines()
    encoded = (" ".join(line) + "\n" for line in pieces.encode(lines, out_type=str))
    Path(prefix + side).write_text("".join(encoded), encoding="utf-8")
PYTHON

aggdec() {
    local tool=$1
    shift
    "$PYTHON" -m fairseq_aggdec.cli.main "$tool" "$DATA" --dataset-impl raw --source-lang src --target-lang tgt \
        --path "$SHIPPED/checkpoint.pt" --post-process sentencepiece --cpu --limit "${LIMIT:-200}" "$@"
}
# Sentences of error correction are tokens, which sacreBLEU warns of: F0.5 against both annotators is their measure.
aggdec bench --systems beam5 search5 beam1 greedy iad --batch-sizes 1 --baselines beam5 beam1 --threads 1 \
    --gec "$SHIPPED"/sample.{src,tgt,tgt2}
printf '\nHow IAD decoded three of them, a line per call of the decoder:\n'
aggdec trace --decoding iad --beam 1 --report "${REPORT:-report.html}"
