#!/usr/bin/env bash
# The translation data of the papers, from the public files to fairseq's binary data, for both directions of a pair.
#
#   scripts/recipes/wmt_data.sh SET FOLDER      SET is one of wmt14-en-de, wmt14-en-fr, wmt16-en-ro, wmt18-en-ru,
#                                               wat17-en-ja, iwslt14-de-en, multi30k-en-de
#
# Leaves FOLDER/data-SOURCE-TARGET (joined dictionary) and FOLDER/subwords/spm.model. Text is normalised and tokenised as Moses
# does it (pip install -e '.[recipes]') and cut by sentencepiece BPE, joint for both languages; training pairs of more than
# 250 pieces or a ratio above 1.5 are left out (iwslt14-de-en: of more than 175 tokens, before every 23rd becomes validation
# text). Multi30k is cut as multi30k.sh does it, by one model for both recipes. Killed at
# any moment, the same command goes on.
# Environment: RAW (FOLDER/raw: files that are there are taken, the others are downloaded; valid.LANGUAGE and test.LANGUAGE
# stand for sacreBLEU's sets; what RAW/SHA256SUMS lists is compared with it), WORKERS (2), VOCABULARY (the paper's).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

USAGE="usage: scripts/recipes/wmt_data.sh SET FOLDER"
SET=${1:?$USAGE}
WORK=${2:?$USAGE}
RAW=${RAW:-$WORK/raw}
WORKERS=${WORKERS:-2}
VOCABULARY=${VOCABULARY:-}
STEPS="$ROOT/scripts/recipes/wmt_steps.py"

case $SET in
    wmt14-en-de | wmt14-en-fr | wmt16-en-ro | wmt18-en-ru | wat17-en-ja | iwslt14-de-en | multi30k-en-de) ;;
    *) die "unknown set '$SET': $(sed -n 's/^#.*SET is one of //p; s/^#  *\(wat17.*\)/\1/p' "${BASH_SOURCE[0]}" | tr '\n' ' ')" ;;
esac
PAIR=${SET#*-}
SOURCE=${PAIR%-*}
TARGET=${PAIR#*-}

# Before hours of downloads.
[ "$SET" = multi30k-en-de ] || [ -d "$WORK/tokens" ] || "$PYTHON" -c 'import sacremoses' 2> /dev/null ||
    die "text is tokenised by sacremoses, which is not installed: pip install -e '.[recipes]'"

archive() { fetch "$RAW/$1" "$2"; }

# sacrebleu SET SPLIT: sacreBLEU compares its own downloads with its checksums.
sacrebleu() {
    local language side
    for language in "$SOURCE" "$TARGET"; do
        if [ "$language" = "$SOURCE" ]; then side=src; else side=ref; fi
        SACREBLEU="$RAW/sacrebleu" "$BIN/sacrebleu" -t "$1" -l "$PAIR" --echo "$side" > "$RAW/$2.$language.partial" ||
            die "sacreBLEU's set $1 cannot be downloaded; put $2.$SOURCE and $2.$TARGET into $RAW"
        mv "$RAW/$2.$language.partial" "$RAW/$2.$language"
    done
}

download() {
    local plan kind first second
    plan=$("$PYTHON" "$STEPS" plan "$SET" --raw "$RAW")
    mkdir -p "$RAW"
    while read -r kind first second; do
        [ -z "$kind" ] || "$kind" "$first" "$second" < /dev/null
    done <<< "$plan"
    if [ -e "$RAW/SHA256SUMS" ]; then (cd "$RAW" && sha256sum --check --quiet --ignore-missing SHA256SUMS) >&2; fi
}

text() { "$PYTHON" "$STEPS" text "$SET" --raw "$RAW" --output "$OUT"; }

tokens() { "$PYTHON" "$STEPS" tokenise "$SET" --text "$WORK/text" --output "$OUT" --workers "$WORKERS"; }

subwords() {
    local input=$WORK/tokens
    [ -d "$input" ] || input=$WORK/text
    "$PYTHON" "$STEPS" subwords "$SET" --text "$input" --output "$OUT" ${VOCABULARY:+--vocabulary "$VOCABULARY"}
}

binarise() {
    "$BIN/fairseq-preprocess" --source-lang "$SOURCE" --target-lang "$TARGET" --joined-dictionary --workers "$WORKERS" \
        --trainpref "$WORK/subwords/train" --validpref "$WORK/subwords/valid" --testpref "$WORK/subwords/test" \
        --destdir "$OUT"
}

[ -d "$WORK/text" ] || download
stage text text
[ "$SET" = multi30k-en-de ] || stage tokens tokens
stage subwords subwords
stage "data-$PAIR" binarise
