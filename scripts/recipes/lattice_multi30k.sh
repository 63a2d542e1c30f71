#!/usr/bin/env bash
# Sequence-to-lattice on Multi30k (Deng and Rush 2023) at a small size, on the model of multi30k.sh.
#
#   scripts/recipes/lattice_multi30k.sh      tables of candidates, scorers of SETTINGS x LAYERS, then the table of results
#
# Killed at any moment, the same command goes on.
# Environment: WORK (work/multi30k), SOURCE and TARGET (de, en), SETTINGS (distilled raw), LAYERS (1 2: of the scorer), MAX_UPDATE
# (1000), LR (0.001), MARKOV_ORDER (mixed), CANDIDATES (32 64 128; 1 is always there), TABLE_FLAGS (more for scripts/compare.py),
# DEVICE_FLAGS (--cpu), PRECISION_FLAGS (--amp: products in half precision while training), BF16 (1: the table holds every system
# in bfloat16 too; 0: not), SEED (1), OUTPUT (docs/results/lattice-multi30k).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

WORK=${WORK:-$ROOT/work/multi30k}
SOURCE=${SOURCE:-de}
TARGET=${TARGET:-en}
PAIR=$SOURCE-$TARGET
SETTINGS=${SETTINGS:-distilled raw}
LAYERS=${LAYERS:-1 2}
MAX_UPDATE=${MAX_UPDATE:-1000}
CANDIDATES=${CANDIDATES:-32 64 128}
TABLE_FLAGS=${TABLE_FLAGS:-}
LR=${LR:-0.001}
MARKOV_ORDER=${MARKOV_ORDER:-mixed}
SEED=${SEED:-1}
DEVICE_FLAGS=${DEVICE_FLAGS:---cpu}
PRECISION_FLAGS=${PRECISION_FLAGS:---amp}
BASE=$WORK/model-$PAIR/model.pt
DATA=$WORK/data-$PAIR
DISTILLED=$WORK/distilled-$PAIR

[ -e "$BASE" ] || die "$BASE is missing: run scripts/recipes/multi30k.sh first"

distil() {
    # shellcheck disable=SC2086  # the flags are lists
    bash "$ROOT/scripts/distill.sh" "$DATA" "$DISTILLED" --path "$BASE" --batch-size 64 \
        --max-len-a 1.2 --max-len-b 10 --post-process sentencepiece $DEVICE_FLAGS
}

data_of() {
    case $1 in
        raw) echo "$DATA" ;;
        distilled) echo "$DISTILLED" ;;
        *) die "unknown setting '$1' in SETTINGS (choose from: raw distilled)" ;;
    esac
}

tables() {
    "$PYTHON" "$ROOT/scripts/lattice_tables.py" "$(data_of "$1")" --output "$OUT"
}

train() {
    local setting=$1 layers=$2
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$(data_of "$setting")" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS \
        $PRECISION_FLAGS --seed "$SEED" \
        --arch lattice_transformer --base-checkpoint "$BASE" --decoder-layers "$layers" --markov-order "$MARKOV_ORDER" \
        --dropout 0.2 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --weight-decay 0.0001 \
        --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates 400 \
        --max-tokens 4000 --required-batch-size-multiple 1 --max-update "$MAX_UPDATE" --num-workers 0 \
        --save-dir "$OUT" --save-interval-updates 500 --validate-interval-updates 500 --validate-interval 1000000 \
        --keep-interval-updates 2 --no-epoch-checkpoints \
        --log-format simple --log-interval 50 2>&1 | tee -a "$OUT/train.log"
}

for setting in $SETTINGS; do
    [ "$setting" != distilled ] || [ -e "$DISTILLED/distillation.json" ] || distil
    stage "lattice-$setting-$PAIR" tables "$setting"
    for layers in $LAYERS; do
        resume "scorer-$setting-$layers-$PAIR" train "$setting" "$layers"
    done
done

BASELINES=("fairseq beam 5" "ours, greedy")
SYSTEMS=(--system "fairseq beam 5=--beam 5" --system "fairseq beam 1=--beam 1" --system "ours, greedy=--decoding greedy")
for folder in "$WORK"/scorer-*-"$PAIR"/; do
    [ -e "$folder/checkpoint_last.pt" ] || continue
    name=$(basename "$folder" "-$PAIR") name=${name#scorer-}
    options="--decoding lattice --path ${folder}checkpoint_last.pt --lattice $WORK/lattice-${name%-*}-$PAIR"
    label="${name%-*} data, ${name##*-} layers"
    SYSTEMS+=(--system "$label, N = 1=$options --lattice-candidates 1 --lattice-length-window 0")
    for count in $CANDIDATES; do
        SYSTEMS+=(--system "$label, N = $count=$options --lattice-candidates $count --lattice-least-probability 0")
        SYSTEMS+=(--system "$label, N = $count, likely ones=$options --lattice-candidates $count")
    done
    SYSTEMS+=(--system "IAD drafting from $label=--decoding iad --draft-from lattice --iad-match recent
        --drafter-path ${folder}checkpoint_last.pt --lattice $WORK/lattice-${name%-*}-$PAIR")
done
in_bf16 "ours, greedy"
# shellcheck disable=SC2086
"$PYTHON" "$ROOT/scripts/compare.py" "$DATA" --path "$BASE" --gen-subset test --beam 1 --max-len-a 1.2 --max-len-b 10 \
    --post-process sentencepiece $DEVICE_FLAGS --title "Sequence-to-lattice on Multi30k $PAIR" \
    "${SYSTEMS[@]}" --baselines "${BASELINES[@]}" $TABLE_FLAGS --output "${OUTPUT:-$ROOT/docs/results/lattice-multi30k}"
