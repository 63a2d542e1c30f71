#!/usr/bin/env bash
# Generalized aggressive decoding for summaries: Table 10 of the aggressive decoding paper, CNN/DailyMail with BART-base.
#
#   scripts/recipes/gad/gad_cnndm.sh [FOLDER]      default: work/cnndm
#
# BART-large is fine-tuned and writes new summaries of the training articles; from them a BART-base verifier is fine-tuned, and
# a drafter is trained that begins as that verifier; a table of ROUGE, steps and seconds. Killed at any moment, the same command
# goes on. The paper does not say how it fine-tunes: fairseq's own settings for BART on this data are taken, and for the drafter
# those of Table 13, right.
#
# Summaries have at least 55 and at most 140 tokens and no trigram twice, as BART's authors have it. Stock fairseq without its
# CUDA extension ignores --no-repeat-ngram-size (build it for the rows with a beam and for the teacher), so GAD is compared with
# our own greedy decoding.
#
# Environment:
#   data      RAW (FOLDER/raw). {train,val,test}.{source,target} in it, an article or summary a line, neither tokenised nor cut,
#             are taken; else cnn_dm_v2.tgz is, which is downloaded where it is missing. GPT2_BPE (RAW/gpt2_bpe: encoder.json,
#             vocab.bpe, dict.txt) and the models likewise. WORKERS (2)
#   models    BART (bart.base) and TEACHER_BART (bart.large): names of fairseq's checkpoints, or files; ARCH and TEACHER_ARCH
#             (bart_base, bart_large); TEACHER (a file, as bart.large.cnn's: a teacher that is fine-tuned already),
#             DRAFTER_ARCH (nar_drafter_bart_base), BLOCK_SIZE (25), HIGH_QUALITY and HIGH_EFFICIENCY (beta,tau: 3,1.0 and 5,3.0)
#   training  SEED (1), GPUS (those PyTorch finds: tokens per update are the same on any number), DEVICE_FLAGS (--cpu where
#             there is no GPU), PRECISION_FLAGS (--fp16; on a CPU with AMX --amp), MODEL_FLAGS and TRAIN_FLAGS (more for
#             every training), MAX_UPDATE (fewer)
#   decoding  SYSTEMS (rows of the table, speed-ups are over the first: beam5 teacher baseline beam1 greedy nar gad gad-quality
#             gad-efficiency; baseline is BART-base without distillation), BATCH_SIZE (1: online), DECODE_FLAGS (more for
#             all systems), DISTILL_FLAGS (more for the teacher), TITLE (of the table)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"

WORK=${1:-$ROOT/work/cnndm}
RAW=${RAW:-$WORK/raw}
GPT2_BPE=${GPT2_BPE:-$RAW/gpt2_bpe}
WORKERS=${WORKERS:-2}
BART=${BART:-bart.base}
TEACHER_BART=${TEACHER_BART:-bart.large}
ARCH=${ARCH:-bart_base}
TEACHER_ARCH=${TEACHER_ARCH:-bart_large}
TEACHER=${TEACHER:-}
DRAFTER_ARCH=${DRAFTER_ARCH:-nar_drafter_bart_base}
BLOCK_SIZE=${BLOCK_SIZE:-25}
HIGH_QUALITY=${HIGH_QUALITY:-3,1.0}
HIGH_EFFICIENCY=${HIGH_EFFICIENCY:-5,3.0}
SEED=${SEED:-1}
MODEL_FLAGS=${MODEL_FLAGS:-}
TRAIN_FLAGS=${TRAIN_FLAGS:-}
MAX_UPDATE=${MAX_UPDATE:-}
SYSTEMS=${SYSTEMS:-beam5 teacher baseline beam1 greedy nar gad gad-quality gad-efficiency}
BATCH_SIZE=${BATCH_SIZE:-1}
DECODE_FLAGS=${DECODE_FLAGS:-}
DISTILL_FLAGS=${DISTILL_FLAGS:-}
for name in $SYSTEMS; do
    case $name in
        beam5 | teacher | baseline | beam1 | greedy | nar | gad | gad-quality | gad-efficiency) ;;
        *) die "unknown system '$name' in SYSTEMS" ;;
    esac
done
devices

FILES=https://dl.fbaipublicfiles.com/fairseq
ARTICLES=https://cdn-datasets.huggingface.co/summarization/cnn_dm_v2.tgz
STEPS=$ROOT/scripts/recipes/cnndm_steps.py
DATA=$WORK/data
DISTILLED=$WORK/distilled
LANGUAGES=(--source-lang source --target-lang target)
GENERATION=(--min-len 55 --max-len-b 140 --no-repeat-ngram-size 3 --lenpen 2.0)
GPUS_OF_BART=8 # what fairseq's settings are for
REPORTED=()

