#!/usr/bin/env bash
# English noise removal: the English side of Multi30k with spelling and word errors in it, and a small corrector of these.
#
#   scripts/recipes/aggressive/noise_multi30k.sh       after multi30k.sh, of which it takes text and subwords
#
# Outputs mostly copy their inputs, as in grammatical error correction, in a language that everybody reads; benchmarks compare
# IAD with other engines on it. Environment: WORK (work/multi30k), COPIES (2, noised copies of the training text), RATE (0.1, of
# the words), MAX_UPDATE (3000), MODEL_FLAGS (2+2 layers, width 256), FLAGS (more for fairseq-train), SEED (1), DEVICE_FLAGS,
# PRECISION_FLAGS, PYTHON: see multi30k_common.sh.
set -euo pipefail
MODEL_FLAGS=${MODEL_FLAGS:---encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 256 --decoder-embed-dim 256
    --encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 --encoder-attention-heads 4 --decoder-attention-heads 4}
. "$(dirname "${BASH_SOURCE[0]}")/../multi30k_common.sh"

MAX_UPDATE=${MAX_UPDATE:-3000}
COPIES=${COPIES:-2}
RATE=${RATE:-0.1}
[ -e "$WORK/subwords/spm.model" ] || die "$WORK/subwords is missing: run scripts/recipes/multi30k.sh first"

text() {
    local split copies
    for split in train valid test; do
        copies=1
        [ "$split" != train ] || copies=$COPIES
        "$PYTHON" -m scripts.recipes.aggressive.synthetic_errors --clean "$WORK/text/$split.raw.en" --copies "$copies" \
            --rate "$RATE" --seed "$SEED" --output "$OUT/$split"
    done
}

subwords() {
    "$PYTHON" - "$WORK/noise-text" "$OUT" "$WORK/subwords/spm.model" <<'PYTHON'
import sys
from pathlib import Path

import sentencepiece as spm

from fairseq_aggdec.data.lines import read_lines

text, out = Path(sys.argv[1]), Path(sys.argv[2])
model = spm.SentencePieceProcessor(model_file=sys.argv[3])
for file in text.iterdir():
    pieces = [" ".join(line) for line in model.encode(read_lines(file), out_type=str)]
    (out / file.name).write_text("\n".join(pieces) + "\n", encoding="utf-8")
PYTHON
}

binarise() {
    "$BIN/fairseq-preprocess" --source-lang src --target-lang tgt --joined-dictionary --workers 2 \
        --trainpref "$WORK/noise-subwords/train" --validpref "$WORK/noise-subwords/valid" \
        --testpref "$WORK/noise-subwords/test" --destdir "$OUT"
}

train() {
    # shellcheck disable=SC2086  # the flags are lists
    "$BIN/fairseq-train" "$WORK/noise-data" --user-dir "$USER_DIR" --task translation $DEVICE_FLAGS $PRECISION_FLAGS \
        --seed "$SEED" --arch transformer $MODEL_FLAGS --encoder-normalize-before --decoder-normalize-before \
        --share-all-embeddings --dropout 0.1 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --lr 0.002 --lr-scheduler inverse_sqrt --warmup-updates 400 \
        --max-tokens 2000 --required-batch-size-multiple 1 --max-update "$MAX_UPDATE" --save-dir "$OUT" \
        --save-interval-updates 500 --keep-interval-updates 1 --no-epoch-checkpoints \
        $FLAGS --log-format simple --log-interval 100 2>&1 | tee -a "$OUT/train.log"
}

model() {
    average "$WORK/noise-train" 1
    cp "$WORK/noise-data"/dict.*.txt "$OUT"
}

stage noise-text text
stage noise-subwords subwords
stage noise-data binarise
resume noise-train train
stage noise-model model
