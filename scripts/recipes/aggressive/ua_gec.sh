#!/usr/bin/env bash
# Ukrainian grammatical error correction, UA-GEC: from the PyPI package `ua-gec` (CC BY 4.0) to the checkpoint that the demo
# uses and a scored table. Small enough for two CPU cores: about 50 minutes of training.
#
#   OMP_NUM_THREADS=1 scripts/recipes/aggressive/ua_gec.sh     # one thread, as the scores in checkpoints/ua_gec were made
#
# Pre-trained on synthetic errors in the clean side of the training text, as the paper pre-trains (section 4.1), then
# trained on the real errors. Environment: WORK (work/ua_gec), LAYER (gec-only, or gec-fluency), COPIES (4 noised copies of the
# text), PRETRAIN_UPDATES (1100), MAX_UPDATE (250), LIMIT (sentences of each set, to try the recipe; all), SHIP (a folder
# for the model, the dictionaries and a sample of the test set, as in checkpoints/ua_gec; none), and what gec_common.sh lists but
# ARCH, LR, WARMUP and AVERAGE; other defaults are VOCABULARY 4000, LAYERS 3+3, MAX_TOKENS 3000, UPDATE_FREQ 1, DROPOUT 0.1.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/gec_common.sh"

WORK=${WORK:-$ROOT/work/ua_gec}
SETS="test"
VOCABULARY=${VOCABULARY:-4000}
ARCH=transformer
LAYERS=${LAYERS:-3+3}
MODEL_FLAGS=${MODEL_FLAGS:---encoder-embed-dim 256 --decoder-embed-dim 256 --encoder-ffn-embed-dim 1024
    --decoder-ffn-embed-dim 1024 --encoder-attention-heads 4 --decoder-attention-heads 4
    --encoder-normalize-before --decoder-normalize-before}
MAX_TOKENS=${MAX_TOKENS:-3000}
UPDATE_FREQ=${UPDATE_FREQ:-1}
DROPOUT=${DROPOUT:-0.1}
LAYER=${LAYER:-gec-only}
COPIES=${COPIES:-4}
MAX_UPDATE=${MAX_UPDATE:-250}
PRETRAIN_UPDATES=${PRETRAIN_UPDATES:-1100}
defaults

text() {
    "$PYTHON" -m scripts.recipes.aggressive.ua_gec --output "$OUT" --layer "$LAYER" ${LIMIT:+--limit "$LIMIT"}
}

synthetic() {
    "$PYTHON" -m scripts.recipes.aggressive.synthetic_errors --clean "$WORK/text/train.tgt" --copies "$COPIES" \
        --pairs "$WORK/text/train.src" "$WORK/text/train.tgt" --output "$OUT/train"
}

# Updates are few, so they are bold: a high learning rate, a short warm-up, a checkpoint every 100.
pretrain() {
    train "$WORK/pretrain-data" --lr 0.002 --warmup-updates 400 --clip-norm 1.0 --max-update "$PRETRAIN_UPDATES" \
        --save-interval-updates 100 --keep-interval-updates 2 --no-epoch-checkpoints
}

train_on_errors() {
    train "$WORK/data" --finetune-from-model "$WORK/pretrain/checkpoint_last.pt" --lr 0.0005 --warmup-updates 50 \
        --clip-norm 1.0 --save-interval-updates 50 --keep-interval-updates 3 --no-epoch-checkpoints
}

# The mean of the last checkpoints in half precision: what is shipped is what is scored.
model() {
    local checkpoints
    mapfile -t checkpoints < <(find "$WORK/train/" -name 'checkpoint_*_*.pt' | sort -V)
    [ "${#checkpoints[@]}" -gt 0 ] || checkpoints=("$WORK/train/checkpoint_last.pt") # a run shorter than 50 updates
    aggdec average-checkpoints --half --output "$OUT/checkpoint.pt" "${checkpoints[@]}"
    cp "$WORK/subwords/spm.model" "$WORK/subwords/dict.txt" "$OUT"
}

# What is copied on the validation set, then everything about the test set with times (results.md).
scores() {
    local text="$WORK/text" pieces="$WORK/subwords/spm.model"
    "$PYTHON" -m scripts.recipes.aggressive.gec_score --source "$text/valid.src" --references "$text/valid.tgt" \
        --hypothesis "iad=$WORK/decode-valid-iad/hypotheses.txt" --subword-model "$pieces" > "$WORK/valid.md"
    "$PYTHON" -m scripts.recipes.aggressive.gec_score --source "$text/test.src" \
        --references "$text/test.tgt" "$text/test.tgt2" --hypothesis "source=$text/test.src" \
        --subword-model "$pieces" --write-m2 "$WORK/test.m2" > /dev/null
    cat "$WORK/valid.md"
    report --title "UA-GEC ($LAYER), test set, two annotators" --metric gec --set "test=$WORK/test.m2" \
        --subword-model "$pieces"
}

ship() {
    mkdir -p "$SHIP"
    cp "$WORK"/model/{checkpoint.pt,spm.model} "$WORK"/data/dict.{src,tgt}.txt "$SHIP"
    "$PYTHON" -m scripts.recipes.aggressive.ua_gec --output "$SHIP" --layer "$LAYER" --sample 200
}

stage text text
stage synthetic synthetic
stage subwords subwords
stage data binarise "$WORK/subwords" "$SETS"
SYNTHETIC="$WORK/synthetic/train"
stage pretrain-subwords encode_synthetic
stage pretrain-data binarise "$WORK/pretrain-subwords" ""
resume pretrain pretrain
resume train train_on_errors
stage model model
for system in $SYSTEMS; do
    stage "decode-test-$system" decode "$system" test test
done
stage decode-valid-iad decode iad valid valid
scores
[ -z "${SHIP:-}" ] || ship
