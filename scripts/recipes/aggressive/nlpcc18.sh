#!/usr/bin/env bash
# Chinese grammatical error correction, NLPCC-2018 shared task 2: Table 4 of the aggressive decoding paper.
# Transformer-big with the hyper-parameters of training from scratch in Table 11, scored by MaxMatch.
#
#   scripts/recipes/aggressive/nlpcc18.sh DATA     DATA holds data.train and gold.01; docs/recipes.md says where to get them
#
# Environment: WORK (work/nlpcc18), SUBWORDS (char; or bpe), VALID_SIZE (5000 sentences of the training data), SEGMENTER
# (a command that reads raw lines and writes the same lines cut into words, such as the task's own PKUNLP tool: with it
# scores are over words, as in the task; without it over characters), and what gec_common.sh lists.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/gec_common.sh"

DATA=${1:?usage: scripts/recipes/aggressive/nlpcc18.sh DATA}
WORK=${WORK:-$ROOT/work/nlpcc18}
SUBWORDS=${SUBWORDS:-char}
VALID_SIZE=${VALID_SIZE:-5000}
SEGMENTER=${SEGMENTER:-}
SETS="test"

NLPCC="http://tcci.ccf.org.cn/conference/2018/taskdata.php or https://github.com/zhaoyyoo/NLPCC2018_GEC"
need TRAIN data.train "NLPCC-2018 GEC training data (from Lang-8): $NLPCC"
need GOLD gold.01 "NLPCC-2018 GEC test set with both annotators, M2 format: $NLPCC"
check_data
defaults

text() {
    "$PYTHON" "$STEPS" nlpcc --train "$TRAIN" --gold "$GOLD" --valid-size "$VALID_SIZE" --seed "$SEED" --output "$OUT"
}

segment() {
    local system
    for system in $SYSTEMS; do
        bash -c "$SEGMENTER" < "$WORK/decode-test-$system/hypotheses.txt" > "$OUT/test-$system.txt"
    done
}

stage text text
learn_and_decode
if [ -n "$SEGMENTER" ]; then
    stage words segment
    report --title "NLPCC-2018, over words" --metric m2 --set "test=$GOLD" --hypotheses "$WORK/words"
else
    report --title "NLPCC-2018, over characters" --metric m2 --characters --set "test=$GOLD"
fi
