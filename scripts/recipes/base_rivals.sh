#!/usr/bin/env bash
# Speed beside CTranslate2 at base size (6+6 layers, 512/2048/8) with a large vocabulary, where there is no trained model: weights
# are as good as random, so drafts are not measured, and all write LENGTH tokens.
#
#   scripts/recipes/base_rivals.sh      on the subwords of multi30k.sh
#
# Environment: WORK (work/multi30k), SOURCE and TARGET (de, en), TYPES (32000: the dictionary is filled up with types that no
# sentence has), LENGTH (14), LIMIT (24 sentences), BATCH_SIZES (1 8 24), MODEL_FLAGS (base size), TABLE_FLAGS (more for aggdec
# bench), DEVICE_FLAGS (--cpu where there is no GPU), OUTPUT (docs/results/rivals-base-size).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

WORK=${WORK:-$ROOT/work/multi30k}
SOURCE=${SOURCE:-de}
TARGET=${TARGET:-en}
PAIR=$SOURCE-$TARGET
TYPES=${TYPES:-32000}
LENGTH=${LENGTH:-14}
LIMIT=${LIMIT:-24}
BATCH_SIZES=${BATCH_SIZES:-1 8 24}
MODEL_FLAGS=${MODEL_FLAGS:-}
TABLE_FLAGS=${TABLE_FLAGS:-}
devices

[ -d "$WORK/subwords" ] || die "$WORK/subwords is missing: run scripts/recipes/multi30k.sh first"

data() {
    local known="$WORK/data-$PAIR/dict.$SOURCE.txt" text="$WORK/subwords"
    { cat "$known"; seq -f 'unused%.0f 0' $((TYPES - $(wc -l < "$known"))); } > "$OUT/types.txt"
    "$BIN/fairseq-preprocess" --source-lang "$SOURCE" --target-lang "$TARGET" --joined-dictionary --srcdict "$OUT/types.txt" \
        --workers 2 --trainpref "$text/valid" --testpref "$text/test" --destdir "$OUT"
}

stage "base-rivals-data-$PAIR" data
DATA=$WORK/base-rivals-data-$PAIR
# shellcheck disable=SC2086  # the flags are lists
stage "base-rivals-$PAIR" untrained "$DATA" --arch transformer --share-all-embeddings $MODEL_FLAGS
# shellcheck disable=SC2086
aggdec bench "$DATA" --path "$WORK/base-rivals-$PAIR/checkpoint_last.pt" --gen-subset test $DEVICE_FLAGS --limit "$LIMIT" \
    --min-len "$LENGTH" --max-len-a 0 --max-len-b "$LENGTH" --threads 1 --batch-sizes $BATCH_SIZES \
    --title "Engines at base size, $TYPES types, untrained weights, outputs of $LENGTH tokens" \
    --systems beam5 beam1 search5 search5-int8 greedy greedy-int8 ct2-float32 ct2-float32-beam5 ct2-int8 ct2-int8-beam5 \
    $TABLE_FLAGS --output "${OUTPUT:-$ROOT/docs/results/rivals-base-size}"
