#!/usr/bin/env bash
# Image super-resolution (Stern et al., section 7.2): from images to an Image Transformer, its pictures and its quality.
#
#   scripts/recipes/super_resolution.sh       4x4 to 16x16 grey, from the photographs in scikit-image: two CPU cores, 12 minutes
#   IMAGE_FLAGS='--images CELEBA/img_align_celeba --margins 40 20 --partition CELEBA/list_eval_partition.txt
#       --low-size 8 --high-size 32 --channels rgb' ARCH=image_transformer_b3 MAX_UPDATE=1000000 WARMUP=12000 DEVICE_FLAGS= \
#   WORK=work/celeba scripts/recipes/super_resolution.sh          the paper's setting
#
# Environment: WORK (work/super_resolution), IMAGE_FLAGS (what fairseq_aggdec.data.images takes), ARCH (image_transformer),
# MODEL_FLAGS, MAX_UPDATE (2700), WARMUP (300), BATCH (8), SEED (1), DEVICE_FLAGS (--cpu), IMAGES (how many of the test set
# are decoded; 200), SYSTEMS (more systems for the sheet, as its --system options; none).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

WORK=${WORK:-$ROOT/work/super_resolution}
IMAGE_FLAGS=${IMAGE_FLAGS:-}
ARCH=${ARCH:-image_transformer}
MODEL_FLAGS=${MODEL_FLAGS:---dropout 0}
MAX_UPDATE=${MAX_UPDATE:-2700}
WARMUP=${WARMUP:-300}
BATCH=${BATCH:-8}
SEED=${SEED:-1}
DEVICE_FLAGS=${DEVICE_FLAGS---cpu}
IMAGES=${IMAGES:-200}
SYSTEMS=${SYSTEMS:-}

images() {
    # shellcheck disable=SC2086  # the flags are lists
    "$PYTHON" -m fairseq_aggdec.data.images --output "$OUT" $IMAGE_FLAGS
}

train() {
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$WORK/data" --user-dir "$USER_DIR" --task super_resolution $DEVICE_FLAGS --seed "$SEED" \
        --arch "$ARCH" $MODEL_FLAGS --criterion cross_entropy \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr 0.001 --lr-scheduler polynomial_decay --total-num-update "$MAX_UPDATE" --warmup-updates "$WARMUP" \
        --batch-size "$BATCH" --required-batch-size-multiple 1 --max-update "$MAX_UPDATE" --num-workers 0 \
        --save-dir "$OUT" --save-interval-updates 700 --keep-interval-updates 1 --no-epoch-checkpoints \
        --log-format simple --log-interval 100 2>&1 | tee -a "$OUT/train.log"
}

sheet() {
    # shellcheck disable=SC2086
    "$PYTHON" "$ROOT/scripts/super_resolution_sheet.py" "$WORK/data" --output "$OUT/sheet" --limit "$IMAGES" \
        $DEVICE_FLAGS --system greedy "$WORK/train/checkpoint_best.pt" $SYSTEMS
    cat "$OUT/sheet.md"
}

stage data images
resume train train
stage sheet sheet
