#!/usr/bin/env bash
# The analyses of Zhang et al. (2020) at a small size, on the models of interleaved_multi30k.sh: a result each, made once.
#
#   scripts/recipes/interleaved/interleaved_analyses.sh                   all of ANALYSES
#   ANALYSES=figures scripts/recipes/interleaved/interleaved_analyses.sh  one of them
#
#   choices      what the paper leaves open: end condition, stop rule, how the score of a hypothesis counts its length
#   information  Table 3: what words that are written at once tell about each other, from the models 1x2 and 2x1 and their
#                twins that write one by one
#   figures      Figures 2, 3 and 4: speed-up by batch size and beam, by source length, by words per direction (BLEU, OTEM)
#   contrast     Figure 5 in small: is a reference likelier than the same with one error, agreement by distance among them
#
# The models of all four: GEOMETRIES='1x1 1x2 2x1 2x2 4x1' ABLATIONS=one-by-one scripts/recipes/interleaved/interleaved_multi30k.sh
# A result that is there already is kept: delete its .json to make it anew.
# Environment: WORK (work/multi30k), SOURCE and TARGET (de, en), SETTING (distilled: models trained on that), LAYERS (3),
# START (warm; scratch: the fair choice for information, as a model that begins as a Transformer is nearest to 1x1),
# ANALYSES, GEOMETRIES (2x1 2x2 4x1: those of all but information), BATCH_SIZES (1 8 32) and BEAMS (1 4: of Figure 2), LIMIT
# (sentences; all), TABLE_FLAGS (more for aggdec bench), DEVICE_FLAGS (--cpu where there is no GPU), OUTPUT
# (docs/results/interleaved-multi30k, of START=scratch with -scratch behind it).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

WORK=${WORK:-$ROOT/work/multi30k}
PAIR=${SOURCE:-de}-${TARGET:-en}
SETTING=${SETTING:-distilled}
LAYERS=${LAYERS:-3}
case ${START:=warm} in
    warm) SUFFIX="" ;;
    scratch) SUFFIX=-scratch ;;
    *) die "unknown START '$START' (choose from: warm scratch)" ;;
esac
ANALYSES=${ANALYSES:-choices information figures contrast}
GEOMETRIES=${GEOMETRIES:-2x1 2x2 4x1}
BATCH_SIZES=${BATCH_SIZES:-1 8 32}
BEAMS=${BEAMS:-1 4}
LIMIT=${LIMIT:+--limit $LIMIT}
TABLE_FLAGS=${TABLE_FLAGS:-}
devices
OUTPUT=${OUTPUT:-$ROOT/docs/results/interleaved-multi30k$SUFFIX}
# shellcheck disable=SC2206
DATA=("$WORK/data-$PAIR" --path "$WORK/model-$PAIR/model.pt" --gen-subset test $DEVICE_FLAGS $LIMIT)
LENGTHS=(--max-len-a 1.2 --max-len-b 10)

for analysis in $ANALYSES; do
    case $analysis in
        choices | information | figures | contrast) ;;
        *) die "unknown analysis '$analysis' in ANALYSES (choose from: choices information figures contrast)" ;;
    esac
done

# model NAME: its checkpoint, which must be there.
model() {
    local file=$WORK/interleaved-$1-$SETTING-$LAYERS$SUFFIX-$PAIR/checkpoint_last.pt
    [ -e "$file" ] || die "$file is missing: train it by START=$START scripts/recipes/interleaved/interleaved_multi30k.sh"
    printf '%s' "$file"
}

choices() {
    local systems=() geometry path
    for geometry in $GEOMETRIES; do
        path=$(model "$geometry")
        systems+=(
            --system "$geometry=--path $path"
            --system "$geometry, end condition all=--path $path --variant end-condition=all"
            --system "$geometry, any ending counts=--path $path --variant stop-rule=any"
            --system "$geometry, score not normalised=--path $path --unnormalized"
            --system "$geometry, length penalty 0.6=--path $path --lenpen 0.6"
            --system "$geometry, length penalty 0.6 as GNMT has it=--path $path --lenpen 0.6 --variant length-penalty=gnmt"
            --system "$geometry, length penalty 1.4=--path $path --lenpen 1.4"
        )
    done
    # shellcheck disable=SC2086
    aggdec bench "${DATA[@]}" --batch-sizes 1 "${LENGTHS[@]}" --beam 4 --decoding interleaved --post-process sentencepiece \
        --title "Interleaved decoding on Multi30k $PAIR: what the paper leaves open" --system "1x1=" "${systems[@]}" \
        --baselines 1x1 $TABLE_FLAGS --output "$OUTPUT-choices"
}

information() {
    local left twin ends ends_twin
    left=$(model 1x2) twin=$(model 1x1) ends=$(model 2x1) ends_twin=$(model one-by-one-2x1)
    "$PYTHON" -m scripts.recipes.interleaved.pmi "${DATA[@]}" --pair "left to right=$left,$twin" \
        --pair "from both ends=$ends,$ends_twin" --output "$OUTPUT-information"
}

figures() {
    local systems=() geometry
    for geometry in $GEOMETRIES; do systems+=(--model "$geometry=$(model "$geometry")"); done
    # shellcheck disable=SC2086
    "$PYTHON" -m scripts.recipes.interleaved.figures "${DATA[@]}" "${LENGTHS[@]}" "${systems[@]}" --variant dedup=2 --post-process sentencepiece \
        --batch-sizes $BATCH_SIZES --beams $BEAMS --output "$OUTPUT-figures"
}

contrast() {
    local systems=(--model "Transformer=$WORK/model-$PAIR/model.pt") geometry
    for geometry in $GEOMETRIES; do systems+=(--model "$geometry=$(model "$geometry")"); done
    "$PYTHON" -m scripts.recipes.interleaved.contrast "${DATA[@]}" --bpe sentencepiece \
        --sentencepiece-model "$WORK/subwords/spm.model" "${systems[@]}" --output "$OUTPUT-contrast"
}

for analysis in $ANALYSES; do
    if [ -e "$OUTPUT-$analysis.json" ]; then say "$OUTPUT-$analysis.json is there already, kept"; continue; fi
    "$analysis"
done