# -- files

# located NAME: where a checkpoint of fairseq's lies, or NAME itself if it is a file.
located() {
    case $1 in bart.base | bart.large) printf '%s' "$RAW/$1/model.pt" ;; *) printf '%s' "$1" ;; esac
}

# pretrained NAME: makes sure that it is there.
pretrained() {
    case $1 in
        bart.base | bart.large)
            if [ ! -e "$RAW/$1/model.pt" ]; then
                fetch "$RAW/$1.tar.gz" "$FILES/models/$1.tar.gz"
                mkdir -p "$RAW/$1"
                tar -xzOf "$RAW/$1.tar.gz" "$1/model.pt" > "$RAW/$1/model.pt.partial" ||
                    die "$RAW/$1.tar.gz is damaged or lacks $1/model.pt; delete it"
                mv "$RAW/$1/model.pt.partial" "$RAW/$1/model.pt"
            fi
            ;;
        *) [ -e "$1" ] || die "BART or TEACHER_BART '$1' is neither a file nor bart.base or bart.large" ;;
    esac
}

text() {
    local split side
    if [ ! -e "$RAW/train.source" ]; then
        tar -xzf "$RAW/cnn_dm_v2.tgz" -C "$OUT" --strip-components=1
        return
    fi
    for split in train val test; do
        for side in source target; do cp "$RAW/$split.$side" "$OUT"; done
    done
}

pieces() { "$PYTHON" "$STEPS" "$WORK/text" --output "$OUT" --bpe "$GPT2_BPE" --workers "$WORKERS"; }

binarise() {
    "$BIN/fairseq-preprocess" "${LANGUAGES[@]}" --srcdict "$GPT2_BPE/dict.txt" --tgtdict "$GPT2_BPE/dict.txt" \
        --workers "$((WORKERS > 0 ? WORKERS : 1))" --trainpref "$WORK/pieces/train" --validpref "$WORK/pieces/valid" \
        --testpref "$WORK/pieces/test" --destdir "$OUT"
}

# -- models

# train DATA FLAG...: checkpoints into $OUT.
train() {
    local data=$1; shift
    # shellcheck disable=SC2086  # these are lists of flags
    "$BIN/fairseq-train" "$data" --user-dir "$USER_DIR" --task translation_aggdec "${LANGUAGES[@]}" --seed "$SEED" \
        --num-workers "$WORKERS" --required-batch-size-multiple 1 --save-dir "$OUT" --no-epoch-checkpoints \
        --log-format simple --log-interval 100 --label-smoothing 0.1 --dropout 0.1 --weight-decay 0.01 --optimizer adam \
        --adam-betas '(0.9, 0.999)' "$@" $DEVICE_FLAGS $PRECISION_FLAGS $MODEL_FLAGS $TRAIN_FLAGS \
        ${MAX_UPDATE:+--max-update "$MAX_UPDATE"} 2>&1 | tee -a "$OUT/train.log"
}

# fine_tune NAME CHECKPOINT ARCH DATA: with the settings that fairseq's BART has for this data.
fine_tune() {
    local name=$1; shift
    resume "$name" train "$3" --finetune-from-model "$1" --arch "$2" \
        --criterion label_smoothed_cross_entropy --attention-dropout 0.1 --layernorm-embedding --share-all-embeddings \
        --share-decoder-input-output-embed --find-unused-parameters \
        --max-tokens 2048 --update-freq "$(update_freq 4 "$GPUS_OF_BART")" --adam-eps 1e-8 --clip-norm 0.1 \
        --lr-scheduler polynomial_decay --lr 0.00003 --warmup-updates 500 --total-num-update 20000 --max-update 20000
}

# Table 13, right; its positions are enough for an article.
train_drafter() {
    resume drafter train "$DISTILLED" --arch "$DRAFTER_ARCH" --criterion glancing_loss --block-size "$BLOCK_SIZE" \
        --init-encoder-from "$WORK/verifier/checkpoint_best.pt" --init-decoder-from "$WORK/verifier/checkpoint_best.pt" \
        --max-source-positions 1024 --max-target-positions 1024 \
        --max-tokens 4096 --update-freq "$(update_freq 4 8)" --adam-eps 1e-6 --clip-norm 5.0 \
        --lr-scheduler inverse_sqrt --lr 0.0005 --warmup-updates 10000 --max-update 300000
}

