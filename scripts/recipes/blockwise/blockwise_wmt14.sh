#!/usr/bin/env bash
# Blockwise parallel decoding on WMT14 English-German with the settings of Stern et al. (sections 6 and 7.1): base model, teacher,
# distilled data, heads for every block size and setting, Table 1 on newstest2013, the test set, and the plot of Figure 4.
#
#   scripts/recipes/blockwise/blockwise_wmt14.sh                                          everything, the data too; meant for 8 GPUs
#   DATA=data-bin BASE=base.pt TEACHER=teacher.pt scripts/recipes/blockwise/blockwise_wmt14.sh    on data and models of your own
#
# The paper's hyper-parameters are those of Tensor2Tensor's transformer_base. Its heads are dense with as many hidden units as the
# feed-forward layer, head 1 passes through them too (so that k = 1 of a frozen base is trained, unless HEAD_FLAGS has
# --identity-first-head), one head is drawn per minibatch, and the optimiser begins anew.
# Killed at any moment, the same command goes on.
# Environment: WORK (work/wmt14-en-de), DATA (binarised folder with a joined dictionary; made by wmt_data.sh), BASE and TEACHER (stock
# checkpoints; trained otherwise, the teacher with another seed), DISTILLED (a folder; written by TEACHER otherwise),
# SETTINGS (regular distillation fine-tuning both), BLOCK_SIZES (1 2 4 6 8 10), MAX_UPDATE (1000000, of each training), AVERAGE (10 last
# checkpoints of a base model), SAVE_EVERY (10000 updates), LR (0.001), WARMUP (8000), MAX_TOKENS (4096 per GPU), UPDATE_FREQ (as many as
# make 8 GPUs of those there are), HEAD_LAYOUT (dense), HEAD_LOSS (sample), ARCH (transformer_wmt_en_de),
# MODEL_FLAGS, HEAD_FLAGS, DISTILL_FLAGS (more for the teacher), DECODE_FLAGS (--batch-size 64 --post-process sentencepiece), BLEU (compound: on
# Moses tokens with compounds split, as Vaswani et al. report; sacrebleu for DATA that is no tokens), TABLE_FLAGS (more for blockwise_table.py), SEED (1),
# SUBSETS (valid test), GPUS, DEVICE_FLAGS, PRECISION_FLAGS, OUTPUT (docs/results/blockwise-wmt14; -valid and -test are added).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

WORK=${WORK:-$ROOT/work/wmt14-en-de}
DATA=${DATA:-}
BASE=${BASE:-}
TEACHER=${TEACHER:-}
DISTILLED=${DISTILLED:-}
SETTINGS=${SETTINGS:-regular distillation fine-tuning both}
BLOCK_SIZES=${BLOCK_SIZES:-1 2 4 6 8 10}
MAX_UPDATE=${MAX_UPDATE:-1000000}
AVERAGE=${AVERAGE:-10}
SAVE_EVERY=${SAVE_EVERY:-10000}
LR=${LR:-0.001}
WARMUP=${WARMUP:-8000}
MAX_TOKENS=${MAX_TOKENS:-4096}
HEAD_LAYOUT=${HEAD_LAYOUT:-dense}
HEAD_LOSS=${HEAD_LOSS:-sample}
ARCH=${ARCH:-transformer_wmt_en_de}
MODEL_FLAGS=${MODEL_FLAGS:---encoder-normalize-before --decoder-normalize-before --attention-dropout 0.1 --activation-dropout 0.1}
HEAD_FLAGS=${HEAD_FLAGS:-}
DISTILL_FLAGS=${DISTILL_FLAGS:-}
DECODE_FLAGS=${DECODE_FLAGS:---batch-size 64 --post-process sentencepiece}
TABLE_FLAGS=${TABLE_FLAGS:-}
SEED=${SEED:-1}
SUBSETS=${SUBSETS:-valid test}
OUTPUT=${OUTPUT:-$ROOT/docs/results/blockwise-wmt14}
BLEU=${BLEU:-compound} # wmt_data.sh tokenises by Moses
devices
UPDATE_FREQ=${UPDATE_FREQ:-$(update_freq 1 8)}

for setting in $SETTINGS; do
    case $setting in
        regular | distillation | fine-tuning | both) ;;
        *) die "unknown setting '$setting' in SETTINGS (choose from: regular distillation fine-tuning both)" ;;
    esac
