# shellcheck shell=bash
# Shared by the recipes of interleaved decoding at the paper's size: the grid of models, with the settings of appendix A.
# Scores of a hypothesis of n tokens are divided by ((5 + n) / 6)^LENPEN, as in the authors' code (LENGTH_PENALTY=gnmt), or by
# n^LENPEN (LENGTH_PENALTY=fairseq). Only fairseq's penalty can be had in the rows of stock fairseq: compare BLEU with the rows
# "this engine", speed with the first row.
#
# A geometry is DIRECTIONSxWORDS: 1x1 Transformer, 2x1 IBDecoder, 2x2 IBDecoder + SA, 4x1 IMDecoder, 1x2 vanilla SA, and
# may have ablations behind it: 2x1+middle-to-side. The Transformer on raw data is the teacher; its outputs are the
# distilled data. Of each model the last AVERAGE checkpoints, SAVE_EVERY updates apart, are averaged.
#
# A recipe calls check_grid before any work, defines
#   learn NAME N DATA FLAG...     trains NAME and averages its last N checkpoints into $WORK/NAME-model/model.pt
#   distil TEACHER OUTPUT         with DISTILL_FLAGS
#   system NAME LABEL FLAG...     decodes; a row of the table
# sets DATA, DISTILLED and GPUS, and calls grid. The first row, which speed-ups are over, is the Transformer on raw data
# with the first of BEAMS.
# Environment: SETTINGS (raw distilled), GEOMETRIES (2x1 2x2), STUDENTS (geometries with STUDENT_LAYERS, 2, in the
# decoder), BEAMS (4 1), LENPEN (0.6), LENGTH_PENALTY (gnmt), LR (0.0007: the peak of Vaswani et al.'s schedule for 512 units), WARMUP (4000), AVERAGE (5), SAVE_EVERY (5000), RUN
# (interleaved), UPDATE_FREQ (as many as make 25000 tokens of the longer side an update on up to 8 GPUs; the recipe may
# count otherwise), MAX_UPDATE (300000; the paper does not say how long it trains).

. "$(dirname "${BASH_SOURCE[0]}")/interleaved_settings.sh"

GEOMETRIES=${GEOMETRIES-2x1 2x2}
STUDENTS=${STUDENTS:-}
STUDENT_LAYERS=${STUDENT_LAYERS:-2}
SETTINGS=${SETTINGS:-raw distilled}
BEAMS=${BEAMS:-4 1}
LENPEN=${LENPEN:-0.6}
LENGTH_PENALTY=${LENGTH_PENALTY:-gnmt}
ENGINE=(--decoding interleaved --variant "length-penalty=$LENGTH_PENALTY" --lenpen "$LENPEN")
LR=${LR:-0.0007}
WARMUP=${WARMUP:-4000}
AVERAGE=${AVERAGE:-5}
SAVE_EVERY=${SAVE_EVERY:-5000}
RUN=${RUN:-interleaved}
MAX_UPDATE=${MAX_UPDATE:-300000}
DISTILL_FLAGS="--beam 4 ${ENGINE[*]} ${DISTILL_FLAGS:-}"

check_grid() {
    local variable
    for variable in GEOMETRIES STUDENTS; do
        check_each "$variable" geometry "$GEOMETRY(\+(${ABLATION_NAMES// /|}))*" \
            "$GEOMETRY_FORM, and behind it +ABLATION, which is one of: $ABLATION_NAMES"
    done
    check_choices SETTINGS setting "raw distilled"
    check_choices LENGTH_PENALTY "length penalty" "gnmt fairseq"
}

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

# model_name GEOMETRY SETTING [LAYERS]
model_name() { printf '%s' "$RUN-$1${3:+-student}-$2${DIRECTION:+-$DIRECTION}"; }

# fit GEOMETRY SETTING [LAYERS]: what appendix A does not say is as in Vaswani et al.
fit() {
    local data=$DATA gpus=$((GPUS > 0 ? GPUS : 1)) flags
    [ "$2" = raw ] || data=$DISTILLED
    mapfile -t flags < <(architecture "$1")
    learn "$(model_name "$@")" "$AVERAGE" "$data" "${flags[@]}" ${3:+--decoder-layers "$3"} --share-all-embeddings \
        --criterion label_smoothed_cross_entropy --dropout 0.1 --attention-dropout 0.1 \
        --adam-betas '(0.9, 0.98)' --adam-eps 1e-8 --lr "$LR" --warmup-updates "$WARMUP" --warmup-init-lr 1e-7 \
        --max-tokens 3125 --update-freq "${UPDATE_FREQ:-$(((8 + gpus - 1) / gpus))}" \
        --save-interval-updates "$SAVE_EVERY" --keep-interval-updates "$AVERAGE" --no-epoch-checkpoints
}

# model GEOMETRY SETTING [LAYERS]: trains and decodes.
model() {
    local text search=("${ENGINE[@]}") beam
    fit "$@"
    text="$(label "$1")${3:+, $3 decoder layers}"
    [ "$1" != 1x1 ] || search=(--decoding stock --lenpen "$LENPEN")
    for beam in $BEAMS; do
        system "$RUN-$1${3:+-student}-$2-$beam" "$text, $2, beam $beam" --path "$WORK/$(model_name "$@")-model/model.pt" \
            "${search[@]}" --beam "$beam"
    done
}

grid() {
    local teacher setting geometry beam
    teacher=$WORK/$(model_name 1x1 raw)-model/model.pt
    model 1x1 raw
    case " $SETTINGS " in *" distilled "*) distil "$teacher" "$DISTILLED" ;; esac
    for beam in $BEAMS; do
        system "$RUN-engine-$beam" "Transformer, raw, beam $beam, this engine" --path "$teacher" \
            "${ENGINE[@]}" --beam "$beam"
    done
    for setting in $SETTINGS; do
        for geometry in $GEOMETRIES; do
            [ "$geometry $setting" = "1x1 raw" ] || model "$geometry" "$setting"
        done
        for geometry in $STUDENTS; do model "$geometry" "$setting" "$STUDENT_LAYERS"; done
    done
}
