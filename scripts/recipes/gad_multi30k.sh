#!/usr/bin/env bash
# Generalized aggressive decoding on Multi30k: a drafter for the model of multi30k.sh, then the tables of Ge et al. at a small
# size.
#
#   scripts/recipes/gad_multi30k.sh          distil, train the drafter, then the table of all drafters that are trained
#
# Killed at any moment, the same command goes on.
# Environment: WORK (work/multi30k), SOURCE and TARGET (de, en), BLOCK_SIZE (10), MAX_UPDATE (5000), LAYERS (3, of the drafter's
# decoder), LR (0.001), DRAFTER_FLAGS (it begins as the verifier; "--share-verifier-encoder MODEL --init-decoder-from MODEL"
# trains a decoder only), NAME (drafter), TEACHER (greedy; beam: with beam 5), DEVICE_FLAGS (--cpu), PRECISION_FLAGS (--amp: products in half precision while
# training), FLAGS (more for fairseq-train), TABLE_FLAGS (more for scripts/compare.py), BF16 (1: the table holds every system in
# bfloat16 too; 0: not), SEED (1), OUTPUT (docs/results/gad-multi30k).
set -euo pipefail
TEACHER=${TEACHER:-greedy}
. "$(dirname "${BASH_SOURCE[0]}")/multi30k_common.sh"

BLOCK_SIZE=${BLOCK_SIZE:-10}
MAX_UPDATE=${MAX_UPDATE:-5000}
LAYERS=${LAYERS:-3}
LR=${LR:-0.001}
NAME=${NAME:-drafter}
DRAFTER_FLAGS=${DRAFTER_FLAGS:---init-encoder-from $BASE --init-decoder-from $BASE --share-decoder-input-output-embed}

train() {
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$DISTILLED" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS \
        $PRECISION_FLAGS --seed "$SEED" \
        --arch nar_drafter --block-size "$BLOCK_SIZE" --decoder-layers "$LAYERS" $DRAFTER_FLAGS \
        --activation-fn relu --dropout 0.1 \
        --criterion glancing_loss --label-smoothing 0.1 --eval-acceptance "$BASE" \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 3.0 \
        --lr "$LR" --lr-scheduler polynomial_decay --warmup-updates 400 --total-num-update "$MAX_UPDATE" $FLAGS \
        --max-tokens 4000 --required-batch-size-multiple 1 --max-update "$MAX_UPDATE" --num-workers 0 \
        --best-checkpoint-metric mean_accepted --maximize-best-checkpoint-metric \
        --save-dir "$OUT" --save-interval-updates 250 --validate-interval-updates 250 --validate-interval 1000000 \
        --keep-interval-updates 2 --no-epoch-checkpoints \
        --log-format simple --log-interval 50 2>&1 | tee -a "$OUT/train.log"
}

distil
resume "$NAME-$PAIR" train

BASELINES=("fairseq beam 5" "fairseq beam 1" "ours, greedy")
SYSTEMS=(--system "fairseq beam 5=--beam 5" --system "fairseq beam 1=--beam 1" --system "ours, greedy=--decoding greedy")
for folder in "$WORK"/drafter*-"$PAIR"/; do
    [ -e "$folder/checkpoint_best.pt" ] || continue
    name=$(basename "$folder" "-$PAIR") options="--drafter-path ${folder}checkpoint_best.pt"
    SYSTEMS+=(--system "$name alone=--decoding nar $options")
    SYSTEMS+=(--system "GAD, $name=--decoding gad $options")
    SYSTEMS+=(--system "GAD++ (3, 1.0), $name=--decoding gad --acceptance top-beta --top-beta 3 --tolerance 1.0 $options")
    SYSTEMS+=(--system "GAD++ (5, 3.0), $name=--decoding gad --acceptance top-beta --top-beta 5 --tolerance 3.0 $options")
    SYSTEMS+=(--system "GAD, automatic block size, $name=--decoding gad --block-size auto $options")
done
in_bf16 "ours, greedy"
compare --beam 1 --title "Generalized aggressive decoding on Multi30k $PAIR" --output "${OUTPUT:-$ROOT/docs/results/gad-multi30k}"