done
for file in "$BASE" "$TEACHER"; do
    [ -z "$file" ] || [ -e "$file" ] || die "$file does not exist (BASE, TEACHER)"
done
mkdir -p "$WORK"

# fit DATA SEED FLAG...: what every training has in common.
fit() {
    local data=$1 seed=$2
    shift 2
    # shellcheck disable=SC2086  # the flags are lists
    "$BIN/fairseq-train" "$data" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS $PRECISION_FLAGS --seed "$seed" "$@" \
        --label-smoothing 0.1 --dropout 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.997)' --adam-eps 1e-9 \
        --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates "$WARMUP" --warmup-init-lr 1e-7 \
        --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ" --required-batch-size-multiple 1 --max-update "$MAX_UPDATE" \
        --num-workers 1 --save-dir "$OUT" --save-interval-updates "$SAVE_EVERY" --validate-interval-updates "$SAVE_EVERY" \
        --keep-interval-updates "$AVERAGE" --no-epoch-checkpoints --log-format simple --log-interval 100 2>&1 | tee -a "$OUT/train.log"
}

train_base() {
    # shellcheck disable=SC2086
    fit "$DATA" "$1" --arch "$ARCH" --share-all-embeddings $MODEL_FLAGS --criterion label_smoothed_cross_entropy
}

# Beam and limit of Vaswani et al.; their penalty is ((5 + n) / 6)^0.6, fairseq's is n^0.6.
distil() {
    # shellcheck disable=SC2086
    bash "$ROOT/scripts/distill.sh" "$DATA" "$DISTILLED" --path "$TEACHER" --decoding beam --beam 4 --lenpen 0.6 \
        --max-len-a 1 --max-len-b 50 $DECODE_FLAGS $DISTILL_FLAGS $DEVICE_FLAGS
}

train_heads() {
    local setting=$1 block_size=$2 data=$DATA frozen=()
    case $setting in distillation | both) data=$DISTILLED ;; esac
    case $setting in regular | distillation) frozen=(--freeze-base) ;; esac
    # shellcheck disable=SC2086
    fit "$data" "$SEED" --arch blockwise_transformer --base-checkpoint "$BASE" --block-size "$block_size" \
        --head-layout "$HEAD_LAYOUT" $HEAD_FLAGS "${frozen[@]}" --criterion blockwise_loss --head-loss "$HEAD_LOSS"
}

# The validation set is Table 1's.
table() {
    # shellcheck disable=SC2086
    "$PYTHON" -m scripts.recipes.blockwise.table "$DATA" --models "${MODELS[@]}" --gen-subset "$1" --bleu "$BLEU" \
        $DECODE_FLAGS $DEVICE_FLAGS $TABLE_FLAGS --output "$OUTPUT-$1"
}

if [ -z "$DATA" ]; then
    DATA=$WORK/data-en-de
    [ -d "$DATA" ] || bash "$ROOT/scripts/recipes/wmt_data.sh" wmt14-en-de "$WORK"
fi
[ -n "$(find "$DATA" -maxdepth 1 -name 'dict.*.txt')" ] || die "DATA=$DATA holds no binarised data"

if [ -z "$BASE" ]; then
    resume train-base train_base "$SEED"
    stage base average "$WORK/train-base" "$AVERAGE"
    BASE=$WORK/base/model.pt
fi
case " $SETTINGS " in
    *" both "* | *" distillation "*)
        DISTILLED=${DISTILLED:-$WORK/distilled}
        if [ ! -e "$DISTILLED/distillation.json" ]; then
            if [ -z "$TEACHER" ]; then
                resume train-teacher train_base $((SEED + 1))
                stage teacher average "$WORK/train-teacher" "$AVERAGE"
                TEACHER=$WORK/teacher/model.pt
            fi
            distil
        fi
        ;;
esac
MODELS=("base/1=$BASE")
for block_size in $BLOCK_SIZES; do
    for setting in $SETTINGS; do
        case "$setting/$block_size $HEAD_FLAGS" in
            regular/1*--identity-first-head* | distillation/1*--identity-first-head*) continue ;; # the base
        esac
        resume "heads-$setting-$block_size" train_heads "$setting" "$block_size"
        stage "model-$setting-$block_size" average "$WORK/heads-$setting-$block_size" "$AVERAGE"
        MODELS+=("$setting/$block_size=$WORK/model-$setting-$block_size/model.pt")
    done
done
for subset in $SUBSETS; do table "$subset"; done