distil() {
    if [ -e "$DISTILLED/distillation.json" ]; then say "$DISTILLED: done already, kept"; return; fi
    # shellcheck disable=SC2086
    bash "$ROOT/scripts/distill.sh" "$DATA" "$DISTILLED" "${LANGUAGES[@]}" --path "$TEACHER" --beam 4 "${GENERATION[@]}" \
        --batch-size 32 $DEVICE_FLAGS $DISTILL_FLAGS
}

# -- the table

decode() {
    # shellcheck disable=SC2206
    local flags=("$DATA" --user-dir "$USER_DIR" --task translation_aggdec "${LANGUAGES[@]}" --gen-subset test
        --batch-size "$BATCH_SIZE" --required-batch-size-multiple 1 --num-workers 0 "${GENERATION[@]}" $DEVICE_FLAGS
        $DECODE_FLAGS "$@")
    generate "${flags[@]}"
}

# system NAME LABEL FLAG...: a row of the table, if it is wanted.
system() {
    local name=$1 label=$2; shift 2
    wanted "$name" || return 0
    stage "decode-$name" decode "$@"
    REPORTED+=(--system "decode-$name=$label")
}

wanted() { case " $SYSTEMS " in *" $1 "*) ;; *) return 1 ;; esac; }

relaxed() { printf '%s\n' --decoding gad --draft-tokens all --acceptance "top-beta:${1%,*}:${1#*,}"; }

# What cannot be had is said before any work.
[ -z "$TEACHER" ] || [ -e "$TEACHER" ] || die "TEACHER '$TEACHER' does not exist"
[ -n "$TEACHER" ] || [ -d "$WORK/teacher" ] || pretrained "$TEACHER_BART"
{ [ -d "$WORK/verifier" ] && { ! wanted baseline || [ -d "$WORK/baseline" ]; }; } || pretrained "$BART"
# A stage that is done depends on the same names as one that is not.
BART=$(located "$BART") TEACHER_BART=$(located "$TEACHER_BART")
if [ ! -d "$WORK/text" ]; then [ -e "$RAW/train.source" ] || fetch "$RAW/cnn_dm_v2.tgz" "$ARTICLES"; fi
for file in encoder.json vocab.bpe dict.txt; do fetch "$GPT2_BPE/$file" "$FILES/gpt2_bpe/$file"; done
stage text text
stage pieces pieces
stage data binarise

if [ -z "$TEACHER" ]; then
    fine_tune teacher "$TEACHER_BART" "$TEACHER_ARCH" "$DATA"
    TEACHER=$WORK/teacher/checkpoint_best.pt
fi
! wanted baseline || fine_tune baseline "$BART" "$ARCH" "$DATA"
distil
fine_tune verifier "$BART" "$ARCH" "$DISTILLED"
train_drafter

VERIFIER=(--path "$WORK/verifier/checkpoint_best.pt")
GAD=("${VERIFIER[@]}" --beam 1 --drafter-path "$WORK/drafter/checkpoint_best.pt" --draft-tokens "$BLOCK_SIZE")
mapfile -t QUALITY < <(relaxed "$HIGH_QUALITY")
mapfile -t EFFICIENCY < <(relaxed "$HIGH_EFFICIENCY")

system beam5 "verifier, beam 5" "${VERIFIER[@]}" --decoding stock --beam 5
system teacher "teacher, beam 5" --path "$TEACHER" --decoding stock --beam 5
system baseline "no distillation, beam 5" --path "$WORK/baseline/checkpoint_best.pt" --decoding stock --beam 5
system beam1 "verifier, beam 1" "${VERIFIER[@]}" --decoding stock --beam 1
system greedy "verifier, our greedy" "${VERIFIER[@]}" --beam 1 --decoding greedy
system nar "drafter alone" "${GAD[@]}" --decoding nar
system gad "GAD" "${GAD[@]}" --decoding gad --draft-tokens all
system gad-quality "GAD++ ($HIGH_QUALITY)" "${GAD[@]}" "${QUALITY[@]}"
system gad-efficiency "GAD++ ($HIGH_EFFICIENCY)" "${GAD[@]}" "${EFFICIENCY[@]}"

! wanted greedy || REPORTED+=(--oracle decode-greedy)

"$PYTHON" "$ROOT/scripts/recipes/translation_report.py" --work "$WORK" --title "${TITLE:-Generalized aggressive decoding, CNN/DailyMail}" \
    "${REPORTED[@]}" --subwords "$GPT2_BPE" --reference "$WORK/text/test.target" --output "$WORK/results"
