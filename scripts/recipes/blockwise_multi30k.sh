#!/usr/bin/env bash
# Blockwise parallel decoding on Multi30k: Table 1 of Stern et al. at a small size, on the model of multi30k.sh.
#
#   scripts/recipes/blockwise_multi30k.sh            the grid of SETTINGS x BLOCK_SIZES, then the table of all that is trained
#
# Settings, as in the paper: regular (base frozen), distillation (frozen, distilled data), fine-tuning (base trained on),
# both. The base of distillation and both is the verifier of gad_multi30k.sh, trained on distilled data, and the data is what
# it writes. Killed at any moment, the same command goes on.
# Environment: SETTINGS (all four; empty: only the table), BLOCK_SIZES (8 4), VERIFIER, VERIFIER_UPDATE, SAMPLED (as in
# gad_multi30k.sh), MAX_UPDATE (5000), LR (0.001, a base that is trained on 0.0003), HEAD_LAYOUT (per-head), HEAD_LOSS (mean: as
# many updates as fit in little time), HEAD_DECAY (0.8: near heads, on which the others depend, count more), OUTPUT
# (docs/results/blockwise-multi30k), and what multi30k_common.sh lists.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/multi30k_common.sh"
need_base

SETTINGS=${SETTINGS-regular distillation fine-tuning both}
BLOCK_SIZES=${BLOCK_SIZES:-8 4}
MAX_UPDATE=${MAX_UPDATE:-5000}
HEAD_LAYOUT=${HEAD_LAYOUT:-per-head}
HEAD_LOSS=${HEAD_LOSS:-mean}
HEAD_DECAY=${HEAD_DECAY:-0.8}

train() {
    local setting=$1 block_size=$2 data=$DATA base=$BASE flags=()
    local frozen=(--freeze-base --identity-first-head --dropout 0.1 --lr "${LR:-0.001}")
    local trained_on=(--dropout 0.1 --lr "${LR:-0.0003}")
    case $setting in
        regular) flags=("${frozen[@]}") ;;
        distillation) flags=("${frozen[@]}"); data=$GUESSED base=$VERIFIER ;;
        fine-tuning) flags=("${trained_on[@]}") ;;
        both) flags=("${trained_on[@]}"); data=$GUESSED base=$VERIFIER ;;
        *) die "unknown setting '$setting' in SETTINGS (choose from: regular distillation fine-tuning both)" ;;
    esac
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$data" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS \
        $PRECISION_FLAGS --seed "$SEED" --upsample-primary 1 \
        --arch blockwise_transformer --base-checkpoint "$base" --block-size "$block_size" --head-layout "$HEAD_LAYOUT" \
        "${flags[@]}" \
        --criterion blockwise_loss --head-loss "$HEAD_LOSS" --head-decay "$HEAD_DECAY" --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update "$MAX_UPDATE" $FLAGS \
        --max-tokens 2000 --required-batch-size-multiple 1 --max-update "$MAX_UPDATE" --num-workers 0 \
        --best-checkpoint-metric mean_accepted --maximize-best-checkpoint-metric \
        --save-dir "$OUT" --save-interval-updates 500 --validate-interval-updates 500 --validate-interval 1000000 \
        --keep-interval-updates 2 --no-epoch-checkpoints \
        --log-format simple --log-interval 50 2>&1 | tee -a "$OUT/train.log"
}

case " $SETTINGS " in
    *" both "* | *" distillation "*) need_verifier ;;
esac
for block_size in $BLOCK_SIZES; do
    for setting in $SETTINGS; do
        resume "blockwise-$setting-$block_size-$PAIR" train "$setting" "$block_size"
    done
done

MODELS=("regular/1=$BASE") VERIFIER=${VERIFIER:-$WORK/verifier-$PAIR/checkpoint_last.pt}
[ ! -e "$VERIFIER" ] || MODELS+=("distillation/1=$VERIFIER")
for folder in "$WORK"/blockwise-*-*-"$PAIR"/; do
    [ -e "$folder/checkpoint_best.pt" ] || continue
    name=$(basename "$folder" "-$PAIR") name=${name#blockwise-}
    MODELS+=("${name%-*}/${name##*-}=${folder}checkpoint_best.pt")
done
"$PYTHON" "$ROOT/scripts/blockwise_table.py" "$DATA" --models "${MODELS[@]}" --gen-subset test --batch-size 32 \
    --max-len-a 1.2 --max-len-b 10 --post-process sentencepiece $DEVICE_FLAGS $TABLE_FLAGS \
    --output "${OUTPUT:-$ROOT/docs/results/blockwise-multi30k}"
