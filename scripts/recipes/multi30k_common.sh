# Shared by the recipes on Multi30k: multi30k.sh, and those that build on its model, data and distillation.
#
# Sourced, not executed. Sets BASE (the model), DATA and DISTILLED (folders); need_verifier sets VERIFIER (a model) and GUESSED
# (a folder).
# Environment of all: WORK (work/multi30k), SOURCE and TARGET (de, en), TEACHER (beam: distilled data is what the model writes
# with beam 5; greedy: what it writes greedily, which is quick), MODEL_FLAGS (3+3 layers, width 256), FLAGS (more for
# fairseq-train), DISTILL_FLAGS (more for distill.sh), TABLE_FLAGS (more for the script that makes the table), BF16 (1: greedy
# distillation in bfloat16, and tables of compare.py hold every system in it too; 0: not; by default as the processor can),
# SEED (1), DEVICE_FLAGS (--cpu where there is no GPU), PRECISION_FLAGS (--fp16, on a CPU with AMX --amp: half precision in
# training), PYTHON (.venv/bin/python).
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

WORK=${WORK:-$ROOT/work/multi30k}
SOURCE=${SOURCE:-de}
TARGET=${TARGET:-en}
PAIR=$SOURCE-$TARGET
MODEL_FLAGS=${MODEL_FLAGS:---encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --decoder-embed-dim 256
    --encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 --encoder-attention-heads 4 --decoder-attention-heads 4}
FLAGS=${FLAGS:-}
TABLE_FLAGS=${TABLE_FLAGS:-}
SEED=${SEED:-1}
devices
GREEDY=(--decoding greedy --beam 1)
[ "$BF16" = 0 ] || GREEDY+=(--bf16)
BASE=$WORK/model-$PAIR/model.pt
DATA=$WORK/data-$PAIR
case ${TEACHER:=beam} in
    beam) DISTILLED=$WORK/distilled-$PAIR ;;
    greedy) DISTILLED=$WORK/greedy-$PAIR ;;
    *) die "unknown TEACHER '$TEACHER' (choose from: beam greedy)" ;;
esac

need_base() { [ -e "$BASE" ] || die "$BASE is missing: run scripts/recipes/multi30k.sh first"; }

# distil_into FOLDER OPTIONS...: what BASE writes for the training set, with OPTIONS of fairseq-generate, unless it is there.
distil_into() {
    local folder=$1; shift
    case $folder in "$WORK"/*) fresh "${folder#"$WORK/"}" distil_into "$@" ;; esac
    [ ! -e "$folder/distillation.json" ] || return 0
    # shellcheck disable=SC2086  # the flags are lists
    bash "$ROOT/scripts/distill.sh" "$DATA" "$folder" --path "$BASE" --batch-size 64 \
        --max-len-a 1.2 --max-len-b 10 $DEVICE_FLAGS ${DISTILL_FLAGS:-} "$@"
}

# sampled_data: makes $OUT, DATA with as many training pairs again (train1, which fairseq-train adds to train): sources that
# the model of the other direction samples for the targets. Their targets are there to be distilled.
sampled_data() {
    local reverse=$TARGET-$SOURCE file
    local sampled=$WORK/sampled-$reverse model=$WORK/model-$reverse/model.pt
    [ -e "$model" ] || die "SAMPLED=1 needs $model: run SOURCE=$TARGET TARGET=$SOURCE scripts/recipes/multi30k.sh first"
    DATA=$WORK/data-$reverse BASE=$model distil_into "$sampled" --beam 1 --sampling --sampling-topp 0.9 --seed "$SEED"
    cp "$DATA"/*.* "$OUT"
    for file in "$sampled"/train.*; do cp "$file" "$OUT/train1${file##*/train}"; done
}

# need_verifier: unless VERIFIER is given, trains it: BASE trained on DISTILLED. Makes GUESSED, what it writes itself for
# the training set (SAMPLED=1: for twice as many sentences); who drafts for it learns from that. (Of a set in parts,
# fairseq-train takes the first --upsample-primary times, by default -1 times: say 1.)
need_verifier() {
    if [ -z "${VERIFIER:-}" ]; then
        distil
        resume "verifier-$PAIR" train_verifier
        VERIFIER=$WORK/verifier-$PAIR/checkpoint_last.pt
    fi
    if [ "${SAMPLED:-0}" = 0 ]; then
        GUESSED=$WORK/verifier-greedy-$PAIR
        BASE=$VERIFIER distil_into "$GUESSED" "${GREEDY[@]}"
    else
        GUESSED=$WORK/verifier-greedy-sampled-$PAIR
        stage "sampled-data-$PAIR" sampled_data
        DATA=$WORK/sampled-data-$PAIR BASE=$VERIFIER distil_into "$GUESSED" "${GREEDY[@]}" --subsets train train1 \
            --source-lang "$SOURCE" --target-lang "$TARGET"
    fi
}

train_verifier() {
    local updates=${VERIFIER_UPDATE:-800}
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$DISTILLED" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS $PRECISION_FLAGS \
        --seed "$SEED" --arch transformer --finetune-from-model "$BASE" $MODEL_FLAGS --share-all-embeddings --dropout 0.1 \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --lr 0.0005 \
        --lr-scheduler polynomial_decay --warmup-updates 100 --total-num-update "$updates" --max-update "$updates" \
        --max-tokens 4000 --required-batch-size-multiple 1 --num-workers 0 \
        --save-dir "$OUT" --save-interval-updates 250 --validate-interval-updates 250 --validate-interval 1000000 \
        --keep-interval-updates 2 --no-epoch-checkpoints \
        $FLAGS --log-format simple --log-interval 50 2>&1 | tee -a "$OUT/train.log"
}

# distil: makes DISTILLED, with beam 5 or, as TEACHER says, greedily: what an exact verifier accepts, and sooner.
distil() {
    local options=()
    if [ "$TEACHER" = greedy ]; then options=("${GREEDY[@]}"); fi
    distil_into "$DISTILLED" "${options[@]}"
}

# data_of SETTING: the folder to train on.
data_of() {
    case $1 in
        raw) echo "$DATA" ;;
        distilled) echo "$DISTILLED" ;;
        *) die "unknown setting '$1' in SETTINGS (choose from: raw distilled)" ;;
    esac
}

# compare OPTIONS...: SYSTEMS against BASELINES on the test set.
compare() {
    # shellcheck disable=SC2086
    aggdec bench "$DATA" --path "$BASE" --gen-subset test --batch-sizes 1 --max-len-a 1.2 --max-len-b 10 \
        --post-process sentencepiece $DEVICE_FLAGS "${SYSTEMS[@]}" --baselines "${BASELINES[@]}" "$@" $TABLE_FLAGS
}
