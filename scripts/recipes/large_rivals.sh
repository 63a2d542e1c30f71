#!/usr/bin/env bash
# Speed, memory and equality beside CTranslate2 at the size of NLLB-600M: 12+12 layers, width 1,024, 16 heads, FFN 4,096, 256,206
# types, layers normalised first; 615 million random weights. All write LENGTH tokens. Ours decodes packed folders.
#
#   scripts/recipes/large_rivals.sh
#
# The table `start` says what processor time and memory the 8-bit forms take until their first sentence is written; the
# table `roofline`, how near the times are to the limits of the machine.
#
# A random model may write one word again and again, which what beam search evaluates ahead foretells: the rows "without
# look-ahead" are what a model gains at least. Each form and search is a run of its own, because of the memory. Needs 12 GB of
# memory and 16 GB of disk.
#
# Environment: WORK (work/large), SIZE (large, of scripts/random_models.py), FORMS (int8 float32), SEARCHES (greedy beam5), LENGTH (20),
# LIMIT (8 sentences), BATCH_SIZES (1 8), THREADS (1 2), QUIET (a command that runs each measurement). The tables are in WORK/tables.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

WORK=${WORK:-$ROOT/work/large}
SIZE=${SIZE:-large}
FORMS=${FORMS:-int8 float32}
SEARCHES=${SEARCHES:-greedy beam5}
LENGTH=${LENGTH:-20}
LIMIT=${LIMIT:-8}
BATCH_SIZES=${BATCH_SIZES:-1 8}
THREADS=${THREADS:-1 2}
QUIET=${QUIET:-}

model() {
    "$PYTHON" - "$OUT" "$SIZE" "$LIMIT" <<'PYTHON'
import sys
from pathlib import Path
from types import SimpleNamespace

from scripts.random_models import prepare

folder, size, sentences = sys.argv[1:]
source = SimpleNamespace(source=[0] * 21, iterations=())
more = ("--encoder-normalize-before", "--decoder-normalize-before")
prepare(Path(folder), size, [source] * int(sentences), more=more)
PYTHON
}

# packed FLAG...: a packed folder
packed() { rmdir "$OUT" && aggdec pack "$WORK/model/$SIZE.pt" "$WORK/model" "$OUT" "$@"; }

# table NAME THREADS FORM SYSTEM...
table() {
    local name=$1 threads=$2 form=$3
    shift 3
    # shellcheck disable=SC2086  # lists
    $QUIET "$PYTHON" -m fairseq_aggdec.cli.main bench "$WORK/model" --source-lang source --target-lang target --gen-subset test \
        --dataset-impl raw --path "$WORK/packed-$form" --cpu --limit "$LIMIT" --min-len "$LENGTH" --max-len-a 0 \
        --max-len-b "$LENGTH" --threads "$threads" --batch-sizes $BATCH_SIZES --title "Engines at the size of NLLB-600M: $name" \
        --systems "$@" --output "$WORK/tables/$name"
}

stage model model
mkdir -p "$WORK/tables"
for form in $FORMS; do
    case $form in
        int8) stage packed-int8 packed --int8; ending=-int8 ;;
        float32) stage packed-float32 packed; ending= ;;
        *) die "FORMS: int8, float32" ;;
    esac
    for search in $SEARCHES; do
        case $search in
            greedy) systems=(beam1 "greedy$ending" "ct2-$form") ;;
            beam5) systems=(beam5 "search5$ending" "undrafted5$ending" "ct2-$form-beam5") ;;
            *) die "SEARCHES: greedy, beam5" ;;
        esac
        for threads in $THREADS; do
            name=$form-$search-$threads
            [ -e "$WORK/tables/$name.md" ] || table "$name" "$threads" "$form" "${systems[@]}"
        done
    done
done
if [ -d "$WORK/packed-int8" ] && [ ! -e "$WORK/tables/start.md" ]; then
    $QUIET "$PYTHON" -m scripts.recipes.large_start "$WORK" --size "$SIZE" --output "$WORK/tables/start"
fi
[ -e "$WORK/tables/roofline.md" ] ||
    $QUIET "$PYTHON" -m scripts.recipes.large_roofline "$WORK/tables" --size "$SIZE" --output "$WORK/tables/roofline"
