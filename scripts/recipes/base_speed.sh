#!/usr/bin/env bash
# Speed at base size (6+6 layers, 512/2048/8), where there is no trained model: methods whose speed does not hang on what their
# weights say. No quality, no acceptance: weights are as good as random.
#
#   scripts/recipes/base_speed.sh       on the data of multi30k.sh and the tables of lattice_multi30k.sh
#
# Beam search and the interleaved models write LENGTH tokens, the mean of the references; the lattice searches the lengths
# that it predicts. Killed at any moment, the same command goes on.
# Environment: WORK (work/multi30k), SOURCE and TARGET (de, en), LENGTH (14), LIMIT (60 sentences), THREADS (1 2), BATCH_SIZES
# (1), LATTICE (the tables: WORK/lattice-distilled-PAIR), MODEL_FLAGS (base size), TABLE_FLAGS (more for aggdec bench),
# DEVICE_FLAGS (--cpu where there is no GPU), BF16 (1: every system in bfloat16 too; 0: not), OUTPUT
# (docs/results/base-speed).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

WORK=${WORK:-$ROOT/work/multi30k}
PAIR=${SOURCE:-de}-${TARGET:-en}
LENGTH=${LENGTH:-14}
LIMIT=${LIMIT:-60}
THREADS=${THREADS:-1 2}
BATCH_SIZES=${BATCH_SIZES:-1}
LATTICE=${LATTICE:-$WORK/lattice-distilled-$PAIR}
MODEL_FLAGS=${MODEL_FLAGS:-}
TABLE_FLAGS=${TABLE_FLAGS:-}
devices
DATA=$WORK/data-$PAIR

[ -d "$DATA" ] || die "$DATA is missing: run scripts/recipes/multi30k.sh first"
[ -d "$LATTICE" ] || die "$LATTICE is missing: run scripts/recipes/lattice/lattice_multi30k.sh first"

model() { printf '%s' "$WORK/base-size-$1-$PAIR/checkpoint_last.pt"; }

# shellcheck disable=SC2086
stage "base-size-transformer-$PAIR" untrained "$DATA" --arch transformer --share-all-embeddings $MODEL_FLAGS
START=(--base-checkpoint "$(model transformer)")
for words in 1 2; do
    stage "base-size-2x$words-$PAIR" untrained "$DATA" --arch interleaved_transformer "${START[@]}" --directions 2 --words-per-direction "$words"
done
stage "base-size-lattice-$PAIR" untrained "$DATA" --arch lattice_transformer "${START[@]}"

lengths="--min-len $LENGTH --max-len-a 0 --max-len-b $LENGTH"
writer() { printf '%s=--decoding interleaved --beam 4 --path %s %s' "$1" "$(model "$2")" "$lengths"; }
SYSTEMS=(--system "fairseq beam 5=--decoding stock --beam 5 $lengths" --system "fairseq beam 4=--decoding stock --beam 4 $lengths" --system "fairseq beam 1=--decoding stock --beam 1 $lengths"
    --system "ours, greedy=--decoding greedy $lengths" --system "$(writer "1x1 on this engine, beam 4" transformer)"
    --system "$(writer "2x1, beam 4" 2x1)" --system "$(writer "2x2, beam 4" 2x2)"
    --system "lattice, N = 64=--decoding lattice --path $(model lattice) --lattice $LATTICE")
BASELINES=("fairseq beam 5" "fairseq beam 4" "1x1 on this engine, beam 4" "ours, greedy")
in_bf16 "1x1 on this engine, beam 4" "ours, greedy"
# shellcheck disable=SC2086
aggdec bench "$DATA" --path "$(model transformer)" --gen-subset test --beam 1 $DEVICE_FLAGS --limit "$LIMIT" \
    --threads $THREADS --batch-sizes $BATCH_SIZES --title "Speed at base size, untrained weights, outputs of $LENGTH tokens" \
    "${SYSTEMS[@]}" --baselines "${BASELINES[@]}" $TABLE_FLAGS --output "${OUTPUT:-$ROOT/docs/results/base-speed}"
