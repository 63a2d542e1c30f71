#!/usr/bin/env bash
# Generalized aggressive decoding on Multi30k: verifier and drafter as in Ge et al., then their tables at a small size.
#
#   scripts/recipes/gad/gad_multi30k.sh          verifier, drafter, then the table of all drafters that are trained
#
# The verifier is the model of multi30k.sh, trained on what it writes itself with beam 5 (the paper's verifier learns from a
# teacher, too); the drafter learns from what the verifier writes. Killed at any moment, the same command goes on.
# Environment: VERIFIER (a checkpoint, to train none; WORK/verifier-greedy-PAIR is then its, or not there yet), VERIFIER_UPDATE
# (800), SAMPLED (1: the drafter learns from twice as many sentences, half of them sampled by the model of the other direction;
# 0), BLOCK_SIZE (10), MAX_UPDATE (5000), LAYERS (3, of the drafter's decoder), LR (0.001), DRAFTER_FLAGS (more for its training,
# in place of: it begins as the verifier with the verifier's encoder, and --slot-predicts next --prefix-attention causal
# --slot-chain; for the paper's slots and loss leave these out and add --slot-decay 1 --dropout 0.1), RUN (drafter), DRAFTERS
# (those in the table, by the names of their RUN: all), OUTPUT (docs/results/gad-multi30k), and what multi30k_common.sh lists.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../multi30k_common.sh"
need_base

BLOCK_SIZE=${BLOCK_SIZE:-10}
MAX_UPDATE=${MAX_UPDATE:-5000}
LAYERS=${LAYERS:-3}
LR=${LR:-0.001}
RUN=${RUN:-drafter}

train() {
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$GUESSED" --upsample-primary 1 --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS $PRECISION_FLAGS \
        --seed "$SEED" --arch nar_drafter $MODEL_FLAGS --decoder-layers "$LAYERS" --block-size "$BLOCK_SIZE" \
        --activation-fn relu --dropout 0 --criterion glancing_loss --label-smoothing 0.1 --slot-decay 0.8 \
        --eval-acceptance "$VERIFIER" \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 3.0 --lr "$LR" \
        --lr-scheduler polynomial_decay --warmup-updates 400 --total-num-update "$MAX_UPDATE" --max-update "$MAX_UPDATE" \
        --max-tokens 4000 --required-batch-size-multiple 1 --num-workers 0 \
        --best-checkpoint-metric mean_accepted --maximize-best-checkpoint-metric $FLAGS $DRAFTER_FLAGS \
        --save-dir "$OUT" --save-interval-updates 250 --validate-interval-updates 250 --validate-interval 1000000 \
        --keep-interval-updates 2 --no-epoch-checkpoints \
        --log-format simple --log-interval 50 2>&1 | tee -a "$OUT/train.log"
}

need_verifier
DRAFTER_FLAGS=${DRAFTER_FLAGS:---share-verifier-encoder $VERIFIER --init-decoder-from $VERIFIER
    --share-decoder-input-output-embed --slot-predicts next --prefix-attention causal --slot-chain}
resume "$RUN-$PAIR" train

BASELINES=("fairseq beam 5" "fairseq beam 1" "ours, greedy")
SYSTEMS=(--system "fairseq beam 5=--decoding stock --beam 5" --system "fairseq beam 1=--decoding stock --beam 1" --system "ours, greedy=--decoding greedy"
    --system "model of multi30k.sh, fairseq beam 5=--decoding stock --beam 5 --path $BASE")
for folder in "$WORK"/drafter*-"$PAIR"/; do
    [ -e "$folder/checkpoint_best.pt" ] || continue
    name=$(basename "$folder" "-$PAIR") options="--drafter-path ${folder}checkpoint_best.pt" all="--draft-tokens all" # the paper's k
    [[ " ${DRAFTERS:-$name} " == *" $name "* ]] || continue
    SYSTEMS+=(--system "$name alone=--decoding nar $options")
    SYSTEMS+=(--system "GAD, $name=--decoding gad $all $options")
    SYSTEMS+=(--system "GAD++ (3, 1.0), $name=--decoding gad --acceptance top-beta:3:1.0 $all $options")
    SYSTEMS+=(--system "GAD++ (5, 3.0), $name=--decoding gad --acceptance top-beta:5:3.0 $all $options")
    SYSTEMS+=(--system "GAD, automatic block size, $name=--decoding gad --draft-tokens auto $options")
done
in_bf16 "ours, greedy"
BASE=$VERIFIER compare --beam 1 --title "Generalized aggressive decoding on Multi30k $PAIR" --output "${OUTPUT:-$ROOT/docs/results/gad-multi30k}"
