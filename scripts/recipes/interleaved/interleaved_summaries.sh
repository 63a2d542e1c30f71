#!/usr/bin/env bash
# Interleaved bidirectional decoding for summaries, CNN/DailyMail (CDMail) and Gigaword: Table 6 of Zhang et al. (2020),
# with the settings of appendix A.
#
#   WORK=work/gigaword scripts/recipes/interleaved/interleaved_summaries.sh DATA
#
# A small public set from a package: python -m scripts.recipes.interleaved.aclsum --output DATA
#
# DATA is a folder with {train,val,test}.{source,target}: an article or its summary a line, as text. Joint byte pairs of
# VOCABULARY pieces (32000) by sentencepiece; articles are cut behind MAX_SOURCE pieces (1024); ROUGE by text_scores.py.
# The paper's 25000 tokens an update are target tokens, and a batch is as large as its articles, which are far longer:
# UPDATE_FREQ is by default as many batches on all GPUs as hold so many tokens of summaries, counted in the training set.
# Killed at any moment, the same command goes on.
# Environment: WORK (work/summaries), SEED (1), WORKERS (1), GPUS (those PyTorch finds), DEVICE_FLAGS (--cpu where there is
# no GPU), PRECISION_FLAGS (--fp16; on a CPU with AMX --amp), MODEL_FLAGS and TRAIN_FLAGS (more for every
# training), BATCH_SIZE (1: online), DECODE_FLAGS (more for all systems), DISTILL_FLAGS (more for the teacher), and what
# interleaved_common.sh lists.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../aggressive/gec_common.sh"
. "$(dirname "${BASH_SOURCE[0]}")/interleaved_common.sh"
check_grid

DATA=${1:?usage: scripts/recipes/interleaved/interleaved_summaries.sh DATA}
WORK=${WORK:-$ROOT/work/summaries}
MAX_SOURCE=${MAX_SOURCE:-1024}

CNNDM="CNN/DailyMail, not anonymised: https://github.com/abisee/cnn-dailymail"
GIGAWORD="or annotated Gigaword as Rush et al. have it: https://github.com/harvardnlp/sent-summary"
need TRAIN_SRC train.source "articles to learn from, one a line; $CNNDM"
need TRAIN_TGT train.target "their summaries, one a line; $GIGAWORD"
need VALID_SRC val.source "articles of the validation set"
need VALID_TGT val.target "their summaries"
need TEST_SRC test.source "articles of the test set"
need TEST_TGT test.target "their summaries"
check_data
for split in TRAIN VALID TEST; do
    source=${split}_SRC target=${split}_TGT
    [ "$(wc -l < "${!source}")" = "$(wc -l < "${!target}")" ] ||
        die "${!source} has $(wc -l < "${!source}") lines, ${!target} has $(wc -l < "${!target}")"
done
MAX_EPOCH=${MAX_EPOCH:-1000}
defaults
DISTILL_FLAGS="$DISTILL_FLAGS $DEVICE_FLAGS"
ARTICLES=(--truncate-source --max-source-positions "$MAX_SOURCE")
REPORTED=()

text() {
    local split side name
    for split in train valid test; do
        for side in src tgt; do
            name=${split^^}_${side^^}
            cp "${!name}" "$OUT/$split.$side"
        done
    done
}

# learn NAME N DATA FLAG...: trains NAME and averages its last epochs into $WORK/NAME-model/model.pt.
learn() {
    local name=$1 data=$3; shift 3
    # shellcheck disable=SC2086  # a list of flags
    [ -d "$WORK/$name-model" ] || resume "$name" train "$data" "${ARTICLES[@]}" --skip-invalid-size-inputs-valid-test \
        $PRECISION_FLAGS "$@"
    stage "$name-model" average_with_subwords "$WORK/$name"
}

# batches_of_targets PIECES: how many GPU batches hold 25000 target tokens, `</s>` counted; 8 would if articles were as short.
batches_of_targets() {
    paste -d '\t' "$1/train.src" "$1/train.tgt" | awk -F '\t' -v most="$MAX_SOURCE" -v gpus="$((GPUS > 0 ? GPUS : 1))" '
        { source = split($1, _, " ") + 1; target = split($2, _, " ") + 1
          if (source > most) source = most
          longer += source > target ? source : target; targets += target }
        END { share = 8 * longer / targets / gpus; print int(share) + (share > int(share)) }'
}

distil() {
    if [ -e "$2/distillation.json" ]; then say "$2: done already, kept"; return; fi
    # shellcheck disable=SC2086
    bash "$ROOT/scripts/distill.sh" "$DATA" "$2" --source-lang src --target-lang tgt "${ARTICLES[@]}" --path "$1" \
        --batch-size 32 $DISTILL_FLAGS
}

decode_summaries() {
    # shellcheck disable=SC2206
    local flags=("$DATA" --user-dir "$USER_DIR" --task translation_aggdec --source-lang src --target-lang tgt
        --gen-subset test --batch-size "$BATCH_SIZE" --required-batch-size-multiple 1 --num-workers 0
        "${ARTICLES[@]}" $DEVICE_FLAGS $DECODE_FLAGS "$@")
    generate "${flags[@]}"
}

# system NAME LABEL FLAG...: a row of the table.
system() {
    local name=decode-$1 label=$2; shift 2
    stage "$name" decode_summaries "$@"
    REPORTED+=(--system "$name=$label")
}

stage text text
stage subwords subwords
stage data binarise "$WORK/subwords" test
DATA=$WORK/data
DISTILLED=$WORK/$RUN-distilled
UPDATE_FREQ=${UPDATE_FREQ:-$(batches_of_targets "$WORK/subwords")}
grid
"$PYTHON" "$ROOT/scripts/recipes/translation_report.py" --work "$WORK" --title "Interleaved decoding of summaries" \
    "${REPORTED[@]}" --subwords "$WORK/subwords/spm.model" --reference "$WORK/text/test.tgt" --output "$WORK/results-$RUN"
