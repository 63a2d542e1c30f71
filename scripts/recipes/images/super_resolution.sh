#!/usr/bin/env bash
# Image super-resolution (Stern et al., section 7.2): from images to an Image Transformer with block heads, Table 2 and a sheet of pictures.
#
#   scripts/recipes/images/super_resolution.sh       4x4 to 16x16 grey, from the photographs in scikit-image: two CPU cores, half an hour
#   IMAGE_FLAGS='--images CELEBA/img_align_celeba --margins 40 20 --partition CELEBA/list_eval_partition.txt
#       --low-size 8 --high-size 32 --channels rgb' ARCH=image_transformer_b3 MAX_UPDATE=1000000 WARMUP=12000 HEAD_UPDATE=250000 \
#   DROPOUT=0.1 BATCH=16 SCHEDULER=inverse_sqrt CLIP=0 \
#   BLOCK_SIZES='2 4 6 8 10' HEAD_LAYOUT=dense HEAD_FLAGS= HEAD_LOSS=sample NOISE=0 DEVICE_FLAGS= PRECISION_FLAGS= \
#   WORK=work/celeba scripts/recipes/images/super_resolution.sh          the paper's setting (tensor2tensor's img2img_transformer_b3)
#
# Table 2: regular (base frozen), approximate (the same heads, an intensity stands that is at most EPSILON off), fine-tuned (base
# trained on), both. Killed at any moment, the same command goes on.
# Environment: WORK (work/super_resolution), IMAGE_FLAGS (what make_images.py takes), ARCH (image_transformer),
# MODEL_FLAGS, DROPOUT (0), SCHEDULER (polynomial_decay), CLIP (1.0: largest norm of gradients; 0: any), NOISE (as --input-noise; 24), MAX_UPDATE (2700), WARMUP (300), BATCH (8), SETTINGS (regular fine-tuned; empty:
# no heads), BLOCK_SIZES (2 4 8), HEAD_UPDATE (500 updates of the heads), HEAD_LAYOUT (per-head), HEAD_FLAGS (of the
# regular heads; --identity-first-head: head 1 is the base itself), HEAD_LOSS (mean), EPSILON (2), SEED (1), DEVICE_FLAGS
# (--cpu where there is no GPU), PRECISION_FLAGS (--fp16, on a CPU with AMX --amp: products in half precision while
# training), IMAGES (how many of the test set are decoded; 200), SYSTEMS (more systems for the sheet, as its --system
# options; none).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

WORK=${WORK:-$ROOT/work/super_resolution}
IMAGE_FLAGS=${IMAGE_FLAGS:-}
ARCH=${ARCH:-image_transformer}
MODEL_FLAGS=${MODEL_FLAGS:-}
DROPOUT=${DROPOUT:-0}
SCHEDULER=${SCHEDULER:-polynomial_decay}
CLIP=${CLIP:-1.0}
NOISE=${NOISE:-24}
MAX_UPDATE=${MAX_UPDATE:-2700}
WARMUP=${WARMUP:-300}
BATCH=${BATCH:-8}
SETTINGS=${SETTINGS-regular fine-tuned}
BLOCK_SIZES=${BLOCK_SIZES:-2 4 8}
HEAD_UPDATE=${HEAD_UPDATE:-500}
HEAD_LAYOUT=${HEAD_LAYOUT:-per-head}
HEAD_FLAGS=${HEAD_FLAGS---identity-first-head}
HEAD_LOSS=${HEAD_LOSS:-mean}
EPSILON=${EPSILON:-2}
SEED=${SEED:-1}
devices
IMAGES=${IMAGES:-200}
SYSTEMS=${SYSTEMS:-}
BASE=$WORK/train/checkpoint_best.pt
USER_DIR=$ROOT/scripts/recipes/images/aggdec_images
export PYTHONPATH=$ROOT/scripts/recipes/images${PYTHONPATH:+:$PYTHONPATH}

images() {
    # shellcheck disable=SC2086  # the flags are lists
    "$PYTHON" -m scripts.recipes.images.make_images --output "$OUT" $IMAGE_FLAGS
}

# fit UPDATES WARMUP FLAGS: what every training has in common.
fit() {
    local updates=$1 warmup=$2 schedule=(--lr-scheduler "$SCHEDULER")
    shift 2
    [ "$SCHEDULER" != polynomial_decay ] || schedule+=(--total-num-update "$updates")
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$WORK/data" --user-dir "$USER_DIR" --task super_resolution $DEVICE_FLAGS $PRECISION_FLAGS \
        --seed "$SEED" --input-noise "$NOISE" "$@" \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm "$CLIP" --dropout "$DROPOUT" \
        "${schedule[@]}" --warmup-updates "$warmup" \
        --batch-size "$BATCH" --required-batch-size-multiple 1 --max-update "$updates" --num-workers 0 \
        --save-dir "$OUT" --save-interval-updates 700 --keep-interval-updates 1 --no-epoch-checkpoints \
        --log-format simple --log-interval 100 2>&1 | tee -a "$OUT/train.log"
}

train() {
    # shellcheck disable=SC2086
    fit "$MAX_UPDATE" "$WARMUP" --arch "$ARCH" $MODEL_FLAGS --criterion cross_entropy --lr 0.001
}

train_heads() {
    local setting=$1 block_size=$2 flags=()
    case $setting in
        # shellcheck disable=SC2206
        regular) flags=(--freeze-base $HEAD_FLAGS --lr 0.001) ;;
        fine-tuned) flags=(--lr 0.0005) ;;
        *) die "unknown setting '$setting' in SETTINGS (choose from: regular fine-tuned)" ;;
    esac
    fit "$HEAD_UPDATE" $((HEAD_UPDATE / 10)) --arch blockwise_image_transformer --base-checkpoint "$BASE" \
        --block-size "$block_size" --head-layout "$HEAD_LAYOUT" --criterion blockwise_loss --head-loss "$HEAD_LOSS" \
        --best-checkpoint-metric mean_accepted --maximize-best-checkpoint-metric "${flags[@]}"
}

sheet() {
    local systems=(--system greedy "$BASE" decoding=greedy) setting block_size exact approximate model
    for setting in $SETTINGS; do
        if [ "$setting" = regular ]; then exact=regular approximate=approximate; else exact=fine-tuned approximate=both; fi
        for block_size in $BLOCK_SIZES; do
            model=$WORK/heads-$setting-$block_size/checkpoint_best.pt
            systems+=(--system "$exact/$block_size" "$model" decoding=blockwise)
            systems+=(--system "$approximate/$block_size" "$model" decoding=blockwise "acceptance=distance:$EPSILON")
        done
    done
    # shellcheck disable=SC2086
    "$PYTHON" -m scripts.recipes.images.sheet "$WORK/data" --output "$OUT/sheet" --limit "$IMAGES" \
        $DEVICE_FLAGS "${systems[@]}" $SYSTEMS
    cat "$OUT/sheet.md"
}

stage data images
resume train train
for setting in $SETTINGS; do
    for block_size in $BLOCK_SIZES; do
        resume "heads-$setting-$block_size" train_heads "$setting" "$block_size"
    done
done
stage sheet sheet
