#!/usr/bin/env bash
# English text simplification, WikiLarge: Table 4 of the aggressive decoding paper. Transformer-base, SARI and BLEU
# against the eight references of TurkCorpus.
#
#   scripts/recipes/aggressive/wikilarge.sh DATA     DATA holds WikiLarge and TurkCorpus; docs/recipes.md says where to get them
#
# Environment: WORK (work/wikilarge), LOWERCASE (1: all text in lower case, which is how the metrics compare it), and what
# gec_common.sh lists. The paper gives no hyper-parameters for this model: those of Table 11 are taken.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/gec_common.sh"

DATA=${1:?usage: scripts/recipes/aggressive/wikilarge.sh DATA}
WORK=${WORK:-$ROOT/work/wikilarge}
ARCH=${ARCH:-transformer}
LOWERCASE=${LOWERCASE:-1}
SETS="test"

WIKI="WikiLarge, data-simplification.tar.bz2: https://github.com/XingxingZhang/dress"
TURK="TurkCorpus, data/turkcorpus: https://github.com/cocoxu/simplification"
need TRAIN_SRC wiki.full.aner.ori.train.src "$WIKI"
need TRAIN_TGT wiki.full.aner.ori.train.dst "$WIKI"
need VALID_SRC wiki.full.aner.ori.valid.src "$WIKI"
need VALID_TGT wiki.full.aner.ori.valid.dst "$WIKI"
need TEST_SRC test.8turkers.tok.norm "$TURK"
for number in 0 1 2 3 4 5 6 7; do
    need "REFERENCE_$number" "test.8turkers.tok.turk.$number" "$TURK"
done
check_data
defaults

text() {
    local split side name
    for split in train valid; do
        for side in src tgt; do
            name=${split^^}_${side^^}
            fold "${!name}" "$OUT/$split.$side"
        done
    done
    fold "$TEST_SRC" "$OUT/test.src"
    for number in 0 1 2 3 4 5 6 7; do
        name=REFERENCE_$number
        fold "${!name}" "$OUT/reference.$number"
    done
}

# fold FROM TO: a copy, in lower case unless LOWERCASE=0.
fold() {
    if [ "$LOWERCASE" = 0 ]; then cp "$1" "$2"; else "$PYTHON" "$STEPS" lowercase "$1" "$2"; fi
}

stage text text
learn_and_decode
report --title "WikiLarge" --metric simplification --set "test=$WORK/text/test.src" \
    --references "$WORK"/text/reference.?
