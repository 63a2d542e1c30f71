#!/usr/bin/env bash
# Multi30k German-English: from the raw text to an ordinary fairseq Transformer, the model that the equality audit,
# the drafters and the benchmark use.
#
#   scripts/recipes/multi30k.sh [RAW]         RAW (WORK/raw) holds {train,val,test_2016_flickr}.{de,en}.gz; what is missing
#                                             is downloaded from github.com/multi30k/dataset, data/task1/raw
#
# Environment: MAX_UPDATE (4500; 0: the data only), AVERAGE (4 last checkpoints, one every 500 updates), VOCABULARY (8000), FILES (the address of
# the data), and what multi30k_common.sh lists. The audits of IAD under docs/results used MAX_UPDATE=1500 AVERAGE=1.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/multi30k_common.sh"

MAX_UPDATE=${MAX_UPDATE:-4500}
AVERAGE=${AVERAGE:-4}
VOCABULARY=${VOCABULARY:-8000}
RAW=${1:-$WORK/raw}
FILES=${FILES:-https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw}

[ "$#" = 0 ] || [ -d "$RAW" ] || die "the folder $RAW does not exist"

text() {
    local split language
    for split in train val test_2016_flickr; do
        for language in de en; do fetch "$RAW/$split.$language.gz" "$FILES/$split.$language.gz"; done
    done
    for language in de en; do
        gzip -dc "$RAW/train.$language.gz" > "$OUT/train.raw.$language"
        gzip -dc "$RAW/val.$language.gz" > "$OUT/valid.raw.$language"
        gzip -dc "$RAW/test_2016_flickr.$language.gz" > "$OUT/test.raw.$language"
    done
}

subwords() {
    "$PYTHON" - "$WORK/text" "$OUT" "$VOCABULARY" <<'PYTHON'
import io
import sys
from pathlib import Path

import sentencepiece as spm

from fairseq_aggdec.data.lines import read_lines

text, out, vocabulary = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
lines = [line for language in ("de", "en") for line in read_lines(text / f"train.raw.{language}")]
written = io.BytesIO()
# Not by file names: the model would hold them, and with them the folders of this machine.
spm.SentencePieceTrainer.train(
    sentence_iterator=iter(lines), model_writer=written, vocab_size=vocabulary, hard_vocab_limit=False, minloglevel=2
)
(out / "spm.model").write_bytes(written.getvalue())
model = spm.SentencePieceProcessor(model_proto=written.getvalue())
for raw in text.glob("*.raw.*"):
    lines = read_lines(raw)
    pieces = [" ".join(line) for line in model.encode(lines, out_type=str)]
    (out / raw.name.replace(".raw", "")).write_text("\n".join(pieces) + "\n", encoding="utf-8")
PYTHON
}

binarise() {
    "$BIN/fairseq-preprocess" --source-lang "$SOURCE" --target-lang "$TARGET" --joined-dictionary --workers 2 \
        --trainpref "$WORK/subwords/train" --validpref "$WORK/subwords/valid" --testpref "$WORK/subwords/test" \
        --destdir "$OUT"
}

train() {
    # shellcheck disable=SC2086  # the flags are lists
    "$BIN/fairseq-train" "$DATA" --user-dir "$USER_DIR" --task translation $DEVICE_FLAGS $PRECISION_FLAGS --seed "$SEED" \
        --arch transformer $MODEL_FLAGS --share-all-embeddings --dropout 0.2 \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --weight-decay 0.0001 \
        --lr 0.002 --lr-scheduler inverse_sqrt --warmup-updates 800 \
        --max-tokens 2000 --required-batch-size-multiple 1 --max-update "$MAX_UPDATE" \
        --save-dir "$OUT" --save-interval-updates 500 --keep-interval-updates 4 --no-epoch-checkpoints \
        $FLAGS --log-format simple --log-interval 100 2>&1 | tee -a "$OUT/train.log"
}

model() {
    average "$WORK/train-$PAIR" "$AVERAGE"
    cp "$DATA"/dict.*.txt "$OUT"
}

stage text text
stage subwords subwords
stage "data-$PAIR" binarise
[ "$MAX_UPDATE" != 0 ] || exit 0
resume "train-$PAIR" train
stage "model-$PAIR" model
