#!/usr/bin/env bash
# English grammatical error correction in the restricted setting of BEA-2019: Tables 1, 3 and 11 of the aggressive
# decoding paper. Trains on Lang-8, NUCLE, FCE and W&I+LOCNESS, validates on CoNLL-2013, tests on CoNLL-2014 with both
# annotators, scores by MaxMatch.
#
#   scripts/recipes/aggressive/bea2019.sh DATA                     Transformer-big from scratch
#   SYNTHETIC=PREFIX scripts/recipes/aggressive/bea2019.sh DATA    pre-trained on PREFIX.src and PREFIX.tgt, then fine-tuned
#   LAYERS=12+2 scripts/recipes/aggressive/bea2019.sh DATA         12 encoder and 2 decoder layers
#
# DATA is a folder with the unpacked corpora, in any arrangement; docs/recipes.md says where to get them.
# Environment: WORK (work/bea2019), ANNOTATOR (0; "all" makes a pair from each annotator), SYNTHETIC, FINETUNE_LR,
# PRETRAIN_EPOCHS, PRETRAIN_WARMUP, and what gec_common.sh lists.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/gec_common.sh"

DATA=${1:?usage: scripts/recipes/aggressive/bea2019.sh DATA}
WORK=${WORK:-$ROOT/work/bea2019}
ANNOTATOR=${ANNOTATOR:-0}
SETS="conll13 conll14"

BEA="https://www.cl.cam.ac.uk/research/nl/bea2019st/#data"
need LANG8 lang8.train.auto.bea19.m2 "Lang-8 Corpus of Learner English, lang8.bea19.tar.gz: by request form, $BEA"
need NUCLE nucle.train.gold.bea19.m2 "NUCLE, release3.3.tar.bz2: by request form, $BEA"
need FCE fce.train.gold.bea19.m2 "FCE v2.1, fce_v2.1.bea19.tar.gz: $BEA"
need WI ABC.train.gold.bea19.m2 "W&I+LOCNESS v2.1, wi+locness_v2.1.bea19.tar.gz: $BEA"
need CONLL13 original/data/official-preprocessed.m2 \
    "CoNLL-2013, release2.3.1.tar.gz: https://www.comp.nus.edu.sg/~nlp/conll13st.html"
need CONLL14 noalt/official-2014.combined.m2 \
    "CoNLL-2014, conll14st-test-data.tar.gz: https://www.comp.nus.edu.sg/~nlp/conll14st.html"
for side in src tgt; do
    [ -z "${SYNTHETIC:-}" ] || [ -f "$SYNTHETIC.$side" ] ||
        MISSING+=("  $SYNTHETIC.$side"$'\n'"      synthetic parallel text, named by SYNTHETIC")
done
check_data
defaults

text() {
    "$PYTHON" "$STEPS" corrections --output "$OUT" --annotator "$ANNOTATOR" --train "$LANG8" "$NUCLE" "$FCE" "$WI" \
        --valid "$CONLL13" --set "conll13=$CONLL13" --set "conll14=$CONLL14"
}

stage text text
learn_and_decode
report --title "BEA-2019, $LAYERS layers${SYNTHETIC:+, pre-trained}" --metric m2 \
    --set "conll13=$CONLL13" --set "conll14=$CONLL14"
