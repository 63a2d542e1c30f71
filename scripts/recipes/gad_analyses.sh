#!/usr/bin/env bash
# The analyses of Ge et al. (appendix B) at a small size, on a drafter of gad_multi30k.sh: one table each, made once.
#
#   scripts/recipes/gad_analyses.sh                     all of ANALYSES
#   ANALYSES=tolerance scripts/recipes/gad_analyses.sh  one of them
#
#   block-size   Table 6: tokens drafted at once
#   tolerance    Table 7: --top-beta x --tolerance
#   batch        Figure 7: latency against batch size
#   drafter      Table 9: all drafters that are trained
#
# A table that is there already is kept: delete its .json to make it anew.
# Environment: WORK (work/multi30k), SOURCE and TARGET (de, en), DRAFTER (its folder's name without the pair: drafter), ANALYSES,
# BLOCK_SIZES (1 3 5 7 10), TABLE_FLAGS (more for scripts/compare.py), DEVICE_FLAGS (--cpu), OUTPUT (docs/results/gad-multi30k).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

WORK=${WORK:-$ROOT/work/multi30k}
PAIR=${SOURCE:-de}-${TARGET:-en}
DRAFTER=$WORK/${DRAFTER:-drafter}-$PAIR/checkpoint_best.pt
ANALYSES=${ANALYSES:-block-size tolerance batch drafter}
BLOCK_SIZES=${BLOCK_SIZES:-1 3 5 7 10}
TABLE_FLAGS=${TABLE_FLAGS:-}
DEVICE_FLAGS=${DEVICE_FLAGS:---cpu}
OUTPUT=${OUTPUT:-$ROOT/docs/results/gad-multi30k}
GAD="--decoding gad --drafter-path $DRAFTER"

[ -e "$DRAFTER" ] || die "$DRAFTER is missing: run scripts/recipes/gad_multi30k.sh first"

# table NAME TITLE OPTIONS...   OPTIONS go to scripts/compare.py
table() {
    local name=$1 title=$2; shift 2
    if [ -e "$OUTPUT-$name.json" ]; then say "$OUTPUT-$name.json is there already, kept"; return; fi
    # shellcheck disable=SC2086  # the flags are lists
    "$PYTHON" "$ROOT/scripts/compare.py" "$WORK/data-$PAIR" --path "$WORK/model-$PAIR/model.pt" --gen-subset test --beam 1 \
        --max-len-a 1.2 --max-len-b 10 --post-process sentencepiece $DEVICE_FLAGS --title "GAD on Multi30k $PAIR: $title" \
        --system "fairseq beam 1=" --system "ours, greedy=--decoding greedy" "$@" \
        --baselines "fairseq beam 1" "ours, greedy" $TABLE_FLAGS --output "$OUTPUT-$name"
}

block_size() {
    local systems=()
    for size in $BLOCK_SIZES; do systems+=(--system "k = $size=$GAD --block-size $size"); done
    systems+=(--system "k = auto=$GAD --block-size auto")
    table block-size "block size (Table 6)" "${systems[@]}"
}

tolerance() {
    local systems=()
    for beta in 1 3 5; do
        for tau in 1.0 3.0 5.0; do
            systems+=(--system "beta $beta, tau $tau=$GAD --acceptance top-beta --top-beta $beta --tolerance $tau")
        done
    done
    table tolerance "relaxed acceptance (Table 7)" "${systems[@]}"
}

batch() {
    table batch "batch size (Figure 7)" --system "GAD=$GAD" --batch-sizes 1 2 4 8 16 32
}

drafter() {
    local systems=() name
    for folder in "$WORK"/drafter*-"$PAIR"/; do
        name=$(basename "$folder" "-$PAIR")
        systems+=(--system "$name=--decoding gad --drafter-path ${folder}checkpoint_best.pt")
    done
    table drafter "drafters (Table 9)" "${systems[@]}"
}

for analysis in $ANALYSES; do
    case $analysis in
        block-size) block_size ;;
        tolerance | batch | drafter) "$analysis" ;;
        *) die "unknown analysis '$analysis' in ANALYSES (choose from: block-size tolerance batch drafter)" ;;
    esac
done
