#!/usr/bin/env bash
# Generalized aggressive decoding on Multi30k: verifier and drafter as in Ge et al., then their tables at a small size.
#
#   scripts/recipes/gad_multi30k.sh          verifier, drafter, then the table of all drafters that are trained
#
# The verifier is the model of multi30k.sh, trained on what it writes itself with beam 5 (the paper's verifier learns from a
# teacher, too); the drafter learns from what the verifier writes. Killed at any moment, the same command goes on.
# Environment: WORK (work/multi30k), SOURCE and TARGET (de, en), VERIFIER (a checkpoint, to train none;
# WORK/verifier-greedy-PAIR is then its, or not there yet), VERIFIER_UPDATE (800), BLOCK_SIZE (10), MAX_UPDATE (5000), LAYERS
# (3, of the drafter's decoder), LR (0.001), DRAFTER_FLAGS (it begins as the verifier with the verifier's encoder), NAME
# (drafter), DEVICE_FLAGS (--cpu where there is no GPU), PRECISION_FLAGS (--fp16, on a CPU --amp: products in half precision
# while training), FLAGS (more for fairseq-train), TABLE_FLAGS (more for scripts/compare.py), BF16 (1: the table holds every
# system in bfloat16 too; 0: not), SEED (1), OUTPUT (docs/results/gad-multi30k).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/multi30k_common.sh"
need_base

VERIFIER=${VERIFIER:-}
VERIFIER_UPDATE=${VERIFIER_UPDATE:-800}
BLOCK_SIZE=${BLOCK_SIZE:-10}
MAX_UPDATE=${MAX_UPDATE:-5000}
LAYERS=${LAYERS:-3}
LR=${LR:-0.001}
NAME=${NAME:-drafter}

# learn DATA UPDATES FLAG...
learn() {
    local data=$1 updates=$2; shift 2
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$data" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS $PRECISION_FLAGS \
        --seed "$SEED" --label-smoothing 0.1 "$@" --optimizer adam --adam-betas '(0.9, 0.98)' \
        --lr-scheduler polynomial_decay --total-num-update "$updates" --max-update "$updates" \
        --max-tokens 4000 --required-batch-size-multiple 1 --num-workers 0 \
        --save-dir "$OUT" --save-interval-updates 250 --validate-interval-updates 250 --validate-interval 1000000 \
        --keep-interval-updates 2 --no-epoch-checkpoints \
        --log-format simple --log-interval 50 2>&1 | tee -a "$OUT/train.log"
}

learn_verifier() {
    # shellcheck disable=SC2086
    learn "$DISTILLED" "$VERIFIER_UPDATE" --arch transformer --finetune-from-model "$BASE" \
        $MODEL_FLAGS --share-all-embeddings --dropout 0.1 --criterion label_smoothed_cross_entropy \
        --clip-norm 1.0 --lr 0.0005 --warmup-updates 100
}

learn_drafter() {
    # shellcheck disable=SC2086
    learn "$GUESSED" "$MAX_UPDATE" --arch nar_drafter $MODEL_FLAGS --decoder-layers "$LAYERS" --block-size "$BLOCK_SIZE" \
        $DRAFTER_FLAGS --activation-fn relu --dropout 0.1 --criterion glancing_loss --eval-acceptance "$BASE" \
        --clip-norm 3.0 --lr "$LR" --warmup-updates 400 \
        --best-checkpoint-metric mean_accepted --maximize-best-checkpoint-metric $FLAGS
}

if [ -z "$VERIFIER" ]; then
    distil
    resume "verifier-$PAIR" learn_verifier
    VERIFIER=$WORK/verifier-$PAIR/checkpoint_last.pt
fi
BASE=$VERIFIER
GUESSED=$WORK/verifier-greedy-$PAIR
distil_into "$GUESSED" "${GREEDY[@]}"
DRAFTER_FLAGS=${DRAFTER_FLAGS:---share-verifier-encoder $BASE --init-decoder-from $BASE --share-decoder-input-output-embed}
resume "$NAME-$PAIR" learn_drafter

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
