# shellcheck shell=bash
# Shared by the recipes on the translation data of wmt_data.sh: settings, training, averaging, distillation, decoding, the table.
#
# A recipe is called with SET [FOLDER] and sources this file, which makes the data if they are not there.
# Environment, beside the recipe's own:
#   data      FOLDER's default is work/SET, with the name of the recipe before SET where its models are not the others' (RAW=FOLDER
#             shares downloads); DIRECTION (SET's; the other one is translated from the same data), and what
#             wmt_data.sh takes; BINARISED (binarised data of other dictionaries, in place of FOLDER/data-PAIR) and SUBWORDS (how
#             their pieces become words: a sentencepiece model, or @@ for pieces that end in it)
#   training  SEED (1), WORKERS (2), GPUS (those PyTorch finds: tokens per update are the paper's on any number), DEVICE_FLAGS
#             (--cpu where there is no GPU), PRECISION_FLAGS (--fp16; on a CPU with AMX --amp), MODEL_FLAGS and TRAIN_FLAGS
#             (more for every training), MAX_UPDATE (fewer than the paper's)
#   decoding  BATCH_SIZE (1: online), DECODE_FLAGS (more for all systems), DISTILL_FLAGS (more for the teacher)

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"

SET=${1:?usage: $0 SET [FOLDER]}
WORK=${2:-$ROOT/work/${RECIPE:+$RECIPE-}$SET}
PAIR=${SET#*-}
DIRECTION=${DIRECTION:-$PAIR}
SOURCE=${DIRECTION%-*}
TARGET=${DIRECTION#*-}
case $DIRECTION in
    "$PAIR" | "${PAIR#*-}-${PAIR%-*}") ;;
    *) die "DIRECTION '$DIRECTION' is none of $SET (choose from: $PAIR ${PAIR#*-}-${PAIR%-*})" ;;
esac
DATA=${BINARISED:-$WORK/data-$PAIR}
SEED=${SEED:-1}
WORKERS=${WORKERS:-2}
BATCH_SIZE=${BATCH_SIZE:-1}
MODEL_FLAGS=${MODEL_FLAGS:-}
TRAIN_FLAGS=${TRAIN_FLAGS:-}
MAX_UPDATE=${MAX_UPDATE:-}
DECODE_FLAGS=${DECODE_FLAGS:-}
DISTILL_FLAGS=${DISTILL_FLAGS:-}
devices
LANGUAGES=(--source-lang "$SOURCE" --target-lang "$TARGET")
REPORTED=()

data() { RAW="${RAW:-$WORK/raw}" WORKERS="$WORKERS" bash "$ROOT/scripts/recipes/wmt_data.sh" "$SET" "$WORK"; }

# train DATA FLAG...: checkpoints into $OUT.
train() {
    local data=$1; shift
    # shellcheck disable=SC2086  # these are lists of flags
    "$BIN/fairseq-train" "$data" --user-dir "$USER_DIR" --task translation_aggdec "${LANGUAGES[@]}" --seed "$SEED" \
        --num-workers "$WORKERS" --required-batch-size-multiple 1 --save-dir "$OUT" --log-format simple --log-interval 100 \
        --optimizer adam --lr-scheduler inverse_sqrt --label-smoothing 0.1 "$@" \
        $DEVICE_FLAGS $PRECISION_FLAGS $MODEL_FLAGS $TRAIN_FLAGS ${MAX_UPDATE:+--max-update "$MAX_UPDATE"} \
        2>&1 | tee -a "$OUT/train.log"
}

# learn NAME N DATA FLAG...: trains NAME and averages its last N checkpoints into $WORK/NAME-model/model.pt.
learn() {
    local name=$1 count=$2; shift 2
    # The checkpoints may have been deleted once the model was there.
    [ -d "$WORK/$name-model" ] && unchanged "$name" train "$@" || resume "$name" train "$@"
    stage "$name-model" average "$WORK/$name" "$count"
}

# distil TEACHER OUTPUT: beam 5 (section 4.2.1 of the aggressive decoding paper); goes on by itself where it was killed.
distil() {
    case $2 in "$WORK"/*) fresh "${2#"$WORK/"}" distil "$@" ;; esac
    if [ -e "$2/distillation.json" ]; then say "$2: done already, kept"; return; fi
    # shellcheck disable=SC2086
    bash "$ROOT/scripts/distill.sh" "$DATA" "$2" "${LANGUAGES[@]}" --path "$1" --beam 5 --batch-size 64 \
        $DEVICE_FLAGS $DISTILL_FLAGS
}

decode() {
    # shellcheck disable=SC2206
    local flags=("$DATA" --user-dir "$USER_DIR" --task translation_aggdec "${LANGUAGES[@]}" --gen-subset test
        --batch-size "$BATCH_SIZE" --required-batch-size-multiple 1 --num-workers 0 $DEVICE_FLAGS $DECODE_FLAGS "$@")
    generate "${flags[@]}"
}

# system NAME LABEL FLAG...: a row of the table.
system() {
    local name=decode-$DIRECTION-$1 label=$2; shift 2
    stage "$name" decode "$@"
    REPORTED+=(--system "$name=$label")
}

# report TITLE FLAG...: results-DIRECTION.{md,json}, behind OF_SIZE; speed-ups are over the first system.
report() {
    local title=$1 reference=$WORK/tokens; shift
    [ -d "$reference" ] || reference=$WORK/text
    "$PYTHON" "$ROOT/scripts/recipes/translation_report.py" --work "$WORK" --title "$title" "${REPORTED[@]}" \
        --subwords "${SUBWORDS:-$WORK/subwords/spm.model}" --language "$TARGET" --set "$SET" \
        --reference "$WORK/text/test.raw.$TARGET" --reference-tokens "$reference/test.raw.$TARGET" \
        --output "$WORK/${OF_SIZE:-}results-$DIRECTION${RUN:+-$RUN}" "$@"
}

data
