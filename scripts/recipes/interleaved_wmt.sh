#!/usr/bin/env bash
# Interleaved bidirectional decoding on WMT and WAT: Tables 1, 2, 4 and 6 of Zhang et al. (2020), with the settings of appendix A.
#
#   scripts/recipes/interleaved_wmt.sh wmt14-en-de [FOLDER]      or wmt14-en-fr, wmt16-en-ro (from ro to en, as in the
#                                                                paper), wmt18-en-ru, wat17-en-ja, any set of wmt_data.sh
#
# A geometry is DIRECTIONSxWORDS: 1x1 Transformer, 2x1 IBDecoder, 2x2 IBDecoder + SA, 4x1 IMDecoder, 1x2 vanilla SA, and may
# have ablations behind it: 2x1+middle-to-side. The Transformer on raw data is the teacher; its outputs are the distilled
# data. The last AVERAGE checkpoints of each model are averaged; the table has beam 4 and 1 of every model, speed-ups over
# the Transformer on raw data with the first of BEAMS. Killed at any moment, the same command goes on.
# Environment: SETTINGS (raw distilled), GEOMETRIES (2x1 2x2, on wmt14-en-de 1x1 2x1 2x2 4x1), STUDENTS (geometries with
# STUDENT_LAYERS, 2, in the decoder; on wmt14-en-de 1x1 2x1 2x2), BEAMS (4 1), LENPEN (0.6), LR (0.0007: what the schedule
# of Vaswani et al. has at its peak for 512 units), AVERAGE (5), NAME (interleaved), and what wmt_common.sh lists; the paper
# does not say how long it trains: here MAX_UPDATE is 300000.
# Table 2: GEOMETRIES="2x1 2x1+vanilla-mask 2x1+vanilla-positions 2x1+middle-to-side 2x1+independent-directions 1x2 2x2 1x4"
# SETTINGS=raw STUDENTS=""
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in
    wmt14-en-de) GEOMETRIES=${GEOMETRIES-1x1 2x1 2x2 4x1} STUDENTS=${STUDENTS-1x1 2x1 2x2} ;;
    wmt16-en-ro) DIRECTION=${DIRECTION:-ro-en} ;;
esac
GEOMETRIES=${GEOMETRIES-2x1 2x2}
STUDENTS=${STUDENTS:-}
STUDENT_LAYERS=${STUDENT_LAYERS:-2}
SETTINGS=${SETTINGS:-raw distilled}
BEAMS=${BEAMS:-4 1}
LENPEN=${LENPEN:-0.6}
LR=${LR:-0.0007}
AVERAGE=${AVERAGE:-5}
NAME=${NAME:-interleaved}
MAX_UPDATE=${MAX_UPDATE:-300000}
DISTILL_FLAGS="--beam 4 --lenpen $LENPEN ${DISTILL_FLAGS:-}"

for geometry in $GEOMETRIES $STUDENTS; do
    [[ $geometry =~ ^[1-9][0-9]*x[1-9][0-9]*(\+[a-z-]+)*$ ]] ||
        die "geometry '$geometry' in GEOMETRIES or STUDENTS: give DIRECTIONSxWORDS, such as 2x1, or 2x1+ABLATION"
done
for setting in $SETTINGS; do
    case $setting in
        raw | distilled) ;;
        *) die "unknown setting '$setting' in SETTINGS (choose from: raw distilled)" ;;
    esac
done
. "$(dirname "${BASH_SOURCE[0]}")/wmt_common.sh"

DISTILLED=$WORK/$NAME-distilled-$DIRECTION

# architecture GEOMETRY: flags, a line each; stock fairseq's model for the Transformer, so that stock fairseq decodes it.
architecture() {
    local shape=${1%%+*} ablations=${1#"${1%%+*}"}
    if [ "$1" = 1x1 ]; then printf '%s\n' --arch transformer; return; fi
    printf '%s\n' --arch interleaved_transformer --directions "${shape%x*}" --words-per-direction "${shape#*x}"
    [ -z "$ablations" ] || printf '%s' "$ablations" | tr + '\n' | sed -n 's/^./--&/p'
}

label() {
    local shape=${1%%+*} directions words
    directions=${shape%x*} words=${shape#*x}
    case $directions in
        1) if [ "$words" = 1 ]; then printf Transformer; else printf 'vanilla SA, c=%s' "$words"; fi ;;
        2) if [ "$words" = 1 ]; then printf IBDecoder; else printf 'IBDecoder + SA, c=%s' "$words"; fi ;;
        *) printf 'IMDecoder, h=%s' "$directions"; [ "$words" = 1 ] || printf ', c=%s' "$words" ;;
    esac
    printf '%s' "${1#"$shape"}" | sed 's/+/, /g'
}

# fit GEOMETRY SETTING FLAG...: trains the model $FITTED.
fit() {
    local geometry=$1 setting=$2 data=$DATA flags; shift 2
    [ "$setting" = raw ] || data=$DISTILLED
    mapfile -t flags < <(architecture "$geometry")
    # Dropout, optimiser and tokens of appendix A; what it does not say is Vaswani et al.'s.
    learn "$FITTED" "$AVERAGE" "$data" "${flags[@]}" --share-all-embeddings \
        --criterion label_smoothed_cross_entropy --dropout 0.1 --attention-dropout 0.1 \
        --adam-betas '(0.9, 0.98)' --adam-eps 1e-9 --lr "$LR" --warmup-updates 4000 --warmup-init-lr 1e-7 \
        --max-tokens 3125 --update-freq "$(update_freq 1 8)" --keep-last-epochs "$AVERAGE" "$@"
}

# model GEOMETRY SETTING [LAYERS]: trains and decodes.
model() {
    local geometry=$1 setting=$2 layers=${3:-} text decoding=interleaved beam
    FITTED=$NAME-$geometry${layers:+-student}-$setting-$DIRECTION
    # shellcheck disable=SC2086  # two words
    fit "$geometry" "$setting" ${layers:+--decoder-layers $layers}
    text=$(label "$geometry")${layers:+, $layers decoder layers}
    [ "$geometry" != 1x1 ] || decoding=beam
    for beam in $BEAMS; do
        system "$NAME-$geometry${layers:+-student}-$setting-$beam" "$text, $setting, beam $beam" \
            --path "$WORK/$FITTED-model/model.pt" --decoding "$decoding" --beam "$beam" --lenpen "$LENPEN"
    done
}

model 1x1 raw
case " $SETTINGS " in *" distilled "*) distil "$WORK/$FITTED-model/model.pt" "$DISTILLED" ;; esac
for beam in $BEAMS; do
    system "$NAME-engine-$beam" "Transformer, raw, beam $beam, this engine" --path "$WORK/$FITTED-model/model.pt" \
        --decoding interleaved --beam "$beam" --lenpen "$LENPEN"
done
for setting in $SETTINGS; do
    for geometry in $GEOMETRIES; do
        [ "$geometry $setting" = "1x1 raw" ] || model "$geometry" "$setting"
    done
    for geometry in $STUDENTS; do model "$geometry" "$setting" "$STUDENT_LAYERS"; done
done
report "Interleaved decoding, $SET, $DIRECTION"
