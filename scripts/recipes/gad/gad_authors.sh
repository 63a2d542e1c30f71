#!/usr/bin/env bash
# Models that the authors of generalized aggressive decoding publish (github.com/hemingkx/SpecDec): decoded and scored, nothing is
# trained. Tables 5 and 14 (WMT), and Table 10 (CNN/DailyMail) of the aggressive decoding paper.
#
#   VERIFIER=at-verifier.pt DRAFTER=nat-drafter.pt DICTS=data/wmt14.en-de TEXT=test.en REFERENCE=test.de \
#       scripts/recipes/gad/gad_authors.sh FOLDER
#   SUMMARIES=1 SUBWORDS=gpt2:BPE DICTS=summarization/data TEXT=test.source REFERENCE=test.target ... FOLDER
#
# VERIFIER and DRAFTER are their checkpoints, DICTS has dict.SOURCE.txt and dict.TARGET.txt, TEXT and REFERENCE are plain text, a line
# each. Of WMT TEXT holds tokens, which CODES cut (their data/wmt14.en-de/bpe.32000, by the package subword-nmt), or pieces already.
# Of summaries BPE has GPT-2's encoder.json and vocab.bpe.
# Environment: SOURCE and TARGET (en, de; of summaries source, target), SET (wmt14-en-de: how wmt_sets.py scores it), REFERENCE_TOKENS
# (of the papers' BLEU; REFERENCE), CODES (none), BLOCK_SIZE (25), HIGH_QUALITY (3,1.0) and HIGH_EFFICIENCY (5,3.0), BATCH_SIZE (1),
# DECODE_FLAGS (of summaries --truncate-source --max-len-a 0 --max-len-b 200), DEVICE_FLAGS.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

WORK=$(realpath -m "${1:?usage: $0 FOLDER}")
if [ "${SUMMARIES:-0}" = 1 ]; then
    SOURCE=${SOURCE:-source} TARGET=${TARGET:-target} SET=
    DECODE_FLAGS=${DECODE_FLAGS---truncate-source --max-len-a 0 --max-len-b 200}
else
    SOURCE=${SOURCE:-en} TARGET=${TARGET:-de} SET=${SET:-wmt14-en-de} DECODE_FLAGS=${DECODE_FLAGS:-}
fi
SUBWORDS=${SUBWORDS:-@@} CODES=${CODES:-} BLOCK_SIZE=${BLOCK_SIZE:-25} BATCH_SIZE=${BATCH_SIZE:-1}
HIGH_QUALITY=${HIGH_QUALITY:-3,1.0} HIGH_EFFICIENCY=${HIGH_EFFICIENCY:-5,3.0}
devices
for name in VERIFIER DRAFTER DICTS TEXT REFERENCE; do
    [ -e "${!name:-}" ] || die "$name='${!name:-}' does not exist; the authors' files are listed in the README of github.com/hemingkx/SpecDec"
done
for language in "$SOURCE" "$TARGET"; do
    [ -e "$DICTS/dict.$language.txt" ] || die "DICTS=$DICTS has no dict.$language.txt; name the languages with SOURCE and TARGET"
done
REPORTED=()

pieces() {
    if [ -n "$CODES" ]; then
        "$PYTHON" -c 'import subword_nmt' 2>/dev/null || die "CODES needs the package subword-nmt"
        "$PYTHON" -m subword_nmt.apply_bpe --codes "$CODES" < "$TEXT" > "$OUT/test.$SOURCE"
    else
        "$PYTHON" -m scripts.recipes.subwords "$SUBWORDS" < "$TEXT" > "$OUT/test.$SOURCE"
    fi
}

# The dictionaries are theirs; no target is needed to decode.
binarise() {
    "$BIN/fairseq-preprocess" --source-lang "$SOURCE" --target-lang "$TARGET" --only-source --testpref "$WORK/pieces/test" \
        --srcdict "$DICTS/dict.$SOURCE.txt" --destdir "$OUT"
    cp "$DICTS/dict.$TARGET.txt" "$OUT"
}

convert() { aggdec convert "$DRAFTER" "$OUT/drafter" --block-size "$BLOCK_SIZE"; }

decode() {
    # shellcheck disable=SC2206
    local flags=("$WORK/data" --user-dir "$USER_DIR" --task translation_aggdec --source-lang "$SOURCE" --target-lang "$TARGET"
        --gen-subset test --batch-size "$BATCH_SIZE" --required-batch-size-multiple 1 --num-workers 0 --path "$VERIFIER"
        $DEVICE_FLAGS $DECODE_FLAGS "$@")
    generate "${flags[@]}"
}

# system NAME LABEL FLAG...: a row of the table.
system() {
    local name=decode-$1 label=$2; shift 2
    stage "$name" decode "$@"
    REPORTED+=(--system "$name=$label")
}

relaxed() { printf '%s\n' --acceptance "top-beta:${1%,*}:${1#*,}"; }

stage pieces pieces
stage data binarise
stage converted convert
gad=(--beam 1 --decoding gad --drafter-path "$WORK/converted/drafter/model.pt" --draft-tokens all)
mapfile -t QUALITY < <(relaxed "$HIGH_QUALITY")
mapfile -t EFFICIENCY < <(relaxed "$HIGH_EFFICIENCY")
system beam5 "verifier, beam 5" --decoding stock --beam 5
system beam1 "verifier, beam 1" --decoding stock --beam 1
system greedy "verifier, our greedy" --decoding greedy --beam 1
system gad "GAD" "${gad[@]}"
system gad-quality "GAD++ ($HIGH_QUALITY), high quality" "${gad[@]}" "${QUALITY[@]}"
system gad-efficiency "GAD++ ($HIGH_EFFICIENCY), high efficiency" "${gad[@]}" "${EFFICIENCY[@]}"
"$PYTHON" "$ROOT/scripts/recipes/translation_report.py" --work "$WORK" --title "The authors' models of GAD" "${REPORTED[@]}" \
    --subwords "$SUBWORDS" --reference "$REFERENCE" --reference-tokens "${REFERENCE_TOKENS:-$REFERENCE}" --language "$TARGET" \
    ${SET:+--set "$SET"} --oracle decode-beam1 --output "$WORK/results"
