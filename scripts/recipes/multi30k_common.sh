# Shared by the recipes on Multi30k: multi30k.sh, and those that build on its model, data and distillation.
#
# Sourced, not executed. Reads from the environment what their heads name, and DISTILL_FLAGS (more for distill.sh); sets BASE
# (the model), DATA and DISTILLED (folders).
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
GREEDY=(--decoding greedy --beam 1 --bf16)
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
    [ ! -e "$folder/distillation.json" ] || return 0
    # shellcheck disable=SC2086  # the flags are lists
    bash "$ROOT/scripts/distill.sh" "$DATA" "$folder" --path "$BASE" --batch-size 64 \
        --max-len-a 1.2 --max-len-b 10 --post-process sentencepiece $DEVICE_FLAGS ${DISTILL_FLAGS:-} "$@"
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
    "$PYTHON" "$ROOT/scripts/compare.py" "$DATA" --path "$BASE" --gen-subset test --max-len-a 1.2 --max-len-b 10 \
        --post-process sentencepiece $DEVICE_FLAGS "${SYSTEMS[@]}" --baselines "${BASELINES[@]}" "$@" $TABLE_FLAGS
}
